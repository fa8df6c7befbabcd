"""Every step of a tree judged as a plan would judge it, for an overview; a plan stops at the first that it can take."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace

from ms_recover.model.contents import Contents
from ms_recover.model.inventory import Inventory
from ms_recover.model.options import PlanOptions
from ms_recover.model.report import JudgedStep
from ms_recover.model.steps import Step
from ms_recover.planning.facts import Facts
from ms_recover.planning.judging.judgement import Comparison
from ms_recover.planning.plan_parts import Parts, join_ranks, try_parts
from ms_recover.planning.planner import Planned, try_step


def judge_every_step(
    inventory: Inventory, options: PlanOptions, planned: Planned, contents: Contents, most: int
) -> tuple[JudgedStep, ...]:
    """Return the verdict of each rank at the newest `most` steps of a planned tree, newest first.

    What `contents`, with which the plan was made, lack is judged by headers and manifests.

    Raises
    ------
    UsageError
        When the world size in the options is that of no iteration, or a lost rank is outside the world.
    """
    steps = inventory.steps[:most]
    if not inventory.iterations:
        return tuple(_judge_step(planned.compared, step) for step in steps)
    parts = Parts(inventory, replace(options, step=None), contents)
    return tuple(_judge_iteration(parts, step) for step in steps)


def number_groups(planned: Planned) -> tuple[int, ...]:
    """Return for each rank the number of its group, in the order of first ranks; by lists, else by layouts."""
    found: dict[Hashable, int] = {}
    return tuple(found.setdefault(_group(planned.facts, rank), len(found)) for rank in range(planned.plan.world_size))


def _judge_step(compared: Comparison, step: Step) -> JudgedStep:
    tried = try_step(compared, step)
    shown = tried.shown
    return JudgedStep(step=step, ranks=shown.ranks, recoverable=tried.found is not None, run_id=shown.run_id)


def _judge_iteration(parts: Parts, step: Step) -> JudgedStep:
    tried = try_parts(parts, step)
    run_id = next((one.shown.run_id for _, _, one in tried.parts if one.shown.run_id is not None), None)
    return JudgedStep(step=step, ranks=join_ranks(tried), recoverable=tried.found, run_id=run_id)


def _group(facts: Facts, rank: int) -> Hashable:
    if facts.groups.knows(rank):
        return facts.groups.of(rank)
    stages = facts.stages
    cuts = stages.cuts.get(stages.of(rank), ())
    if not cuts:
        return rank
    return stages.of(rank), tuple(cut.parts[rank % stages.devices] for cut in cuts)
