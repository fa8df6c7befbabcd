"""Everything that a report shows about a tree: what is there, the plan, every step, and what losses would cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ms_recover.model.inventory import Inventory
from ms_recover.model.plan import Plan, RankVerdict
from ms_recover.model.steps import Step

if TYPE_CHECKING:
    from ms_recover.model.audit import Audit
    from ms_recover.model.history import History
    from ms_recover.model.topology import Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedStep:
    """Every rank's verdict at one step, whether or not a plan would take it."""

    step: Step
    ranks: tuple[RankVerdict, ...]
    """By rank."""
    recoverable: bool
    """Whether every rank has its slice of it, or can get one."""
    run_id: str | None = None
    """The run whose slices these are; None when no manifest says so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a report page shows.

    Parameters
    ----------
    inventory, plan
        The tree, and its plan.
    steps : tuple of JudgedStep
        Newest first; the planned one rests on contents, others on headers and manifests.
    quick : bool
        The planned one rests on headers and manifests as well.
    steps_left_out : int
        How many older steps were not judged.
    groups : tuple of int
        For each rank the number of its group: ranks with one number hold the same slice, as far as it is known.
    topology : Topology or None
        Where ranks live.
    audit : Audit or None
    history : History or None
    next_command : str
        The command that carries the plan out; empty where there is none.
    missing : tuple of str
        Why parts of the report are not there, a clause each.
    """

    inventory: Inventory
    plan: Plan
    steps: tuple[JudgedStep, ...]
    quick: bool = False
    steps_left_out: int = 0
    groups: tuple[int, ...] = ()
    topology: Topology | None = None
    audit: Audit | None = None
    history: History | None = None
    next_command: str = ""
    missing: tuple[str, ...] = ()
