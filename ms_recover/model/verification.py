"""What verifying a tree found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ms_recover.model.steps import Step
from ms_recover.model.verdicts import Evidence, SliceStatus

VERIFICATION_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class SliceCheck:
    """What one slice is worth.

    Parameters
    ----------
    rank : int
        Whose it is.
    step : Step
        Its step.
    path : str
        Relative to the root.
    status : SliceStatus
        ``"sound"``, or what is wrong.
    evidence : Evidence
        The ground for a sound slice; with ``"structure"`` nothing was compared.
    reason : str
        Why.
    """

    rank: int
    step: Step
    path: str
    status: SliceStatus
    evidence: Evidence
    reason: str


@dataclass(frozen=True, slots=True)
class Verification:
    """What verifying a tree found.

    Parameters
    ----------
    root : str
        Absolute path of the tree.
    checks : tuple of SliceCheck
        Newest step first, then by rank.
    disagreements : tuple of str
        Groups whose members hold different contents, with nothing to say who is right.
    missing : tuple of (Step, tuple of int)
        For each step the ranks that have no slice of it; not a fault by itself.
    """

    root: str
    checks: tuple[SliceCheck, ...]
    disagreements: tuple[str, ...] = ()
    missing: tuple[tuple[Step, tuple[int, ...]], ...] = ()

    @property
    def wrong(self) -> tuple[SliceCheck, ...]:
        """Slices that are not sound."""
        return tuple(check for check in self.checks if check.status != "sound")
