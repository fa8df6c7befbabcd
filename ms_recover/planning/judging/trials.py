"""Trials: slices of another step that show whether what is inferred at a step is right."""

from __future__ import annotations

from collections.abc import Iterable

from ms_recover.model.inventory import SliceFile
from ms_recover.model.steps import Step
from ms_recover.planning.facts import Facts, SliceFacts
from ms_recover.planning.judging.judge import judge_step
from ms_recover.planning.judging.judgement import Comparison
from ms_recover.planning.runs import Run


def find_trials(facts: Facts, step: Step, rank: int, needed: Iterable[int] | None = None) -> list[SliceFile]:
    """Return the slices of some ranks, by default all, at the nearest other step of which a rank has a slice.

    Those with a manifest need not be read: it states their contents.
    """
    nearest = sorted(facts.steps, key=lambda other: (other < step, other), reverse=True)
    there = next((other for other in nearest if other != step and bare_at(facts, other, rank)), None)
    ranks = facts.ranks if needed is None else needed
    return [one.file for other in ranks for one in bare_at(facts, there, other)] if there is not None else []


def trials_of(compared: Comparison, step: Step, run: Run) -> list[SliceFile]:
    """Return the trials of each slice of a step that is outvoted."""
    judged = judge_step(compared, step, run).slices
    facts = compared.facts
    doubted = (one.rank for one in facts.counted_at(step) if judged[one.path].status == "suspect")
    return [file for rank in doubted for file in find_trials(facts, step, rank)]


def bare_at(facts: Facts, step: Step, rank: int) -> list[SliceFacts]:
    """Return a rank's slices of a step of sound structure without a manifest."""
    return [one for one in facts.at(step, rank) if one.manifest is None and one.file.problem is None]
