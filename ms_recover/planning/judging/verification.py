"""Judge every slice of a tree, for verify and seal."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ms_recover.file_names import STATE_SUFFIX
from ms_recover.model.inventory import Note
from ms_recover.model.steps import Step
from ms_recover.model.verification import MissingRanks, SliceCheck, Verification
from ms_recover.planning.judging.judge import judge_step
from ms_recover.planning.judging.judgement import Comparison, Judgement
from ms_recover.planning.tree.candidates import every_run
from ms_recover.planning.tree.facts import Facts, SliceFacts


@dataclass(frozen=True, kw_only=True)
class TreeJudgement:
    """The worth of every slice of one step, or of all, newest step first, then by rank and path."""

    slices: tuple[tuple[SliceFacts, Judgement], ...]
    disagreements: tuple[str, ...]


def judge_slices(compared: Comparison, *, sealing: bool = True) -> TreeJudgement:
    """Judge the slices of one step, or of all, each among those of its own run; see `judge_step` for `sealing`.

    A rank without a slice of the step's main run has foreign slices only.
    """
    facts = compared.facts
    judged: list[tuple[SliceFacts, Judgement]] = []
    disagreements: list[str] = []
    for step in _steps(facts):
        best: dict[str, Judgement] = {}
        main: set[int] = set()
        here = facts.steps.get(step, {})
        for run in every_run(facts, step):
            judgement = judge_step(compared, step, run, sealing=sealing)
            disagreements += [f"step {step}: {text}" for _, text in sorted(judgement.disagreements.items())]
            if not best:
                best = dict(judgement.slices)
                main = {rank for rank, of_rank in here.items() if any(_counts(slice_, best) for slice_ in of_rank)}
            for slice_ in (slice_ for rank in main for slice_ in here[rank] if not _counts(slice_, best)):
                best[slice_.path] = judgement.slices[slice_.path]
        slices = (slice_ for of_rank in here.values() for slice_ in of_rank if slice_.path in best)
        judged += [
            (slice_, best[slice_.path]) for slice_ in sorted(slices, key=lambda slice_: (slice_.rank, slice_.path))
        ]
    return TreeJudgement(slices=tuple(judged), disagreements=tuple(disagreements))


def _steps(facts: Facts) -> list[Step]:
    wanted = facts.options.step
    return sorted(facts.steps, reverse=True) if wanted is None else [wanted]


def _counts(one: SliceFacts, judged: dict[str, Judgement]) -> bool:
    return one.path in judged and judged[one.path].status != "foreign"


def join_verifications(root: str, parts: Sequence[Verification], documents: tuple[Note, ...] = ()) -> Verification:
    """Return the verification of a tree from those of its parts, and what is wrong with the documents beside them."""
    if len(parts) == 1 and not documents:
        return parts[0]
    missing: dict[Step, set[int]] = defaultdict(set)
    for part in parts:
        for absent in part.missing:
            missing[absent.step].update(absent.ranks)
    return Verification(
        root=root,
        checks=_newest_first(check for part in parts for check in part.checks),
        disagreements=tuple(dict.fromkeys(text for part in parts for text in part.disagreements)),
        missing=tuple(MissingRanks(step, tuple(sorted(missing[step]))) for step in sorted(missing, reverse=True)),
        documents=documents,
        states=tuple(note for part in parts for note in part.states),
    )


def make_verification(compared: Comparison, *, sealing: bool = False) -> Verification:
    """Return the worth of every slice of a tree, or of one step; a slice that is not there is wrong as well.

    What lies beside the slice that was recovered for it, in the other format, is passed over.
    """
    facts = compared.facts
    judged = judge_slices(compared, sealing=sealing)
    checks = [
        SliceCheck(
            rank=slice_.rank,
            step=slice_.file.step,
            path=slice_.path,
            status=judgement.status,
            evidence=judgement.evidence,
            reason=judgement.reason,
        )
        for slice_, judgement in judged.slices
        if judgement.status != "replaced"
    ]
    # A slice that is not there is wrong as well, where the rank was given a shard; sealing needs none.
    missing = []
    for step in _steps(facts):
        here = facts.steps.get(step, {})
        idle = facts.idle(step)
        absent = tuple(rank for rank in range(facts.world.ranks) if rank not in here and rank not in idle)
        place = next((of_rank[0].file.place for _, of_rank in sorted(here.items())), None)
        place = facts.inventory.part.places.get(step, place)
        if absent and not sealing:
            missing.append(MissingRanks(step, absent))
        for rank in absent:
            note = facts.denied.get(rank)
            if note is not None or not sealing:
                checks.append(
                    SliceCheck(
                        rank=rank,
                        step=step,
                        path=note.path if note is not None else place.of(rank) if place is not None else "",
                        status="unreadable" if note is not None else "missing",
                        evidence="structure",
                        reason=note.reason if note is not None else f"rank {rank} has no slice of step {step}",
                    )
                )
    # What a callback keeps beside a slice is lost with it: it counts beside sound ones alone.
    states = tuple(
        Note(slice_.path + STATE_SUFFIX, slice_.state_problem)
        for slice_, judgement in judged.slices
        if judgement.status == "sound" and slice_.state_problem is not None and not sealing
    )
    return Verification(
        facts.inventory.root, _newest_first(checks), judged.disagreements, tuple(missing), states=states
    )


def _newest_first(checks: Iterable[SliceCheck]) -> tuple[SliceCheck, ...]:
    return tuple(sorted(checks, key=lambda check: (-check.step.epoch, -check.step.step, check.rank, check.path)))
