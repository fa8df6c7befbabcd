"""The verb describe: everything that a report page shows about a tree."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ms_recover.evidence import plan_with_evidence
from ms_recover.model.contents import Contents
from ms_recover.model.inventory import Inventory, SliceFile
from ms_recover.model.options import DEFAULT_PLAN, PlanOptions
from ms_recover.model.report import Report
from ms_recover.planning.every_step import judge_every_step, number_groups

LEAST_STEPS, MOST_STEPS, MOST_CELLS = 8, 64, 200_000
"""Bounds of the number of steps that are judged, the newest ones, and of that number times the ranks."""


def describe(
    inventory: Inventory,
    options: PlanOptions = DEFAULT_PLAN,
    *,
    jobs: int = 1,
    progress: Callable[[int], None] | None = None,
    read: Callable[[Sequence[SliceFile]], Contents] | None = None,
) -> Report:
    """Plan, and judge every rank at every step: a report without audit, history and hosts, which the caller adds.

    Arguments and errors are those of `ms_recover.api.plan`; `require_newest` is left to the reader.
    """
    planned, contents = plan_with_evidence(inventory, options, jobs=jobs, progress=progress, read=read)
    most = min(max(MOST_CELLS // max(planned.plan.world_size, 1), LEAST_STEPS), MOST_STEPS)
    steps = judge_every_step(inventory, options, planned, contents, most)
    return Report(
        inventory=inventory,
        plan=planned.plan,
        steps=steps,
        steps_left_out=len(inventory.steps) - len(steps),
        groups=number_groups(planned),
    )
