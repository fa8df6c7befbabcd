"""Carry out a plan: its actions in threads, each independent and safe to repeat, and then what names their slices."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from ms_recover.errors import UnrecoverableError, VerificationError
from ms_recover.execution.context import ActionContext, Made
from ms_recover.execution.destination import (
    Destination,
    LocalDestination,
    StoreDestination,
    jobs_with_room,
    remove_leftovers,
)
from ms_recover.execution.journal import Journal
from ms_recover.execution.lock import lock_tree
from ms_recover.execution.problems import Problem, attempted
from ms_recover.execution.small_files import write_document, write_meta, write_rank_list, write_strategy_file
from ms_recover.execution.targets import judge_now
from ms_recover.execution.write import write
from ms_recover.formats.plan_paths import check_names
from ms_recover.model.actions import CopyAction
from ms_recover.model.outcome import ActionResult, Outcome
from ms_recover.model.plan import (
    Action,
    GivenUpSlice,
    GroupWrite,
    MetaWrite,
    Plan,
    StrategyWrite,
    waves_of,
)
from ms_recover.model.steps import Step
from ms_recover.stores.directories import DirectorySyncs
from ms_recover.stores.local_store import LocalStore
from ms_recover.stores.store import Stop, Store, never
from ms_recover.stores.threads import in_threads
from ms_recover.stores.urls import is_url, open_store

_log = logging.getLogger(__name__)
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
        return _check_recoverable(plan.considered if self.partial else plan.step, plan.root)


def check(plan: Plan) -> None:
    """Check that a plan can be carried out: recoverable, with right targets, and its sources as it saw them.

    Raises
    ------
    UnrecoverableError
        When the plan has no step.
    MissingInputError, VerificationError
        When a source is missing or has changed.
    FormatError
        When a target names another rank or step.
    """
    _check_recoverable(plan.step, plan.root)
    check_names(plan)
    with open_store(plan.root) as source:
        for action in plan.actions:
            for replica in action.replicas[:1] if isinstance(action, CopyAction) else action.replicas:
                source.open(replica.path, replica.state).close()


def _check_recoverable(step: _T | None, root: str) -> _T:
    if step is None:
        raise UnrecoverableError(f"{root} cannot be recovered by this plan; it names the ranks")
    return step


def apply_plan(plan: Plan, options: ApplyOptions = ApplyOptions()) -> Outcome:
    """Carry out a plan; an action that fails does not keep the others from being done.

    Outcome and errors are those of `ms_recover.api.apply`.

    Raises
    ------
    FormatError
        When a target of the plan names another rank or step.
    """
    options.step_of(plan)
    check_names(plan)
    return _apply_at_url(plan, options) if is_url(plan.root) else _apply_here(plan, options)


def _apply_at_url(plan: Plan, options: ApplyOptions) -> Outcome:
    with open_store(plan.root) as store:
        sizes = [action.bytes for action in options.actions_of(plan)]
        options = replace(options, jobs=jobs_with_room(sizes, options.jobs, options.scratch))
        destination = StoreDestination(store, options.scratch, verify=options.verify)
        return _Phases(plan, destination, store, options).carry_out()


def _apply_here(plan: Plan, options: ApplyOptions) -> Outcome:
    # Recoveries of some ranks each may run at a time on several nodes; one of all ranks runs alone, or not at all.
    whole, timeout = options.ranks is None, options.lock_timeout
    with lock_tree(plan.root, shared=not whole, timeout=0 if whole else timeout):
        judged = judge_now(plan, ranks=options.ranks, elsewhere=options.sources)
        if judged.one_at_a_time:
            options = replace(options, jobs=1)
        journal = Journal(plan.root) if whole else None
        destination = LocalDestination(
            plan.root,
            follow=plan.follow,
            refused={obstacle.path: obstacle for obstacle in judged.obstacles},
            syncs=DirectorySyncs(),
            journal=journal,
        )
        outcome = _Phases(plan, destination, LocalStore(plan.root), options).carry_out()
        if journal is not None:  # alone in the tree, so that no temporary file belongs to another recovery
            for folder in sorted(_folders(plan, options.actions_of(plan))):
                remove_leftovers(folder)
            journal.close(complete=not outcome.failed)
    return outcome


class _Phases:
    """The phases of a plan: slices, small files, slices that are set aside, documents."""

    def __init__(self, plan: Plan, destination: Destination, tree: Store, options: ApplyOptions) -> None:
        self._plan, self._destination, self._options = plan, destination, options
        self._step, self._stop = options.step_of(plan), threading.Event()
        self._noted = {note.path for note in plan.notes}
        self._context = ActionContext(
            tree=tree,
            elsewhere=options.sources,
            step=self._step,
            world_size=plan.world_size,
            run_id=plan.run_id,
            lost=frozenset(rank.rank for rank in plan.ranks if rank.state == "lost"),
            verify=options.verify,
            stop=lambda: self._stop.is_set() or options.stop(),
            progress=options.progress,
        )

    def carry_out(self) -> Outcome:
        """Carry out the phases, and return what was done, with the gravest exit code."""
        plan, options = self._plan, self._options
        # Slices first. One that fails does not stop the others, which are worth having.
        results, problems = self._write_slices()
        failed = {result.rank for result in results if result.status == "failed"}

        # Lists and records go with their slices: what names a slice that is not there would mislead the next scan.
        group_files, others = self._write_small(plan.group_files, self._write_rank_list, failed)
        meta_files, wrong = self._write_small(plan.meta_files, self._write_meta, failed)
        others += wrong
        strategy_files, wrong = self._write_small(plan.strategy_files, self._write_strategy, failed)
        others += wrong
        others += [Problem.of(error) for error in self._destination.sync(options.jobs)]

        # Newer slices are given up, and the step is announced, only when nothing that comes before has failed.
        aside: list[str] = []
        documents: list[str] = []
        if not failed and not others and plan.step is not None:
            aside, others = self._set_aside()
        if not failed and not others and options.ranks is None:
            documents, others = self._write_documents()

        codes = {problem.exit_code for problem in (*problems, *others)}
        codes |= {VerificationError.exit_code for result in results if result.dropped}
        codes |= {UnrecoverableError.exit_code} if plan.step is None else set()
        return Outcome(
            root=plan.root,
            step=self._step,
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

    def _write_slices(self) -> tuple[list[ActionResult], list[Problem]]:
        """Carry out the actions, wave by wave; the problems are those of actions that failed."""
        actions = self._options.actions_of(self._plan)
        ends: dict[str, Made | Problem] = {}
        for wave in waves_of(actions):
            made = in_threads(self._options.jobs, self._write_slice, wave, self._stop)
            ends |= {action.target: end for action, end in zip(wave, made, strict=True)}
        results, problems = [], []
        for action in actions:
            end = ends[action.target]
            if isinstance(end, Problem):
                problems.append(end)
                results.append(ActionResult.failed(action, end.text))
                continue
            results.append(end.result_of(action))
            if end.kept is not None:
                _log.warning("rank %d: what lay at %s is kept as %s", action.rank, action.target, end.kept)
        return results, problems

    def _write_slice(self, action: Action) -> Made | Problem:
        place = f"rank {action.rank}, {action.target}: "
        end = attempted(partial(write, action, self._destination, self._context), place=place)
        if isinstance(end, Problem):
            _log.error("rank %d: %s", action.rank, end.text)
        return end

    def _write_rank_list(self, due: GroupWrite) -> bool:
        return write_rank_list(self._destination, due, damaged=due.target in self._noted)

    def _write_meta(self, due: MetaWrite) -> bool:
        return write_meta(self._destination, due, self._step)

    def _write_strategy(self, due: StrategyWrite) -> bool:
        return write_strategy_file(self._destination, due, self._context.source(due.source))

    def _write_small(
        self, writes: Sequence[_WriteT], write_one: Callable[[_WriteT], bool], failed: Collection[int]
    ) -> tuple[list[str], list[Problem]]:
        """Write rank lists or records in threads; return the written ones, and the problems."""

        def attempt(due: _WriteT) -> bool | Problem:
            end = attempted(partial(write_one, due), f"writing {due.target}: ")
            if not isinstance(end, Problem):
                _log.info("rank %d: %s %s", due.rank, due.target, "written" if end else "left as it is")
            return end

        due = [one for one in writes if one.rank not in failed and self._options.concerns(one.rank)]
        ends = in_threads(self._options.jobs, attempt, due)
        written = [one.target for one, end in zip(due, ends, strict=True) if end is True]
        return written, [end for end in ends if isinstance(end, Problem)]

    def _set_aside(self) -> tuple[list[str], list[Problem]]:
        """Rename slices of steps that are given up, in threads; return their paths now, and the problems."""

        def attempt(given_up: GivenUpSlice) -> str | Problem | None:
            path = attempted(partial(self._destination.give_up, given_up), f"rank {given_up.rank}: ")
            if isinstance(path, str):
                _log.warning("rank %d: %s is set aside as %s: %s", given_up.rank, given_up.path, path, given_up.reason)
            return path

        own = [given_up for given_up in self._plan.set_aside if self._options.concerns(given_up.rank)]
        ends = in_threads(self._options.jobs, attempt, own)
        return [end for end in ends if isinstance(end, str)], [end for end in ends if isinstance(end, Problem)]

    def _write_documents(self) -> tuple[list[str], list[Problem]]:
        """Write documents in their order, each durable before the next; one that fails keeps the later ones from it."""
        written: list[str] = []
        for due in self._plan.documents:
            end = attempted(partial(write_document, self._destination, due), f"writing {due.target}: ")
            if isinstance(end, Problem):
                return written, [end]
            if end:
                written.append(due.target)
        return written, []


def _folders(plan: Plan, actions: Sequence[Action]) -> set[str]:
    """Return the directories in which slices are kept and recovered."""
    paths = [verdict.path for verdict in plan.ranks if verdict.path is not None]
    paths += [action.target for action in actions]
    return {os.path.dirname(os.path.join(plan.root, path)) for path in paths}
