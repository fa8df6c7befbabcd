"""The verb complete: a full slice where each of several ranks saved a part, as ``remove_redundancy=True`` does."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from ms_recover.errors import UnrecoverableError, UsageError, VerificationError
from ms_recover.execution.compose import complete_slice
from ms_recover.execution.destination import LocalDestination, StoreDestination
from ms_recover.file_names import WEIGHT_KINDS, WeightKind
from ms_recover.model.inventory import Inventory
from ms_recover.model.options import DEFAULT_PLAN, PlanOptions
from ms_recover.model.plan import texts_of_passed_over
from ms_recover.model.progress import Progress
from ms_recover.model.steps import Step
from ms_recover.planning.choice import Judged, candidates_of, choose, judge_runs, refuse_empty
from ms_recover.planning.plan.explain import judge_complete
from ms_recover.planning.tree.candidates import text_of_others
from ms_recover.planning.tree.runs import Run
from ms_recover.stores.local_store import LocalStore
from ms_recover.stores.urls import is_url, open_plain, open_store
from ms_recover.verbs.session import Kinds, Session

if TYPE_CHECKING:
    from ms_recover.model.compose import ComposeAction
    from ms_recover.model.outcome import ActionResult

_log = logging.getLogger(__name__)


def complete(  # noqa: PLR0913 (the keywords of programs)
    inventory: Inventory,
    rank: int,
    options: PlanOptions = DEFAULT_PLAN,
    *,
    output: str | None = None,
    jobs: int = 1,
    verify: bool = True,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> ActionResult:
    """Write a full slice for a rank from its own and its peers' parts, as ``remove_redundancy=True`` leaves them.

    Parameters
    ----------
    inventory, jobs, progress, verify
        As for `plan` and `apply`.
    options : PlanOptions
        Its `step` by default is the newest of the run, by default of the present one, that lacks no parameter of the
        rank; one at which replicas differ is the last that is tried.
    output : str, optional
        File to write, or its URL; by default ``{name}.complete.ckpt`` (or ``.safetensors``) in the rank's directory.
    dry_run : bool
        Write nothing: the result has the bytes that would be written, errors are the same.

    Raises
    ------
    UnrecoverableError
        When a parameter has no source; the message names it.
    VerificationError
        When it has none because replicas differ, with nothing to settle who is right.
    UsageError
        When `output` exists, or the tree has iterations: see `complete_iteration`.
    MissingInputError, ContradictionError, StorageError
        As `plan` and `apply` do.
    """
    if inventory.iterations:
        raise UsageError(f"{inventory.root} holds iterations, whose slices are several files: use complete_iteration")
    (result,) = complete_iteration(
        inventory, rank, options, output=output, jobs=jobs, verify=verify, dry_run=dry_run, progress=progress
    )
    return result


def complete_iteration(  # noqa: PLR0913 (the keywords of programs)
    inventory: Inventory,
    rank: int,
    options: PlanOptions = DEFAULT_PLAN,
    *,
    kinds: Sequence[WeightKind] = WEIGHT_KINDS,
    output: str | None = None,
    jobs: int = 1,
    verify: bool = True,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> tuple[ActionResult, ...]:
    """Do what `complete` does for each file of a slice: of an iteration its model file and its optimizer file.

    Of these only some `kinds`, if they are given; where a slice is one file they say nothing. An `output` is
    for one file.

    Raises
    ------
    MsRecoverError
        As `complete` does; nothing is written unless all files can be.
    """
    present = [kind for kind in (*kinds, None) if any(file.kind == kind for file in inventory.slices)] or kinds
    if output is not None and len(present) > 1:
        raise UsageError(f"{output} is one file, and a slice of an iteration is two: name one of the kinds")
    session = Session(inventory, options, jobs=jobs, progress=progress)
    return _write(inventory.root, _find_actions(session, rank, present), output, verify=verify, dry_run=dry_run)


def _find_actions(session: Session, rank: int, kinds: Kinds) -> tuple[ComposeAction, ...]:
    """Return what composes each file of a rank, of the newest step at which all can be; other ranks may have none.

    Errors are those of `complete`.
    """
    facts, root = session.facts, session.inventory.root

    def judge(step: Step, run: Run) -> Judged[tuple[ComposeAction, ...]]:
        session.read_step(step, run, kinds)
        return judge_complete(session.compared(step, kinds), step, run, rank, len(kinds))

    choice = choose(candidates_of(facts), partial(judge_runs, judge=judge), partial(refuse_empty, facts))
    if not choice.found:
        why = "; ".join(f"step {passed.step}: {passed.reason}" for passed in choice.rejected)
        kind = VerificationError if choice.shown.disputed else UnrecoverableError
        raise kind(f"no full slice for rank {rank} of {root}; {why}")
    if (others := text_of_others(facts)) is not None:
        _log.warning("%s: %s", root, others)
    for text in texts_of_passed_over(choice.rejected):
        _log.warning("%s: %s; step %s is taken", root, text, choice.shown.step)
    return choice.shown.value


def _write(
    root: str, actions: Sequence[ComposeAction], output: str | None, *, verify: bool, dry_run: bool
) -> tuple[ActionResult, ...]:
    """Write full slices, or say what would be written."""
    with ExitStack() as stack:
        tree = target = stack.enter_context(open_store(root))
        name = None
        if output is not None and is_url(output):
            folder, _, name = output.rpartition("/")
            target = stack.enter_context(open_plain(folder))
        elif output is not None and not isinstance(tree, LocalStore):
            folder, name = os.path.split(os.path.abspath(output))
            target = stack.enter_context(open_plain(folder))
        elif output is not None:
            name = os.path.abspath(output)
        here = isinstance(target, LocalStore)
        destination = LocalDestination(target.url) if here else StoreDestination(target, verify=verify)
        results = []
        for action in actions:
            own = action if name is None else replace(action, target=name)
            result = complete_slice(own, tree, destination, verify=verify, dry_run=dry_run)
            results.append(result if name is None else replace(result, target=destination.path(name)))
        return tuple(results)
