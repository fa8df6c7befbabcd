"""The verb describe: everything that a report shows about a tree.

>>> from ms_recover import api
>>> report = api.describe(api.scan("/checkpoints"))             # doctest: +SKIP
>>> report.plan.step, report.audit.headline                     # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import TypeVar

from ms_recover.errors import MsRecoverError
from ms_recover.model.contents import Reader
from ms_recover.model.inventory import Inventory
from ms_recover.model.options import DEFAULT_PLAN, PlanOptions
from ms_recover.model.report import Report
from ms_recover.model.texts import name_ranks
from ms_recover.model.topology import Topology
from ms_recover.planning.choice import assess_candidate
from ms_recover.planning.history.make_history import make_tree_history
from ms_recover.planning.plan.planner import judge_every_step, number_groups
from ms_recover.verbs.audit import audit_planned
from ms_recover.verbs.recover import with_obstacles
from ms_recover.verbs.session import Session

LEAST_STEPS, MOST_STEPS, MOST_CELLS = 8, 64, 200_000
"""Bounds of the number of steps that are judged, the newest ones, and of that number times the ranks."""

Part = TypeVar("Part")


def describe(
    inventory: Inventory,
    options: PlanOptions = DEFAULT_PLAN,
    topology: Topology | None = None,
    *,
    jobs: int = 1,
    progress: Callable[[int], None] | None = None,
    read: Reader | None = None,
) -> Report:
    """Plan, judge every rank at every step, and add the audit and the history; all of one reading.

    Arguments are those of `ms_recover.api.plan`; `require_newest` is left to the reader. Where there can be no audit or
    no history, the report says why.

    Parameters
    ----------
    topology : Topology, optional
        Where ranks live.

    Raises
    ------
    MissingInputError, UsageError, ContradictionError
        As `ms_recover.api.plan` does.
    """
    session = Session(inventory, options, jobs=jobs, progress=progress, read=read)
    planned = session.planned
    made = with_obstacles(planned.plan, options.follow)
    most = min(max(MOST_CELLS // max(planned.plan.world_size, 1), LEAST_STEPS), MOST_STEPS)
    # The audit asks again about steps that are judged for the page.
    assess = lru_cache(maxsize=most)(partial(assess_candidate, planned.tree))
    steps = judge_every_step(planned, most, assess)
    missing: list[str] = []
    whole = topology is not None and topology.is_whole
    if topology is not None and not whole:
        unplaced = name_ranks(topology.unplaced(planned.plan.world_size))
        missing.append(f"The audit takes each rank for a host of its own: nothing names the hosts of {unplaced}.")
    audited = partial(audit_planned, planned, topology if whole else None, read=session.reader, assess=assess)
    return Report(
        inventory=inventory,
        plan=made,
        steps=steps,
        quick=options.quick,
        steps_left_out=len(inventory.steps) - len(steps),
        groups=number_groups(planned),
        topology=topology,
        audit=_unless_impossible(audited, "audit", missing),
        history=_unless_impossible(lambda: make_tree_history(planned.tree.facts), "history", missing),
        missing=tuple(missing),
    )


def _unless_impossible(make: Callable[[], Part], name: str, missing: list[str]) -> Part | None:
    try:
        return make()
    except MsRecoverError as error:
        missing.append(f"No {name}: {error}")
        return None
