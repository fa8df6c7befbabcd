"""Carry out a plan: its actions in threads, each independent and safe to repeat."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import replace

from ms_recover.errors import MsRecoverError, UnrecoverableError, VerificationError
from ms_recover.execution.copy import CopyOptions, check_source, run_copy
from ms_recover.execution.journal import Journal
from ms_recover.execution.leftovers import clear_leftovers
from ms_recover.execution.lock import lock_tree
from ms_recover.execution.manifests import write_recovered
from ms_recover.formats.group_info import encode_group_info
from ms_recover.model.groups import GroupInfo
from ms_recover.model.manifest import MANIFEST_SUFFIX
from ms_recover.model.outcome import ActionResult, Outcome
from ms_recover.model.plan import CopyAction, GroupWrite, Plan
from ms_recover.storage.local import StoppedError, claim_temporary, commit, explain

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
        check_source(plan.root, action)


def run_plan(
    plan: Plan,
    *,
    jobs: int = 1,
    verify: bool = True,
    ranks: Collection[int] | None = None,
    progress: Callable[[int], None] | None = None,
    lock_timeout: float = 600.0,
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
    if plan.step is None:
        raise UnrecoverableError(f"{plan.root} cannot be recovered by this plan; it names the ranks")
    actions = [action for action in plan.actions if ranks is None or action.rank in ranks]
    with lock_tree(plan.root, shared=ranks is not None, timeout=0 if ranks is None else lock_timeout):
        journal = Journal(plan.root) if ranks is None else None
        futures = _run_all(plan, actions, journal, jobs, CopyOptions(verify, _never, progress or _ignore))
        results, codes = [], [0]
        for action, future in zip(actions, futures, strict=True):
            result, code = _result(action, future)
            results.append(result)
            codes.append(code)
        failed = {result.rank for result in results if result.status == "failed"}
        written, errors = _write_groups(plan, [write for write in plan.group_files if write.rank not in failed], ranks)
        codes += [code for _, code in errors]
        if any(result.dropped for result in results):
            codes.append(VerificationError.exit_code)
        if journal is not None:
            clear_leftovers(sorted(_folders(plan)))
            journal.close(complete=not failed and not errors)
    texts = tuple(text for text, _ in errors)
    return Outcome(plan.root, plan.step, tuple(results), tuple(written), verify, texts, max(codes))


def _run_all(
    plan: Plan, actions: list[CopyAction], journal: Journal | None, jobs: int, options: CopyOptions
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


def _run_one(plan: Plan, action: CopyAction, journal: Journal | None, options: CopyOptions) -> ActionResult:
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
    write_recovered(plan.root, action, replica, result.digest, plan.step, plan.world_size, plan.run_id)
    if journal is not None:
        journal.finished(action.target, path, result.digest)
    return result


def _never() -> bool:
    return False


def _ignore(count: int) -> None:
    pass


def _result(action: CopyAction, future: Future[ActionResult]) -> tuple[ActionResult, int]:
    try:
        return future.result(), 0
    except StoppedError:
        error, code = "stopped", 1
    except MsRecoverError as problem:
        error, code = str(problem), problem.exit_code
    except OSError as problem:
        error, code = f"rank {action.rank}, {action.target}: {problem}", 1
    _log.error("rank %d: %s", action.rank, error)
    failed = ActionResult(action.rank, action.source_rank, action.source, action.target, "failed", error=error)
    return failed, code


def _write_groups(
    plan: Plan, writes: Iterable[GroupWrite], ranks: Collection[int] | None
) -> tuple[list[str], list[tuple[str, int]]]:
    written, errors = [], []
    for write in writes:
        if ranks is not None and write.rank not in ranks:
            continue
        try:
            _write_group(os.path.join(plan.root, write.target), write.restore_ranks)
            written.append(write.target)
        except (MsRecoverError, OSError) as error:
            errors.append((f"writing {write.target}: {error}", getattr(error, "exit_code", 1)))
    return written, errors


def _folders(plan: Plan) -> set[str]:
    """Return the directories in which slices are kept and recovered."""
    paths = [verdict.path for verdict in plan.ranks if verdict.path is not None]
    return {os.path.dirname(os.path.join(plan.root, path)) for path in paths}


def _write_group(path: str, ranks: tuple[int, ...]) -> None:
    """Write a rank list under a temporary name that the next run takes over, should this one be killed."""
    data = encode_group_info(GroupInfo(tuple(sorted(ranks))))
    with claim_temporary(path) as temporary, explain("writing", path):
        os.write(temporary.descriptor, data)
        if os.geteuid() == 0:  # MindSpore writes it in place, as the job's user
            folder = os.stat(os.path.dirname(path))
            os.fchown(temporary.descriptor, folder.st_uid, folder.st_gid)
        os.fsync(temporary.descriptor)
        commit(temporary, path)
