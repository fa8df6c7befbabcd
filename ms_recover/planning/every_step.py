"""Every step of a tree judged as a plan would judge it, for an overview; a plan stops at the first that it can take."""

from __future__ import annotations

from collections.abc import Hashable

from ms_recover.model.report import JudgedStep
from ms_recover.planning.choice import assess_candidate
from ms_recover.planning.facts import Facts
from ms_recover.planning.judging.parts import Parts
from ms_recover.planning.planner import Planned
from ms_recover.planning.tree.candidates import Candidate, candidate_at


def judge_every_step(planned: Planned, most: int) -> tuple[JudgedStep, ...]:
    """Return the verdict of each rank at the newest `most` steps of a planned tree, newest first.

    Those that a plan passes over are judged as well; what was not read for the plan is judged by headers and manifests.
    """
    facts = planned.tree.facts
    return tuple(_judge(planned.tree, candidate_at(facts, one.step, one)) for one in facts.saved[:most])


def _judge(tree: Parts, candidate: Candidate) -> JudgedStep:
    judged = assess_candidate(tree, candidate)
    found = judged.value
    return JudgedStep(step=judged.step, ranks=found.ranks, recoverable=judged.why is None, run_id=found.run_id)


def number_groups(planned: Planned) -> tuple[int, ...]:
    """Return for each rank the number of its group, in the order of first ranks; by lists, else by layouts."""
    found: dict[Hashable, int] = {}
    return tuple(found.setdefault(_group(planned.facts, rank), len(found)) for rank in range(planned.plan.world_size))


def _group(facts: Facts, rank: int) -> Hashable:
    if facts.groups.knows(rank):
        return facts.groups.of(rank)
    stages = facts.stages
    cuts = stages.cuts.get(stages.of(rank), ())
    if not cuts:
        return rank
    return stages.of(rank), tuple(cut.parts[rank % stages.devices] for cut in cuts)
