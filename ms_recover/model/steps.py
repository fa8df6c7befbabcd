"""A training step as MindSpore or MindFormers names it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from ms_recover.model.units import Count, Epoch

_STEP = re.compile(r"(?:(0|[1-9]\d{0,17})_)?(0|[1-9]\d{0,17})\Z", re.ASCII)

CountedBy = Literal["manifest", "global_step", "step_num"]
"""What states the steps since the beginning of the training: the manifests, the parameter, or MindFormers' value."""

NO_EPOCH = -1
"""The epoch of steps that are counted over the whole training, not within an epoch: MindFormers' iterations."""


@dataclass(frozen=True, slots=True, order=True)
class Step:
    """The step of a slice: ordered by epoch, then by step in the epoch; or an iteration, whose epoch is -1."""

    epoch: Epoch
    """Epoch, 1-based (``ModelCheckpoint`` file names); `NO_EPOCH` for an iteration."""
    step: Count
    """Step within the epoch, 1-based; the sink size in sink mode. Of an iteration the steps of the whole training."""

    def __str__(self) -> str:
        return str(self.step) if self.epoch == NO_EPOCH else f"{self.epoch}_{self.step}"

    @classmethod
    def iteration(cls, number: int) -> Step:
        """Return an iteration of MindFormers' format "weights 2.0"."""
        return cls(NO_EPOCH, number)

    @property
    def is_iteration(self) -> bool:
        """Whether it is counted over the whole training."""
        return self.epoch == NO_EPOCH

    @classmethod
    def parse(cls, text: str) -> Step:
        """Read ``EPOCH_STEP``, or the number of an iteration.

        Raises
        ------
        ValueError
            When the text is neither a decimal number nor two joined by an underscore.
        """
        match = _STEP.match(text)
        if match is None:
            raise ValueError(
                f"{text!r} is not a step: write EPOCH_STEP, for example 2_77, or the iteration, for example 200"
            )
        return cls(int(match[1]) if match[1] is not None else NO_EPOCH, int(match[2]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """The place of a step in its training: the steps since the very beginning, over all resumes."""

    RECORD = "*step prefix cumulative_step stated_by"

    prefix: str
    """Of the slices, the ``_N`` of a rerun included: of two runs both may have a step of one name."""
    step: Step
    """Step by the name of the slices."""
    cumulative_step: Count
    stated_by: CountedBy
