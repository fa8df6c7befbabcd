"""Carry out a plan: its actions in threads, each independent and safe to repeat."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TypeVar

from ms_recover.errors import MsRecoverError, UnrecoverableError, VerificationError
from ms_recover.execution.compose import compose_slice
from ms_recover.execution.context import ActionContext
from ms_recover.execution.copy import copy_slice
from ms_recover.execution.documents import write_document
from ms_recover.execution.journal import Journal
from ms_recover.execution.lock import lock_tree
from ms_recover.execution.meta_files import write_meta
from ms_recover.execution.rank_lists import write_planned
from ms_recover.execution.set_aside import give_up
from ms_recover.execution.strategy_files import write_strategy_file
from ms_recover.execution.targets import check_place, check_refused, judge_now
from ms_recover.formats.plan_paths import check_names
from ms_recover.model.actions import CopyAction
from ms_recover.model.outcome import ActionResult, Outcome
from ms_recover.model.places import Obstacle
from ms_recover.model.plan import (
    Action,
    DocumentWrite,
    GivenUpSlice,
    GroupWrite,
    MetaWrite,
    Plan,
    StrategyWrite,
    waves_of,
)
from ms_recover.model.steps import Step
from ms_recover.stores.atomic import leftovers, remove_unlocked
from ms_recover.stores.directories import DirectorySyncs
from ms_recover.stores.local import StoppedError
from ms_recover.stores.local_store import LocalStore
from ms_recover.stores.store import Store, never
from ms_recover.stores.threads import in_threads
from ms_recover.stores.urls import is_url, open_store

_log = logging.getLogger(__name__)
_POLL_SECONDS = 0.2
_NONE: Mapping[str, Obstacle] = MappingProxyType({})
_T = TypeVar("_T")
Run = Callable[[Action, ActionContext], ActionResult]
_WriteT = TypeVar("_WriteT", GroupWrite, MetaWrite, StrategyWrite)


@dataclass(frozen=True, slots=True)
class Problem:
    """An error in words, and the exit code it owns."""

    text: str
    exit_code: int


def check_plan(plan: Plan) -> None:
    """Check that a plan can be carried out: recoverable, with right targets, and its sources as it saw them.

    Errors are those of `ms_recover.api.check`, and a FormatError when a target names another rank or step.
    """
    check_recoverable(plan.step, plan.root)
    check_names(plan)
    with open_store(plan.root) as source:
        for action in plan.actions:
            for replica in action.replicas[:1] if isinstance(action, CopyAction) else action.replicas:
                source.open(replica.path, replica.state).close()


def apply_plan(
    plan: Plan,
    *,
    jobs: int = 1,
    verify: bool = True,
    ranks: Collection[int] | None = None,
    progress: Callable[[int], None] | None = None,
    lock_timeout: float = 600.0,
    partial: bool = False,
    sources: Mapping[str, Store] | None = None,
    scratch: str | None = None,
    stop: Callable[[], bool] = never,
) -> Outcome:
    """Carry out a plan; an action that fails does not keep the others from being done.

    Parameters, outcome and errors are those of `ms_recover.api.apply`; once `stop` returns True the actions that are
    not done fail.

    Raises
    ------
    FormatError
        When a target of the plan names another rank or step.
    """
    if is_url(plan.root):
        from ms_recover.execution.apply_store import apply_at_url

        return apply_at_url(plan, jobs, verify, ranks, progress, partial, sources, scratch, stop)
    step = check_recoverable(plan.considered if partial else plan.step, plan.root)
    check_names(plan)
    planned = plan.partials if plan.step is None else plan.actions
    actions = [action for action in planned if ranks is None or action.rank in ranks]
    syncs = DirectorySyncs()
    with lock_tree(plan.root, shared=ranks is not None, timeout=0 if ranks is None else lock_timeout):
        judged = judge_now(plan, ranks=ranks, elsewhere=sources or {})
        refused = {one.path: one for one in judged.obstacles}
        jobs = 1 if judged.one_at_a_time else jobs
        follow = plan.follow
        context = ActionContext(
            root=plan.root,
            follow=follow,
            refused=refused,
            elsewhere=sources or {},
            step=step,
            world_size=plan.world_size,
            run_id=plan.run_id,
            lost=frozenset(one.rank for one in plan.ranks if one.state == "lost"),
            verify=verify,
            syncs=syncs,
            journal=Journal(plan.root) if ranks is None else None,
            progress=progress or (lambda count: None),
            stop=stop,
        )
        results, problems = run_all(actions, context, jobs)
        failed = {result.rank for result in results if result.status == "failed"}
        writes = [write for write in plan.group_files if write.rank not in failed]
        writes = [write for write in writes if ranks is None or write.rank in ranks]
        noted = {note.path for note in plan.notes}
        written, others = write_small(
            writes,
            lambda one: write_planned(plan.root, one, damaged=one.target in noted, follow=follow, syncs=syncs),
            jobs,
            refused,
        )
        metas = [meta for meta in plan.meta_files if meta.rank not in failed and (ranks is None or meta.rank in ranks)]
        renewed, wrong = write_small(
            metas, lambda one: write_meta(plan.root, one, step, follow=follow, syncs=syncs), jobs, refused
        )
        others += wrong
        strategies = [one for one in plan.strategy_files if one.rank not in failed]
        strategies = [one for one in strategies if ranks is None or one.rank in ranks]
        copied, wrong = write_small(
            strategies,
            lambda one: write_strategy_file(plan.root, one, context.source(one.source), follow=follow, syncs=syncs),
            jobs,
            refused,
        )
        others += wrong
        others += [Problem(str(error), error.exit_code) for error in syncs.sync_all(jobs)]
        aside: list[str] = []
        if not failed and not others and plan.step is not None:
            own = [one for one in plan.set_aside if ranks is None or one.rank in ranks]
            aside, others = set_aside(own, lambda one: _give_up(plan.root, one, follow), jobs)
        documents: list[str] = []
        if not failed and not others and ranks is None:
            documents, others = write_documents(plan.documents, lambda one: write_document(plan.root, one, follow))
        if context.journal is not None:
            for folder in sorted(_folders(plan, actions)):
                _remove_leftovers(folder)
            context.journal.close(complete=not failed and not others)
    return finish_outcome(plan, step, results, problems, others, written, documents, renewed, copied, aside, verify)


def finish_outcome(
    plan: Plan,
    step: Step,
    results: Sequence[ActionResult],
    problems: Sequence[Problem],
    others: Sequence[Problem],
    group_files: Sequence[str],
    documents: Sequence[str],
    meta_files: Sequence[str],
    strategy_files: Sequence[str],
    aside: Sequence[str],
    verified: bool,
) -> Outcome:
    """Return what was done, with the gravest exit code."""
    codes = {problem.exit_code for problem in (*problems, *others)}
    codes |= {VerificationError.exit_code for result in results if result.dropped}
    codes |= {UnrecoverableError.exit_code} if plan.step is None else set()
    return Outcome(
        root=plan.root,
        step=step,
        results=tuple(results),
        group_files=tuple(group_files),
        documents=tuple(documents),
        meta_files=tuple(meta_files),
        strategy_files=tuple(strategy_files),
        set_aside=tuple(aside),
        verified=verified,
        errors=tuple(problem.text for problem in others),
        exit_code=max(codes, default=0),
        partial=plan.step is None,
        rejected_steps=plan.rejected_steps,
    )


def check_recoverable(step: _T | None, root: str) -> _T:
    """Return the step of a plan; an UnrecoverableError without one."""
    if step is None:
        raise UnrecoverableError(f"{root} cannot be recovered by this plan; it names the ranks")
    return step


def run_all(
    actions: Sequence[Action], context: ActionContext, jobs: int, run: Run | None = None
) -> tuple[list[ActionResult], list[Problem]]:
    """Carry out actions in threads, each by `run`; the problems are those of actions that failed."""
    stop, asked = threading.Event(), context.stop
    context = replace(context, stop=lambda: stop.is_set() or asked())
    pool = ThreadPoolExecutor(max(1, jobs), thread_name_prefix="recover")
    try:
        futures: dict[str, Future[ActionResult]] = {}
        for wave in waves_of(actions):
            started = {action.target: pool.submit(run or run_one, action, context) for action in wave}
            futures |= started
            pending: set[Future[ActionResult]] = set(started.values())
            while pending:  # with a time limit, so that Ctrl-C arrives
                pending = wait(pending, timeout=_POLL_SECONDS, return_when=FIRST_COMPLETED).not_done
    finally:
        stop.set()
        pool.shutdown(wait=True, cancel_futures=True)
    results, problems = [], []
    for action in actions:
        try:
            results.append(futures[action.target].result())
            if (kept := results[-1].set_aside) is not None:
                _log.warning("rank %d: what lay at %s is kept as %s", action.rank, action.target, kept)
        except (StoppedError, MsRecoverError, OSError) as error:
            problems.append(_problem(action, error))
            results.append(_failed(action, problems[-1].text))
    return results, problems


def run_one(action: Action, context: ActionContext) -> ActionResult:
    """Carry out one action; errors as for `copy_slice` and `compose_slice`."""
    _log.debug("rank %d: writing %s, %d bytes", action.rank, action.target, action.bytes)
    result = copy_slice(action, context) if isinstance(action, CopyAction) else compose_slice(action, context)
    _log.info(
        "rank %d: %s %s from %s, %d bytes, %s",
        action.rank,
        result.target,
        result.status,
        result.source,
        result.bytes,
        result.digest,
    )
    return result


def _problem(action: Action, error: Exception) -> Problem:
    if isinstance(error, MsRecoverError):
        problem = Problem(str(error), error.exit_code)
    elif isinstance(error, StoppedError):
        problem = Problem("stopped", MsRecoverError.exit_code)
    else:
        problem = Problem(f"rank {action.rank}, {action.target}: {error}", MsRecoverError.exit_code)
    _log.error("rank %d: %s", action.rank, problem.text)
    return problem


def _failed(action: Action, error: str) -> ActionResult:
    if isinstance(action, CopyAction):
        source_rank, source = action.source_rank, action.source
    else:
        source_rank, source = None, f"{len(action.source_ranks)} slices"
    return ActionResult(
        rank=action.rank,
        source_rank=source_rank,
        source=source,
        target=action.target,
        status="failed",
        error=error,
    )


def write_small(
    writes: Sequence[_WriteT],
    write: Callable[[_WriteT], bool],
    jobs: int,
    refused: Mapping[str, Obstacle] = _NONE,
) -> tuple[list[str], list[Problem]]:
    """Write rank lists or records in threads, but for those `refused`; return the written ones, and the problems."""

    def attempt(one: _WriteT) -> bool | Problem:
        try:
            check_refused(one.target, refused)
            wrote = write(one)
            _log.info("rank %d: %s %s", one.rank, one.target, "written" if wrote else "left as it is")
            return wrote
        except (MsRecoverError, OSError) as error:
            return Problem(f"writing {one.target}: {error}", getattr(error, "exit_code", MsRecoverError.exit_code))

    ends = in_threads(jobs, attempt, writes)
    written = [one.target for one, end in zip(writes, ends, strict=True) if end is True]
    return written, [end for end in ends if isinstance(end, Problem)]


def write_documents(
    writes: Sequence[DocumentWrite], write_one: Callable[[DocumentWrite], bool]
) -> tuple[list[str], list[Problem]]:
    """Write documents in their order, each durable before the next; one that fails keeps the later ones from it."""
    written = []
    for write in writes:
        try:
            if write_one(write):
                written.append(write.target)
        except (MsRecoverError, OSError) as error:
            code = getattr(error, "exit_code", MsRecoverError.exit_code)
            return written, [Problem(f"writing {write.target}: {error}", code)]
    return written, []


def set_aside(
    slices: Sequence[GivenUpSlice], rename: Callable[[GivenUpSlice], str | None], jobs: int
) -> tuple[list[str], list[Problem]]:
    """Rename slices of steps that are given up, in threads; return their paths now, and the problems."""

    def attempt(one: GivenUpSlice) -> str | Problem | None:
        try:
            path = rename(one)
        except (MsRecoverError, OSError) as error:
            return Problem(f"rank {one.rank}: {error}", getattr(error, "exit_code", MsRecoverError.exit_code))
        if path is not None:
            _log.warning("rank %d: %s is set aside as %s: %s", one.rank, one.path, path, one.reason)
        return path

    ends = in_threads(jobs, attempt, slices)
    return [end for end in ends if isinstance(end, str)], [end for end in ends if isinstance(end, Problem)]


def _give_up(root: str, one: GivenUpSlice, follow: Sequence[str]) -> str | None:
    check_place(root, one.path, one.rank, follow)
    return give_up(LocalStore(root), one)


def _remove_leftovers(folder: str) -> None:
    """Remove temporary files that killed recoveries left in a directory; those that cannot be removed stay."""
    with suppress(OSError):
        for path in leftovers(folder):
            with suppress(OSError):
                remove_unlocked(path)
                _log.info("%s, which a killed recovery left, is removed", path)


def _folders(plan: Plan, actions: Sequence[Action]) -> set[str]:
    """Return the directories in which slices are kept and recovered."""
    paths = [verdict.path for verdict in plan.ranks if verdict.path is not None]
    paths += [action.target for action in actions]
    return {os.path.dirname(os.path.join(plan.root, path)) for path in paths}
