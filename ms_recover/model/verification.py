"""What verifying a tree found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ms_recover.model.steps import Step
from ms_recover.model.verdicts import Evidence, SliceStatus

VERIFICATION_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class SliceCheck:
    """What one slice is worth."""

    rank: int
    step: Step
    path: str
    """Relative to the root."""
    status: SliceStatus
    """``"sound"``, or what is wrong."""
    evidence: Evidence
    """The ground for a sound slice; with ``"structure"`` nothing was compared."""
    reason: str


@dataclass(frozen=True, slots=True)
class Verification:
    """What verifying a tree found."""

    root: str
    """Absolute path of the tree."""
    checks: tuple[SliceCheck, ...]
    """Newest step first, then by rank."""
    disagreements: tuple[str, ...] = ()
    """Groups whose members hold different contents, with nothing to say who is right."""
    missing: tuple[tuple[Step, tuple[int, ...]], ...] = ()
    """For each step the ranks that have no slice of it; not a fault by itself."""

    @property
    def wrong(self) -> tuple[SliceCheck, ...]:
        """Slices that are not sound."""
        return tuple(check for check in self.checks if check.status != "sound")
