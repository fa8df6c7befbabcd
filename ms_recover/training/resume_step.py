"""The step to resume from: the newest one whose slice every rank has or can get, and has proven."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from ms_recover import api
from ms_recover.errors import MsRecoverError, UnrecoverableError, VerificationError
from ms_recover.model.compose import ComposeAction
from ms_recover.model.inventory import Inventory
from ms_recover.model.options import ScanOptions
from ms_recover.model.rank_local import MOST_NAMED, why_refused
from ms_recover.model.steps import Step
from ms_recover.model.texts import list_some
from ms_recover.planning.plan.planner import plan_for_rank
from ms_recover.stores.places import look_at_folder
from ms_recover.training.deciding.job import TrainingJob
from ms_recover.training.deciding.own_slice import OwnSlice
from ms_recover.training.rank_view import RankView
from ms_recover.training.set_aside import set_all_aside

_log = logging.getLogger(__name__)

_LONGEST_REASON = 1000
"""Characters of the reason of another rank."""

Offer = tuple[int, Step]
"""The place of a run in the lineage, and a step of it: the order in which steps were trained."""

Offers = Mapping[Offer, bool]
"""What a rank can be brought to, and whether it has its own states there, or such as are equal to them."""


def obtain_resume_slice(job: TrainingJob, view: RankView, root: str) -> tuple[RankView, OwnSlice | None]:
    """Find the newest step that every rank proves, and obtain this rank's slice of it; None when there is no slice.

    A damaged slice is replaced from another rank. Where no rank has a sound one, all ranks go back to the next older
    step. All ranks call this function.

    Raises UnrecoverableError when there are slices, but no such step, VerificationError when replicas differ and
    nothing shows which is right, and MsRecoverError when a copy failed on any rank.
    """
    while (found := find_common_step(job, view, root)) is not None:
        view, step = found
        view = job.run_together(f"getting the slice of step {step}", partial(obtain_slice, view, step))
        answers = job.gather([step in view.available_steps, view.run_fingerprint(step)], f"resuming from step {step}")
        if len({fingerprint for _, fingerprint in answers if fingerprint}) > 1:
            view = view.withdraw(step, "its slices are of different runs")
            _log.warning("rank %d, step %s: %s; trying an older step", job.rank, step, view.withdrawn[step])
        elif all(available for available, _ in answers):
            return view, view.own_slice(step)
    return view, None


def find_common_step(job: TrainingJob, view: RankView, root: str) -> tuple[RankView, Step] | None:
    """Return the step to resume from of those that every rank has or can get; None when no rank sees any slice.

    That is the newest one at which every rank has its own states, else the newest one. All ranks call this function.
    The view that is returned has the step that was passed over. Raises UnrecoverableError when there are slices, but no
    such step.
    """
    steps = view.available_steps
    counts = job.gather([len(steps), view.has_slices], "choosing the step to resume from")
    if not any(seen for _, seen in counts):
        return None
    width = max(available for available, _ in counts)
    own = [not view.takes_other_states(step) for step in steps]
    offered = zip(steps, own, strict=True)
    flat = [number for step, has in offered for number in (view.generation(step), step.epoch, step.step, has)]
    rows = job.gather([*flat, *[0] * (4 * width - len(flat)), 0], "choosing the step to resume from")
    offers = [
        {
            (row[place], Step(row[place + 1], row[place + 2])): bool(row[place + 3])
            for place in range(0, 4 * available, 4)
        }
        for row, (available, _) in zip(rows, counts, strict=True)
    ]
    newest = newest_common_step(offers)
    if newest is None:
        raise UnrecoverableError(_why_none(job, [[step for _, step in offer] for offer in offers], view, root))
    step = step_with_states(offers) or newest
    if step == newest:
        return replace(view, back_from=None), step[1]
    lacking = tuple(rank for rank, offer in enumerate(offers) if not offer[newest])
    if view.back_from is None and (job.rank in lacking or job.rank == 0):
        _log.warning("rank %d: %s", job.rank, back_text(newest[1], lacking, step[1]))
    return replace(view, back_from=(newest[1], lacking)), step[1]


def newest_common_step(offers: Sequence[Iterable[Offer]]) -> Offer | None:
    """Return the newest step that every rank offers, None when there is none."""
    return max(set(offers[0]).intersection(*offers[1:]), default=None)


def step_with_states(offers: Sequence[Offers]) -> Offer | None:
    """Return the newest step at which every rank has its own states; None when there is none."""
    return newest_common_step([{step: True for step, has in offer.items() if has} for offer in offers])


def back_text(newest: Step, lacking: Sequence[int], step: Step) -> str:
    """Return why training goes back to an older step than the newest one."""
    return (
        f"at step {newest} the states of rank(s) {list_some(lacking)} (random generators, callbacks, extra) "
        "are lost, and differ from those of other ranks: all ranks go back to "
        f"step {step}, where each has its own; rank_local='peer' stays at step {newest} with those of another rank"
    )


def obtain_slice(view: RankView, step: Step) -> RankView:
    """Prove this rank's slice of an available step, or copy or compose it from other ranks.

    The step is available in the returned view if the rank has a sound slice now. Raises VerificationError when replicas
    differ and nothing shows which is right, and MsRecoverError when the slice could not be copied or composed for
    another reason than wrong contents.
    """
    before = view.verdict(step).verdict
    view = view.prove(step)
    verdict = view.verdict(step)
    if verdict.verdict != before:
        _log.warning("rank %d, step %s: %s", view.rank, step, verdict.reason)
    if verdict.verdict == "unrecoverable":
        return view
    own, lost = view.own_slice(step), view.lost_values(step)
    if lost and view.rank_local == "refuse":
        why = why_refused(lost, view.rank)
        level = logging.INFO if why in view.withdrawn.values() else logging.WARNING  # each older step has lost the same
        _log.log(level, "rank %d, step %s: %s; trying an older step", view.rank, step, why)
        return view.withdraw(step, why)
    unshown = view.why_not_shown(step)
    if lost and view.rank_local == "initial":
        _log.warning("%s: %s are left as the network begins with them", own, list_some(lost, MOST_NAMED))
    if verdict.verdict == "keep":
        _log.log(logging.WARNING if view.lends(step) else logging.INFO, "%s: %s", own, verdict.reason)
        return view
    if not may_be_written(os.path.dirname(own.path)):
        why = f"{os.path.dirname(own.path)} may only be read, so the slice cannot be put there: {verdict.reason}"
        _log.warning("%s: %s; trying an older step", own, why)
        return view.withdraw(step, why)
    try:
        source = _recover_slice(view, step, own)
    except VerificationError as error:
        _log.warning("%s: %s; trying an older step", own, error)
        return view.withdraw(step, str(error), outdated=True)
    how = "copied from" if verdict.verdict == "copy" else "composed from slices of several ranks, first"
    _log.warning("%s: %s rank %d; %s", own, how, source, verdict.reason)
    if unshown is not None:
        _log.warning("step %s: %s", step, unshown)
    return replace(view, source_ranks={**view.source_ranks, step: source}, outdated=True)


def _recover_slice(view: RankView, step: Step, own: OwnSlice) -> int:
    """Apply the action of this rank alone; return the rank whose slice it used, the first of several."""
    plan = plan_for_rank(view.compared, view.assessments[step], view.rank)
    outcome = api.apply(plan, ranks={view.rank})
    (result,) = outcome.results
    for error in [*([result.error] if result.error else []), *outcome.errors]:
        kind = VerificationError if outcome.exit_code == VerificationError.exit_code else MsRecoverError
        raise kind(f"{own}: not copied: {error}")
    if result.source_rank is not None:
        return result.source_rank
    (action,) = plan.actions
    assert isinstance(action, ComposeAction)
    return action.source_ranks[0]


def supersede_newer_slices(view: RankView, step: Step) -> None:
    """Rename this rank's slices that are newer than the step that training resumes from, with their manifests.

    Where another run was chosen, those of runs that were started later as well: the choice stays made. In directories
    that may only be read they stay, and nothing can be saved beside them.

    Raises StorageError when the file system refuses.
    """
    why = f"newer than step {step}, from which training goes on"
    if view.lineage is not None and view.lineage.chosen:
        why += f", or of later runs than {view.lineage.last.text}, which was chosen"
    set_all_aside(view.rank, _newer(view, step), why)


def _newer(view: RankView, step: Step) -> Iterator[tuple[str, Step]]:
    """Yield the slices to set aside, with their steps; each is renamed before the next one."""
    inventory = _scan_again(view) if view.outdated else view.inventory
    stay: set[str] = set()
    while newer := [one for one in inventory.slices if view.is_set_aside(one, step) and one.path not in stay]:
        for one in newer:
            path = os.path.join(inventory.root, one.path)
            if may_be_written(os.path.dirname(path)):
                yield path, one.step
            else:
                stay.add(one.path)
        inventory = _scan_again(view)  # a scan shows one of several equal slices
    if stay:
        _log.warning(
            "rank %d: %d slices that are newer than step %s stay under %s, which may only be read: save elsewhere",
            view.rank,
            len(stay),
            step,
            inventory.root,
        )


def may_be_written(folder: str) -> bool:
    """Whether files of a directory, which may have to be made, can be made and renamed."""
    facts, _ = look_at_folder(folder)
    return facts.writable and facts.fault is None


def _scan_again(view: RankView) -> Inventory:
    options = ScanOptions(pattern=view.scanning.pattern, crc=False, may_be_empty=True)
    return api.scan(view.inventory.root, options)


def _why_none(job: TrainingJob, offers: Sequence[Sequence[Step]], view: RankView, root: str) -> str:
    """Name the steps that each rank can be brought to, and why ranks have no others; all ranks call it together."""
    by_offer: dict[tuple[Step, ...], list[int]] = {}
    for rank, steps in enumerate(offers):
        by_offer.setdefault(tuple(steps), []).append(rank)
    have = list_some(
        (f"rank(s) {list_some(ranks)}: {list_some(steps) or 'none'}" for steps, ranks in by_offer.items()),
        separator="; ",
    )
    lacks = _why_lacking(view.unavailable_steps)
    stated = job.gather_text(lacks[:_LONGEST_REASON], "saying why no step can be resumed")
    others = [f"rank {rank} lacks {text}" for rank, text in enumerate(stated) if text and rank != view.rank]
    reasons = ([f"rank {view.rank} lacks {lacks}"] if lacks else []) + others[:1]
    return (
        f"there is no step under {root} that every rank can be brought to ({have})"
        + "".join(f"; {reason}" for reason in reasons)
        + f"; see: recover-ckpt plan {root}"
    )


def _why_lacking(reasons: Mapping[Step, str]) -> str:
    """Return the reasons why a rank lacks steps, each once."""
    by_reason: dict[str, list[Step]] = {}
    for step, reason in reasons.items():
        by_reason.setdefault(reason, []).append(step)
    return list_some((f"step {list_some(steps)}: {reason}" for reason, steps in by_reason.items()), separator="; ")
