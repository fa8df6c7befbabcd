"""What sealing one step of a watched tree found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from ms_recover.model.steps import Step
from ms_recover.model.units import Size
from ms_recover.model.verification import SliceCheck


@dataclass(frozen=True, slots=True, kw_only=True)
class SealedStep:
    """A step whose sound slices got their manifests."""

    RECORD = "version root *step ok sealed wrong bytes seconds"

    version: ClassVar[Literal[1]] = 1
    root: str
    """Absolute path of the tree."""
    step: Step
    sealed: tuple[str, ...]
    """Paths of the slices that got one, relative to the root."""
    wrong: tuple[SliceCheck, ...]
    """Slices that are not sound and got none."""
    bytes: Size
    """Size of the sealed slices."""
    seconds: float
    """Duration of reading and writing."""

    @property
    def ok(self) -> bool:
        """Whether all slices of the step are sound."""
        return not self.wrong
