"""What verifying a tree found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from ms_recover.model.inventory import Note
from ms_recover.model.steps import Step
from ms_recover.model.units import Rank
from ms_recover.model.verdicts import Evidence, SliceStatus


@dataclass(frozen=True, slots=True)
class SliceCheck:
    """What one slice is worth."""

    RECORD = "rank *step path status evidence reason"

    rank: Rank
    step: Step
    path: str
    """Relative to the root."""
    status: SliceStatus
    """``"sound"``, or what is wrong."""
    evidence: Evidence
    """The ground for a sound slice; with ``"structure"`` nothing was compared."""
    reason: str


@dataclass(frozen=True, slots=True)
class MissingRanks:
    """The ranks that have no slice of a step."""

    RECORD = "*step ranks"

    step: Step
    ranks: tuple[Rank, ...]


@dataclass(frozen=True, slots=True)
class Verification:
    """What verifying a tree found."""

    RECORD = "version root ok slices=checks disagreements missing documents?of_iterations states?"

    version: ClassVar[Literal[1]] = 1
    root: str
    """Absolute path of the tree."""
    checks: tuple[SliceCheck, ...]
    """Newest step first, then by rank."""
    disagreements: tuple[str, ...] = ()
    """Groups whose members hold different contents, with nothing to say who is right."""
    missing: tuple[MissingRanks, ...] = ()
    """Newest step first; not a fault by itself."""
    documents: tuple[Note, ...] = ()
    """Documents of MindFormers that are missing, damaged, or contradict the files, and how."""
    states: tuple[Note, ...] = ()
    """State files that their slices' manifests name, and that are missing or damaged."""

    @property
    def of_iterations(self) -> bool:
        """Whether it is of a tree with documents of MindFormers."""
        return any(check.step.is_iteration for check in self.checks)

    @property
    def wrong(self) -> tuple[SliceCheck, ...]:
        """Slices that are not sound."""
        return tuple(check for check in self.checks if check.status != "sound")

    @property
    def ok(self) -> bool:
        """Whether every slice is sound, and every document and state file beside them."""
        return not self.wrong and not self.documents and not self.states
