"""Carry out a plan: its actions in threads, each independent and safe to repeat."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from ms_recover.errors import MsRecoverError
from ms_recover.execution.apply_store import apply_at_url
from ms_recover.execution.context import ActionContext
from ms_recover.execution.documents import write_document
from ms_recover.execution.journal import Journal
from ms_recover.execution.lock import lock_tree
from ms_recover.execution.meta_files import write_meta
from ms_recover.execution.phases import ApplyOptions, Place, carry_out, check_recoverable
from ms_recover.execution.rank_lists import write_planned
from ms_recover.execution.set_aside import give_up
from ms_recover.execution.strategy_files import write_strategy_file
from ms_recover.execution.targets import check_place, check_refused, judge_now
from ms_recover.formats.plan_paths import check_names
from ms_recover.model.actions import CopyAction
from ms_recover.model.outcome import Outcome
from ms_recover.model.plan import Action, DocumentWrite, GivenUpSlice, GroupWrite, MetaWrite, Plan, StrategyWrite
from ms_recover.model.steps import Step
from ms_recover.stores.atomic import leftovers, remove_unlocked
from ms_recover.stores.directories import DirectorySyncs
from ms_recover.stores.local_store import LocalStore
from ms_recover.stores.urls import is_url, open_store

_log = logging.getLogger(__name__)


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
    check_recoverable(plan.step, plan.root)
    check_names(plan)
    with open_store(plan.root) as source:
        for action in plan.actions:
            for replica in action.replicas[:1] if isinstance(action, CopyAction) else action.replicas:
                source.open(replica.path, replica.state).close()


def apply_plan(plan: Plan, options: ApplyOptions = ApplyOptions()) -> Outcome:  # noqa: B008 (frozen)
    """Carry out a plan; an action that fails does not keep the others from being done.

    Outcome and errors are those of `ms_recover.api.apply`.

    Raises
    ------
    FormatError
        When a target of the plan names another rank or step.
    """
    if is_url(plan.root):
        return apply_at_url(plan, options)
    step = options.step_of(plan)
    check_names(plan)
    # Recoveries of some ranks each may run at a time on several nodes; one of all ranks runs alone, or not at all.
    whole, timeout = options.ranks is None, options.lock_timeout
    with lock_tree(plan.root, shared=not whole, timeout=0 if whole else timeout):
        judged = judge_now(plan, ranks=options.ranks, elsewhere=options.sources)
        if judged.one_at_a_time:
            options = replace(options, jobs=1)
        context = ActionContext(
            root=plan.root,
            follow=plan.follow,
            refused={obstacle.path: obstacle for obstacle in judged.obstacles},
            elsewhere=options.sources,
            step=step,
            world_size=plan.world_size,
            run_id=plan.run_id,
            lost=frozenset(rank.rank for rank in plan.ranks if rank.state == "lost"),
            verify=options.verify,
            syncs=DirectorySyncs(),
            journal=Journal(plan.root) if whole else None,
            progress=options.progress,
            stop=options.stop,
        )
        outcome = carry_out(plan, step, _Directory(plan, step, context), options)
        if context.journal is not None:  # alone in the tree, so that no temporary file belongs to another recovery
            for folder in sorted(_folders(plan, options.actions_of(plan))):
                _remove_leftovers(folder)
            context.journal.close(complete=not outcome.failed)
    return outcome


class _Directory(Place):
    """A tree in a directory of this host."""

    def __init__(self, plan: Plan, step: Step, context: ActionContext) -> None:
        self.context, self._step = context, step
        self._root, self._follow = plan.root, plan.follow
        self._noted = {note.path for note in plan.notes}

    def write_rank_list(self, write: GroupWrite) -> bool:
        check_refused(write.target, self.context.refused)
        damaged, syncs = write.target in self._noted, self.context.syncs
        return write_planned(self._root, write, damaged=damaged, follow=self._follow, syncs=syncs)

    def write_meta(self, write: MetaWrite) -> bool:
        check_refused(write.target, self.context.refused)
        return write_meta(self._root, write, self._step, follow=self._follow, syncs=self.context.syncs)

    def write_strategy(self, write: StrategyWrite) -> bool:
        check_refused(write.target, self.context.refused)
        source = self.context.source(write.source)
        return write_strategy_file(self._root, write, source, follow=self._follow, syncs=self.context.syncs)

    def write_document(self, write: DocumentWrite) -> bool:
        return write_document(self._root, write, self._follow)

    def set_aside(self, given_up: GivenUpSlice) -> str | None:
        check_place(self._root, given_up.path, given_up.rank, self._follow)
        return give_up(LocalStore(self._root), given_up)

    def sync(self, jobs: int) -> list[MsRecoverError]:
        assert self.context.syncs is not None
        return self.context.syncs.sync_all(jobs)


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
