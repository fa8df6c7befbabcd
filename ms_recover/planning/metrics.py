"""Figures of a tree from its plan, audit and log (pure)."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from ms_recover.model.inventory import Inventory
from ms_recover.model.metrics import NO_STEP, SLICE_STATES, RecoveryLog, TreeMetrics
from ms_recover.model.plan import Plan
from ms_recover.model.steps import Step

if TYPE_CHECKING:
    from ms_recover.model.audit import Audit

HOST = "host"


def make_metrics(inventory: Inventory, plan: Plan, newest: Plan, audit: Audit, log: RecoveryLog) -> TreeMetrics:
    """Return the figures; `newest` is the plan for the newest step of the run, which `plan` may have given up."""
    states = Counter(rank.state for rank in newest.ranks)
    hosts = audit.level(HOST)
    step = newest_step(plan)
    return TreeMetrics(
        newest_step=number_of(inventory, step, plan.run_id) if step is not None else None,
        recoverable_step=number_of(inventory, plan.step, plan.run_id) if plan.step is not None else NO_STEP,
        slices=tuple((state, states[state]) for state in SLICE_STATES),
        host_losses=max(hosts.survived, 0) if hosts is not None and plan.step is not None else None,
        single_copy_bytes=audit.single_copy_bytes,
        log=log,
    )


def newest_step(plan: Plan) -> Step | None:
    """Return the newest step of the planned run."""
    return plan.given_up[0].step if plan.given_up else plan.step or plan.considered


def number_of(inventory: Inventory, step: Step, run_id: str | None = None) -> int:
    """Return the number of a step, for a graph: how many were trained since the very first.

    Manifests state it, and iterations are it. Otherwise epochs are counted by their steps as a manifest states them, or
    else by the largest step within an epoch that the tree has.
    """
    if step.is_iteration:
        return step.step
    own = [file.manifest for file in inventory.slices if file.step == step and file.manifest is not None]
    own.sort(key=lambda one: one.run_id != (run_id or ""))
    for manifest in own:
        if manifest.cumulative_step is not None:
            return manifest.cumulative_step
    trained = (one.training.epoch_steps for one in own if one.training is not None)
    epoch = next((steps for steps in trained if steps is not None), None)
    if epoch is None:
        epoch = max((file.step.step for file in inventory.slices), default=step.step)
    return (step.epoch - 1) * max(epoch, step.step) + step.step
