"""Trials: slices of another step that show whether what is inferred at a step is right."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from ms_recover.model.grouped import grouped
from ms_recover.model.inventory import SliceFile
from ms_recover.model.steps import Step
from ms_recover.planning.claims.layouts import Cut
from ms_recover.planning.judging.judge import judge_part
from ms_recover.planning.judging.judgement import Comparison
from ms_recover.planning.tree.facts import Facts, SliceFacts
from ms_recover.planning.tree.runs import Run


def find_trials(facts: Facts, step: Step, rank: int, needed: Iterable[int] | None = None) -> list[SliceFile]:
    """Return the slices of some ranks, by default all, at the nearest other step of which a rank has a slice.

    Those with a manifest need not be read: it states their contents.
    """
    nearest = next((other for other in _nearest_first(facts, step) if bare_at(facts, other, rank)), None)
    ranks = facts.ranks if needed is None else needed
    return [one.file for other in ranks for one in bare_at(facts, nearest, other)] if nearest is not None else []


def _nearest_first(facts: Facts, step: Step) -> list[Step]:
    """Return the steps before a step, the last one first, and then those behind it."""
    others = (other for other in facts.steps if other != step)
    return sorted(others, key=lambda other: (other < step, other), reverse=True)


def find_layout_trials(facts: Facts, step: Step, stages: Iterable[int], shown: Collection[int]) -> list[SliceFile]:
    """Return slices that show at another step whether the layouts of stages are right, where none of a step show it.

    Two ranks show it that hold the same of a parameter by the layouts, and are of different rank lists; at the step
    only those that are `shown`, whose slices are right or differ with nothing to settle it.
    """
    trials: list[SliceFile] = []
    for stage in sorted(set(stages)):
        ranks = [rank for rank in facts.stages.ranks(stage) if rank not in facts.lost]
        showing = [rank for rank in ranks if rank in shown]
        cuts = [cut for cut in facts.stages.cuts.get(stage, ()) if not _comparable(facts, cut, showing)]
        for other in _nearest_first(facts, step) if cuts else ():
            bare = [rank for rank in ranks if bare_at(facts, other, rank)]
            pairs = {rank for cut in cuts for rank in _comparable(facts, cut, bare)}
            if pairs:
                trials += [slice_.file for rank in sorted(pairs) for slice_ in bare_at(facts, other, rank)]
                break
    return trials


def _comparable(facts: Facts, cut: Cut, ranks: Iterable[int]) -> list[int]:
    """Return those of some ranks that hold the same of a cut as another one that is not of their rank list."""
    cells = grouped(ranks, lambda rank: cut.parts[rank % facts.stages.devices])
    alike = [held for held in cells.values() if len({facts.groups.of(rank) for rank in held}) > 1]
    return [rank for held in alike for rank in held]


def trials_of(compared: Comparison, step: Step, run: Run) -> list[SliceFile]:
    """Return the trials of each slice of a step that is outvoted, and those of the layouts of all stages."""
    judged = judge_part(compared, step, run).slices
    facts = compared.facts
    doubted = (slice_.rank for slice_ in facts.counted_at(step) if judged[slice_.path].status == "suspect")
    trials = [file for rank in doubted for file in find_trials(facts, step, rank)]
    shown = {slice_.rank for slice_ in facts.counted_at(step) if judged[slice_.path].status in ("sound", "undecided")}
    return trials + find_layout_trials(facts, step, facts.stages.layouts, shown)


def bare_at(facts: Facts, step: Step, rank: int) -> list[SliceFacts]:
    """Return a rank's slices of a step of sound structure without a manifest."""
    return [one for one in facts.at(step, rank) if one.manifest is None and one.file.problem is None]
