"""Carry out a plan: its actions in threads, each independent and safe to repeat."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import nullcontext
from dataclasses import replace
from functools import partial

from ms_recover.errors import MsRecoverError, UnrecoverableError, VerificationError
from ms_recover.execution.checks import check_source
from ms_recover.execution.copy import CopyOptions, run_copy
from ms_recover.execution.elsewhere import Elsewhere
from ms_recover.execution.journal import Journal
from ms_recover.execution.leftovers import clear_leftovers
from ms_recover.execution.lock import lock_tree
from ms_recover.execution.manifests import manifest_of, write_manifest, write_recovered
from ms_recover.execution.rebuild import rebuild_slice
from ms_recover.execution.staging import Staging
from ms_recover.file_names import MANIFEST_SUFFIX
from ms_recover.formats.group_info import encode_group_info
from ms_recover.model.actions import CopyAction
from ms_recover.model.compose import ComposeAction
from ms_recover.model.groups import GroupInfo
from ms_recover.model.outcome import ActionResult, Outcome
from ms_recover.model.plan import Action, GroupWrite, Plan
from ms_recover.model.provenance import ProvenanceSource
from ms_recover.storage.local import StoppedError, claim_temporary, commit, explain, sync_directory

_log = logging.getLogger(__name__)
_POLL_SECONDS = 0.2


def check_plan(plan: Plan) -> None:
    """Check that a plan can be carried out: recoverable, and its sources are what it saw.

    Raises
    ------
    UnrecoverableError
        When the plan has no step.
    MissingInputError, VerificationError
        When a source is gone or changed.
    """
    if not plan.recoverable:
        raise UnrecoverableError(f"{plan.root} cannot be recovered by this plan; it names the ranks")
    for action in plan.actions:
        for replica in (action.replica,) if isinstance(action, CopyAction) else action.sources:
            check_source(plan.root, replica)


def run_plan(
    plan: Plan,
    *,
    jobs: int = 1,
    verify: bool = True,
    ranks: Collection[int] | None = None,
    progress: Callable[[int], None] | None = None,
    lock_timeout: float = 600.0,
    partial: bool = False,
    elsewhere: Elsewhere | None = None,
) -> Outcome:
    """Carry out a plan. An action that fails does not keep the others from being done.

    Parameters
    ----------
    plan : Plan
        A recoverable plan.
    jobs : int
        Threads.
    verify : bool
        Read each copy back before it gets its final name.
    ranks : collection of int, optional
        Only these ranks' actions.
    progress : callable, optional
        Told the bytes copied since the last call, from any thread.
    lock_timeout : float
        Seconds to wait for another recovery on the same tree, where `ranks` is given; otherwise it is an error at once.
    partial : bool
        Where the plan has no step write what survives of the slices that are gone, under other names.
    elsewhere : Elsewhere, optional
        The slices of the plan that lie on other hosts. Those that others are put together from are fetched whole into
        a hidden directory of the tree, which goes at the end.

    Returns
    -------
    Outcome
        With the gravest exit code.

    Raises
    ------
    UnrecoverableError
        When the plan has no step.
    StorageError
        When another recovery is at work on the tree.
    KeyboardInterrupt
        After every temporary file is gone.
    """
    step = plan.step if not partial else plan.considered
    if step is None:
        raise UnrecoverableError(f"{plan.root} cannot be recovered by this plan; it names the ranks")
    planned = plan.partials if plan.step is None else plan.actions
    actions = [action for action in planned if ranks is None or action.rank in ranks]
    fetching = Staging(plan.root, elsewhere) if elsewhere is not None else None
    with (
        lock_tree(plan.root, shared=ranks is not None, timeout=0 if ranks is None else lock_timeout),
        fetching or nullcontext(),
    ):
        journal = Journal(plan.root) if ranks is None else None
        later: set[str] = set()
        options = CopyOptions(verify, _never, progress or _ignore, later, fetching)
        futures = _run_all(plan, actions, journal, jobs, options)
        results, codes = [], [0]
        for action, future in zip(actions, futures, strict=True):
            result, code = _result(action, future)
            results.append(result)
            codes.append(code)
        failed = {result.rank for result in results if result.status == "failed"}
        writes = [write for write in plan.group_files if write.rank not in failed]
        written, errors = _write_groups(plan, writes, ranks, jobs, later)
        errors += _sync_all(sorted(later), jobs)
        codes += [code for _, code in errors]
        if any(result.dropped for result in results):
            codes.append(VerificationError.exit_code)
        if journal is not None:
            clear_leftovers(sorted(_folders(plan, actions)))
            journal.close(complete=not failed and not errors)
    texts = tuple(text for text, _ in errors)
    codes += [UnrecoverableError.exit_code] if plan.step is None else []
    return Outcome(
        root=plan.root,
        step=step,
        results=tuple(results),
        group_files=tuple(written),
        verified=verify,
        errors=texts,
        exit_code=max(codes),
        partial=plan.step is None,
        rejected_steps=plan.rejected_steps,
    )


def _run_all(
    plan: Plan, actions: Sequence[Action], journal: Journal | None, jobs: int, options: CopyOptions
) -> list[Future[ActionResult]]:
    stop = threading.Event()
    options = replace(options, stop=stop.is_set)
    pool = ThreadPoolExecutor(max(1, jobs), thread_name_prefix="recover")
    try:
        futures = [pool.submit(_run_one, plan, action, journal, options) for action in actions]
        pending: set[Future[ActionResult]] = set(futures)
        while pending:  # with a time limit, so that Ctrl-C arrives
            pending = wait(pending, timeout=_POLL_SECONDS, return_when=FIRST_COMPLETED).not_done
    finally:
        stop.set()
        pool.shutdown(wait=True, cancel_futures=True)
    return futures


def _run_one(plan: Plan, action: Action, journal: Journal | None, options: CopyOptions) -> ActionResult:
    if isinstance(action, ComposeAction):
        return _compose_one(plan, action, journal, options)
    path = os.path.join(plan.root, action.target)
    digest = journal.digest_of(action.target, path) if journal is not None else None
    if digest is not None and digest == action.replica.digest and os.path.exists(path + MANIFEST_SUFFIX):
        options.progress(action.source_state.bytes)
        return ActionResult(
            action.rank, action.source_rank, action.source, action.target, "already there", digest=digest
        )
    result = run_copy(plan.root, action, options)
    assert plan.step is not None
    assert result.digest is not None
    replica = next(one for one in (action.replica, *action.alternatives) if one.path == result.source)
    write_recovered(
        plan.root,
        action,
        replica,
        result.digest,
        plan.step,
        plan.world_size,
        plan.run_id,
        options.later,
        options.fetching,
    )
    if journal is not None:
        journal.finished(action.target, path, result.digest)
    return result


def _compose_one(plan: Plan, action: ComposeAction, journal: Journal | None, options: CopyOptions) -> ActionResult:
    def rebuild(action: ComposeAction) -> ActionResult:
        return rebuild_slice(plan.root, action, plan.step, plan.world_size, plan.run_id, journal, options)

    fetching, path = options.fetching, os.path.join(plan.root, action.target)
    if fetching is None or (journal is not None and journal.digest_of(action.target, path) is not None):
        return rebuild(action)
    staged, failed = fetching.bring(action, options.stop)
    try:
        result = rebuild(staged)
    except MsRecoverError as error:
        reasons = [*map(str, failed), fetching.tell(str(error))]
        raise type(failed[0] if failed else error)("; ".join(reasons)) from error
    manifest = manifest_of(path) if action.kind == "compose" else None
    if manifest is not None:
        sources = tuple(ProvenanceSource(one.rank, one.path, fetching.where(one.path)) for one in action.sources)
        provenance = replace(manifest.provenance, sources=sources)
        write_manifest(path, replace(manifest, provenance=provenance), options.later)
    dropped = tuple(map(str, failed)) or tuple(map(fetching.tell, result.dropped))
    return replace(result, source=fetching.tell(result.source), dropped=dropped)


def _never() -> bool:
    return False


def _ignore(count: int) -> None:
    pass


def _result(action: Action, future: Future[ActionResult]) -> tuple[ActionResult, int]:
    try:
        return future.result(), 0
    except StoppedError:
        error, code = "stopped", 1
    except MsRecoverError as problem:
        error, code = str(problem), problem.exit_code
    except OSError as problem:
        error, code = f"rank {action.rank}, {action.target}: {problem}", 1
    _log.error("rank %d: %s", action.rank, error)
    if isinstance(action, CopyAction):
        rank, source = action.source_rank, action.source
    else:
        rank, source = None, f"{len(action.source_ranks)} slices"
    failed = ActionResult(action.rank, rank, source, action.target, "failed", error=error)
    return failed, code


def _write_groups(
    plan: Plan, writes: Iterable[GroupWrite], ranks: Collection[int] | None, jobs: int, later: set[str]
) -> tuple[list[str], list[tuple[str, int]]]:
    """Write rank lists in threads: file systems make several durable for the price of one."""
    writes = [write for write in writes if ranks is None or write.rank in ranks]
    with ThreadPoolExecutor(max(1, jobs), thread_name_prefix="recover") as pool:
        problems = list(pool.map(partial(_write_group, plan.root, later), writes))
    written = [write.target for write, problem in zip(writes, problems, strict=True) if problem is None]
    return written, [problem for problem in problems if problem is not None]


def _sync_all(folders: Sequence[str], jobs: int) -> list[tuple[str, int]]:
    """Make directories durable in threads; return what went wrong, and its exit code."""
    with ThreadPoolExecutor(max(1, jobs), thread_name_prefix="recover") as pool:
        problems = list(pool.map(_sync, folders))
    return [problem for problem in problems if problem is not None]


def _sync(folder: str) -> tuple[str, int] | None:
    try:
        with explain("syncing", folder):
            sync_directory(folder)
    except (MsRecoverError, OSError) as error:
        return f"{error}", getattr(error, "exit_code", 1)
    return None


def _folders(plan: Plan, actions: Sequence[Action]) -> set[str]:
    """Return the directories in which slices are kept and recovered."""
    paths = [verdict.path for verdict in plan.ranks if verdict.path is not None]
    paths += [action.target for action in actions]
    return {os.path.dirname(os.path.join(plan.root, path)) for path in paths}


def _write_group(root: str, later: set[str], write: GroupWrite) -> tuple[str, int] | None:
    """Write a rank list; return what went wrong, and its exit code."""
    try:
        _write_list(os.path.join(root, write.target), write.restore_ranks, later)
    except (MsRecoverError, OSError) as error:
        return f"writing {write.target}: {error}", getattr(error, "exit_code", 1)
    return None


def _write_list(path: str, ranks: tuple[int, ...], later: set[str]) -> None:
    """Write a rank list under a temporary name that the next run takes over, should this one be killed."""
    data = encode_group_info(GroupInfo(tuple(sorted(ranks))))
    with claim_temporary(path) as temporary, explain("writing", path):
        os.write(temporary.descriptor, data)
        if os.geteuid() == 0:  # MindSpore writes it in place, as the job's user
            folder = os.stat(os.path.dirname(path))
            os.fchown(temporary.descriptor, folder.st_uid, folder.st_gid)
        os.fsync(temporary.descriptor)
        commit(temporary, path, later)
