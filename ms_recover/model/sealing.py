"""What sealing one step of a watched tree found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ms_recover.model.steps import Step
from ms_recover.model.verification import SliceCheck

SEALED_STEP_VERSION: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SealedStep:
    """A step whose sound slices got their manifests."""

    root: str
    """Absolute path of the tree."""
    step: Step
    sealed: tuple[str, ...]
    """Paths of the slices that got one, relative to the root."""
    wrong: tuple[SliceCheck, ...]
    """Slices that are not sound and got none."""
    bytes: int
    """Size of the sealed slices."""
    seconds: float
    """Duration of reading and writing."""
