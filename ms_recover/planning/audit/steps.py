"""The steps that can be recovered as things are, each with who holds what."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from ms_recover.model.plan import RejectedStep, StepAssessment
from ms_recover.model.steps import Step
from ms_recover.planning.audit.blocks import NOTHING_TIED, StepHolders, join_parts
from ms_recover.planning.audit.holders import find_holders
from ms_recover.planning.choice import AssessedPart, assess_candidate, candidates_of, judge_each
from ms_recover.planning.judging.judgement import Comparison
from ms_recover.planning.judging.parts import Parts, kind_of
from ms_recover.planning.tree.candidates import Candidate


def steps_of_tree(tree: Parts) -> Iterator[StepHolders]:
    """Yield the steps that a plan may be for, newest first; one at which replicas differ is the last that is tried.

    Older steps at which no slice is sound that is not at a newer one are passed over: each loss that is fatal there is
    fatal here.
    """
    known: list[AssessedPart] = []
    ties = NOTHING_TIED

    def worth_judging() -> Iterator[Candidate | RejectedStep]:
        for one in candidates_of(tree.facts):
            if isinstance(one, Candidate) and not any(_adds_nothing(newer, one.step) for newer in known):
                yield one

    for judged in judge_each(worth_judging(), partial(assess_candidate, tree)):
        if isinstance(judged, RejectedStep) or judged.why is not None:
            continue
        parts = judged.value.parts
        known += [one for one in parts if kind_of(one.compared) is None and _is_whole(one.compared, one.assessment)]
        held = join_parts([find_holders(one.supply, ties) for one in parts])
        ties = held.ties
        yield held


def _is_whole(compared: Comparison, found: StepAssessment) -> bool:
    """Whether every rank keeps its one slice of a step, and all of them are replicas as their groups say."""
    step, structure = found.step, compared.structure
    held = compared.facts.steps[step]
    return (
        len(held) == compared.facts.world.ranks
        and all(one.verdict == "keep" for one in found.ranks)
        and all(len(slices) == 1 and slices[0].file.problem is None for slices in held.values())
        and step not in structure.deduplicated
        and not any(one == step for _, one in structure.conflicts)
    )


def _adds_nothing(newer: AssessedPart, step: Step) -> bool:
    """Whether each rank lists at a whole newer step what it lists at a step."""
    steps = newer.compared.facts.steps
    here, there = steps.get(step, {}), steps[newer.assessment.step]
    return all(one.listed == there[rank][0].listed for rank, slices in here.items() for one in slices)
