"""The verb measure: figures about a tree for a monitoring system.

>>> from ms_recover import api
>>> api.measure(api.scan("/checkpoints")).recoverable_step      # doctest: +SKIP
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from ms_recover.execution.recovery_log import read_recovery_log
from ms_recover.model.inventory import Inventory
from ms_recover.model.metrics import NO_STEP, SLICE_STATES, TreeMetrics
from ms_recover.model.options import DEFAULT_PLAN, AuditOptions, PlanOptions
from ms_recover.model.steps import Step
from ms_recover.model.topology import Topology
from ms_recover.planning.plan.planner import judge_step_of
from ms_recover.planning.tree.candidates import text_of_others
from ms_recover.verbs.audit import audit, audit_planned
from ms_recover.verbs.session import Session

HOST = "host"


def measure(
    inventory: Inventory, options: PlanOptions = DEFAULT_PLAN, *, topology: Topology | None = None
) -> TreeMetrics:
    """Return the figures of a tree: what is there, what is recoverable, what a loss would cost, how recoveries went.

    Slices are judged by headers and manifests, as ``recover-ckpt plan --quick`` does; nothing is read whole.

    Parameters
    ----------
    inventory : Inventory
        The result of `ms_recover.scan`, without CRCs where nothing may be read whole.
    options : PlanOptions
        The operator's choices; `step` does not count.
    topology : Topology, optional
        Where ranks live; without it the number of hosts that may be lost is not known.

    Raises
    ------
    MissingInputError, UsageError, ContradictionError
        As `ms_recover.api.plan` does.
    """
    options = replace(options, step=None, quick=True)
    planned = Session(inventory, options).planned
    plan, shown = planned.plan, planned.step.parts[0].assessment.step
    # What is there is that of the newest step, also where the plan gave it up.
    newest = plan.given_up[0].step if plan.given_up else shown
    ranks = plan.ranks if newest == shown else judge_step_of(planned, newest).ranks
    wanted = AuditOptions(losses=1)
    if options.clean:  # a loss may cost less at a step that is not clean
        costs = audit(inventory, replace(options, clean=False), topology, wanted)
    else:
        costs = audit_planned(planned, topology, wanted)
    states, hosts = Counter(rank.state for rank in ranks), costs.level(HOST)
    return TreeMetrics(
        newest_step=number_of(inventory, newest, plan.run_id),
        recoverable_step=number_of(inventory, plan.step, plan.run_id) if plan.step is not None else NO_STEP,
        slices=tuple((state, states[state]) for state in SLICE_STATES),
        host_losses=max(hosts.survived, 0) if hosts is not None and plan.step is not None else None,
        single_copy_bytes=costs.single_copy_bytes,
        log=read_recovery_log(inventory.root),
        others=text_of_others(planned.tree.facts),
    )


def number_of(inventory: Inventory, step: Step, run_id: str | None = None) -> int:
    """Return the number of a step, for a graph: how many were trained since the very first.

    Manifests state it, and iterations are it. Otherwise epochs are counted by their steps as a manifest states them, or
    else by the largest step within an epoch that the tree has.
    """
    if step.is_iteration:
        return step.step
    own = [file.manifest for file in inventory.slices if file.step == step and file.manifest is not None]
    own.sort(key=lambda manifest: manifest.run_id != (run_id or ""))
    for manifest in own:
        if manifest.cumulative_step is not None:
            return manifest.cumulative_step
    trained = (manifest.training.epoch_steps for manifest in own if manifest.training is not None)
    epoch = next((steps for steps in trained if steps is not None), None)
    if epoch is None:
        epoch = max((file.step.step for file in inventory.slices), default=step.step)
    return (step.epoch - 1) * max(epoch, step.step) + step.step
