"""A training step as MindSpore names it."""

from __future__ import annotations

import re
from dataclasses import dataclass

_STEP = re.compile(r"(0|[1-9]\d{0,17})_(0|[1-9]\d{0,17})\Z", re.ASCII)


@dataclass(frozen=True, slots=True, order=True)
class Step:
    """The step of a slice: ordered by epoch, then by step in the epoch."""

    epoch: int
    """Epoch, 1-based (``ModelCheckpoint`` file names)."""
    step: int
    """Step within the epoch, 1-based; the sink size in sink mode."""

    def __str__(self) -> str:
        return f"{self.epoch}_{self.step}"

    @classmethod
    def parse(cls, text: str) -> Step:
        """Read ``EPOCH_STEP``.

        Raises
        ------
        ValueError
            When the text is not two decimal numbers joined by an underscore.
        """
        match = _STEP.match(text)
        if match is None:
            raise ValueError(f"{text!r} is not a step: write EPOCH_STEP, for example 2_77")
        return cls(int(match[1]), int(match[2]))
