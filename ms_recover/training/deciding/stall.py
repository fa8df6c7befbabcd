"""How long training stood still for a save."""

from __future__ import annotations

from dataclasses import dataclass

from ms_recover.model.steps import Step


@dataclass(frozen=True, slots=True)
class Stall:
    """The time that training stood still for a save."""

    step: Step
    """The saved step."""
    seconds: float
    """Duration, including the wait for the save before and for the other ranks."""
