"""The steps that can be recovered as things are, each with who holds what."""

from __future__ import annotations

from collections.abc import Iterator

from ms_recover.model.plan import StepAssessment
from ms_recover.model.steps import Step
from ms_recover.planning.audit.blocks import NOTHING_TIED, StepHolders, join_parts
from ms_recover.planning.audit.holders import find_holders
from ms_recover.planning.judging.judgement import Comparison
from ms_recover.planning.plan_parts import Parts, try_parts
from ms_recover.planning.planner import try_step


def steps_of_tree(compared: Comparison) -> Iterator[StepHolders]:
    """Yield the steps that a plan may be for, newest first; one at which replicas differ is the last that is tried.

    Older steps at which no slice is sound that is not at a newer one are passed over: each loss that is fatal there is
    fatal here.
    """
    facts, options = compared.facts, compared.facts.options
    known: list[Step] = []
    ties = NOTHING_TIED
    for step in (options.step,) if options.step is not None else facts.newest_first:
        if options.step is None and (facts.why_older(step) is not None or facts.why_unhealthy(step) is not None):
            continue
        if any(_adds_nothing(compared, newer, step) for newer in known):
            continue
        tried = try_step(compared, step)
        if tried.found is not None:
            if _is_whole(compared, tried.found):
                known.append(step)
            held = find_holders(compared, step, tried.run, ties)
            ties = held.ties
            yield held
        elif tried.undecided:
            return


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


def _adds_nothing(compared: Comparison, newer: Step, step: Step) -> bool:
    """Whether each rank lists at a whole newer step what it lists at a step."""
    here, there = compared.facts.steps.get(step, {}), compared.facts.steps[newer]
    return all(one.listed == there[rank][0].listed for rank, slices in here.items() for one in slices)


def steps_of_parts(parts: Parts) -> Iterator[StepHolders]:
    """Yield the same of a tree of iterations, in which the slice of a rank is several files."""
    inventory, options = parts.inventory, parts.options
    for step in (options.step,) if options.step is not None else inventory.steps:
        if options.world_size not in (None, parts.world(step).ranks):
            continue
        if options.step is None and parts.why_outside(step) is not None:
            continue
        tried = try_parts(parts, step)
        if tried.found:
            yield join_parts([find_holders(compared, step, one.run) for _, compared, one in tried.parts])
        elif tried.undecided:
            return
