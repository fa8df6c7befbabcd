"""Figures about a tree for a monitoring system."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

from ms_recover.model.verdicts import RankState

RecoveryResult = Literal["ok", "failed", "partial", "interrupted"]
RECOVERY_RESULTS: tuple[RecoveryResult, ...] = get_args(RecoveryResult)

RecoveryPhase = Literal["plan", "apply"]
"""``plan``: scan, plan and the reading of proof by ``recover-ckpt apply``; ``apply``: writing, by any caller."""
RECOVERY_PHASES: tuple[RecoveryPhase, ...] = get_args(RecoveryPhase)

SLICE_STATES: tuple[RankState, ...] = get_args(RankState)

NO_STEP = -1
"""The number of the newest recoverable step where none can be recovered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryLog:
    """What recoveries and verifications left behind in a tree."""

    recoveries: tuple[tuple[RecoveryResult, int], ...] = tuple((result, 0) for result in RECOVERY_RESULTS)
    """How many ended how, since the log began."""
    durations: tuple[tuple[RecoveryPhase, float], ...] = ()
    """Seconds of each phase of the last recovery that is known."""
    verified: float | None = None
    """When the newest step, or all, was last read whole and found sound, in seconds since 1970 in UTC."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeMetrics:
    """The figures; None for one that is not known, which is then not exported."""

    newest_step: int | None
    """Number of the newest step of the run: steps trained since the very first, as far as manifests state them."""
    recoverable_step: int | None
    """The same of the newest step that can be recovered, `NO_STEP` where none can."""
    slices: tuple[tuple[RankState, int], ...] = ()
    """Slices of the newest step by state, each state once."""
    host_losses: int | None = None
    """How many hosts may be lost at once, whichever they are."""
    single_copy_bytes: int | None = None
    """Bytes that one rank alone has a copy of."""
    log: RecoveryLog = field(default_factory=RecoveryLog)
    others: str | None = None
    """The warning that names other experiments of the tree, of which nothing is counted."""
