"""Random operators that are the same on every repeat of a step (in a worker)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mindspore as ms


class RandomState:
    """Sets the random numbers of a part's cells by step and chunk."""

    def __init__(self, cells: Sequence[Any]) -> None:
        self._cells = list(cells)

    def seed(self, step: int, chunk: int) -> None:
        """Begin the random numbers of a chunk in a step."""
        ms.set_seed(_mixed(step, chunk))


def _mixed(step: int, chunk: int) -> int:
    """Return a seed of 31 bits that differs for nearby steps and chunks."""
    value = (step * 0x9E3779B97F4A7C15 + chunk * 0xBF58476D1CE4E5B9) & (1 << 64) - 1
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & (1 << 64) - 1
    return int((value ^ value >> 27) & 0x7FFFFFFF)
