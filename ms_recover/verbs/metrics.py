"""The verb measure: figures about a tree for a monitoring system.

>>> from ms_recover import api
>>> api.measure("/checkpoints").recoverable_step      # doctest: +SKIP
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

from ms_recover.execution.recovery_log import read_recovery_log
from ms_recover.model.metrics import TreeMetrics
from ms_recover.model.options import DEFAULT_PLAN, DEFAULT_SCAN, AuditOptions, PlanOptions, ScanOptions
from ms_recover.planning.metrics import make_metrics, newest_step
from ms_recover.verbs.audit import audit, audit_planned
from ms_recover.verbs.recover import plan as make_plan
from ms_recover.verbs.scan import scan
from ms_recover.verbs.session import Session

if TYPE_CHECKING:
    from ms_recover.model.inventory import Inventory
    from ms_recover.model.topology import Topology


def measure(
    tree: Inventory | str | os.PathLike[str],
    options: PlanOptions = DEFAULT_PLAN,
    *,
    layout: ScanOptions = DEFAULT_SCAN,
    topology: Topology | None = None,
) -> TreeMetrics:
    """Return the figures of a tree: what is there, what is recoverable, what a loss would cost, how recoveries went.

    Slices are judged by headers and manifests, as ``recover-ckpt plan --quick`` does; nothing is read whole.

    Parameters
    ----------
    tree : Inventory, str or path
        The result of `ms_recover.scan`, or the root of a tree or its URL.
    options : PlanOptions
        The operator's choices; `step` does not count.
    layout : ScanOptions
        How a tree that is named by its root is laid out.
    topology : Topology, optional
        Where ranks live; without it the number of hosts that may be lost is not known.

    Raises
    ------
    MissingInputError, UsageError, ContradictionError, StorageError
        As `ms_recover.api.scan` and `ms_recover.api.plan` do.
    """
    from ms_recover.model.inventory import Inventory

    inventory = tree if isinstance(tree, Inventory) else scan(tree, replace(layout, crc=False))
    options = replace(options, step=None, quick=True, require_newest=False)
    planned = Session(inventory, options).planned
    plan = planned.plan
    newest = newest_step(plan)
    shown = plan
    if newest is not None and newest not in (plan.step, plan.considered):
        shown = make_plan(inventory, replace(options, step=newest, clean=False))
    wanted = AuditOptions(losses=1)
    if options.clean:  # a loss may cost less at a step that is not clean
        costs = audit(inventory, replace(options, clean=False), topology, wanted)
    else:
        costs = audit_planned(planned, topology, wanted)
    made = make_metrics(inventory, plan, shown, costs, read_recovery_log(inventory.root))
    return replace(made, others=planned.tree.facts.text_of_others)
