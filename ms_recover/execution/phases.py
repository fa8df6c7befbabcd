"""The phases of a plan, wherever its tree lies: slices, small files, slices that are set aside, documents."""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from typing import TypeVar

from ms_recover.errors import MsRecoverError, UnrecoverableError, VerificationError
from ms_recover.execution.compose import compose_slice
from ms_recover.execution.context import ActionContext
from ms_recover.execution.copy import copy_slice
from ms_recover.model.actions import CopyAction
from ms_recover.model.outcome import ActionResult, Outcome
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
from ms_recover.stores.local import StoppedError
from ms_recover.stores.store import Stop, Store, never
from ms_recover.stores.threads import in_threads

_log = logging.getLogger(__name__)
_POLL_SECONDS = 0.2
_T = TypeVar("_T")
_WriteT = TypeVar("_WriteT", GroupWrite, MetaWrite, StrategyWrite)


def _ignore(count: int) -> None:
    pass


@dataclass(frozen=True, kw_only=True)
class ApplyOptions:
    """How a plan is carried out; the fields are the parameters of `ms_recover.api.apply`."""

    jobs: int = 1
    verify: bool = True
    ranks: Collection[int] | None = None
    progress: Callable[[int], None] = _ignore
    lock_timeout: float = 600.0
    partial: bool = False
    sources: Mapping[str, Store] = field(default_factory=dict)
    scratch: str | None = None
    stop: Stop = never
    """Asked now and then; once it returns True the actions that are not done fail."""

    def concerns(self, rank: int) -> bool:
        """Whether what belongs to a rank is carried out."""
        return self.ranks is None or rank in self.ranks

    def actions_of(self, plan: Plan) -> list[Action]:
        """Return the actions of a plan to carry out; those that write a part where the plan has no step."""
        planned = plan.partials if plan.step is None else plan.actions
        return [action for action in planned if self.concerns(action.rank)]

    def step_of(self, plan: Plan) -> Step:
        """Return the step of a plan, or that of its parts; an UnrecoverableError without one."""
        return check_recoverable(plan.considered if self.partial else plan.step, plan.root)


@dataclass(frozen=True, slots=True)
class Problem:
    """An error in words, and the exit code it owns."""

    text: str
    exit_code: int


class Place(ABC):
    """The tree that a plan is carried out in: how each thing of the plan is written there.

    The small files are written in threads; True says that one was written, False that it lay there already.
    """

    context: ActionContext

    def run(self, action: Action, context: ActionContext) -> ActionResult:
        """Carry out one action; errors as for `run_one`."""
        return run_one(action, context)

    @abstractmethod
    def write_rank_list(self, write: GroupWrite) -> bool:
        """Write a rank list."""

    @abstractmethod
    def write_meta(self, write: MetaWrite) -> bool:
        """Write the record of a rank's last slice."""

    @abstractmethod
    def write_strategy(self, write: StrategyWrite) -> bool:
        """Write a strategy file."""

    @abstractmethod
    def write_document(self, write: DocumentWrite) -> bool:
        """Write a document of an iteration."""

    @abstractmethod
    def set_aside(self, given_up: GivenUpSlice) -> str | None:
        """Give a slice of a step that is given up another name, and return it; None where it is gone."""

    def sync(self, jobs: int) -> list[MsRecoverError]:
        """Make the names durable that were given so far; return the errors."""
        return []


def carry_out(plan: Plan, step: Step, place: Place, options: ApplyOptions) -> Outcome:
    """Carry out the phases of a plan in a place, and return what was done, with the gravest exit code."""
    # Slices first. One that fails does not stop the others, which are worth having.
    actions, jobs = options.actions_of(plan), options.jobs
    results, problems = _run_all(actions, place, jobs)
    failed = {result.rank for result in results if result.status == "failed"}

    # Lists and records go with their slices: what names a slice that is not there would mislead the next scan.
    def due(writes: Sequence[_WriteT]) -> list[_WriteT]:
        return [write for write in writes if write.rank not in failed and options.concerns(write.rank)]

    group_files, others = _write_small(due(plan.group_files), place.write_rank_list, jobs)
    meta_files, wrong = _write_small(due(plan.meta_files), place.write_meta, jobs)
    others += wrong
    strategy_files, wrong = _write_small(due(plan.strategy_files), place.write_strategy, jobs)
    others += wrong
    others += [Problem(str(error), error.exit_code) for error in place.sync(jobs)]

    # Newer slices are given up, and the step is announced, only when nothing that comes before has failed.
    aside: list[str] = []
    documents: list[str] = []
    if not failed and not others and plan.step is not None:
        own = [given_up for given_up in plan.set_aside if options.concerns(given_up.rank)]
        aside, others = _set_aside(own, place.set_aside, jobs)
    if not failed and not others and options.ranks is None:
        documents, others = _write_documents(plan.documents, place.write_document)

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
        verified=options.verify,
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


def _run_all(actions: Sequence[Action], place: Place, jobs: int) -> tuple[list[ActionResult], list[Problem]]:
    """Carry out actions in threads; the problems are those of actions that failed."""
    stop, asked = threading.Event(), place.context.stop
    context = replace(place.context, stop=lambda: stop.is_set() or asked())
    pool = ThreadPoolExecutor(max(1, jobs), thread_name_prefix="recover")
    try:
        futures: dict[str, Future[ActionResult]] = {}
        for wave in waves_of(actions):
            started = {action.target: pool.submit(place.run, action, context) for action in wave}
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


def _write_small(
    writes: Sequence[_WriteT], write: Callable[[_WriteT], bool], jobs: int
) -> tuple[list[str], list[Problem]]:
    """Write rank lists or records in threads; return the written ones, and the problems."""

    def attempt(due: _WriteT) -> bool | Problem:
        try:
            wrote = write(due)
            _log.info("rank %d: %s %s", due.rank, due.target, "written" if wrote else "left as it is")
            return wrote
        except (MsRecoverError, OSError) as error:
            return Problem(f"writing {due.target}: {error}", getattr(error, "exit_code", MsRecoverError.exit_code))

    ends = in_threads(jobs, attempt, writes)
    written = [due.target for due, end in zip(writes, ends, strict=True) if end is True]
    return written, [end for end in ends if isinstance(end, Problem)]


def _write_documents(
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


def _set_aside(
    slices: Sequence[GivenUpSlice], rename: Callable[[GivenUpSlice], str | None], jobs: int
) -> tuple[list[str], list[Problem]]:
    """Rename slices of steps that are given up, in threads; return their paths now, and the problems."""

    def attempt(given_up: GivenUpSlice) -> str | Problem | None:
        rank = given_up.rank
        try:
            path = rename(given_up)
        except (MsRecoverError, OSError) as error:
            return Problem(f"rank {rank}: {error}", getattr(error, "exit_code", MsRecoverError.exit_code))
        if path is not None:
            _log.warning("rank %d: %s is set aside as %s: %s", rank, given_up.path, path, given_up.reason)
        return path

    ends = in_threads(jobs, attempt, slices)
    return [end for end in ends if isinstance(end, str)], [end for end in ends if isinstance(end, Problem)]
