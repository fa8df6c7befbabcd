"""Random operators that are the same on every repeat of a step (in a worker).

A step that is repeated after a loss has to draw what it drew before. This module replaces MindSpore's operator in
``nn.Dropout``: that one goes on from where it was, compiled or not, and nothing sets it back, `mindspore.set_seed`
neither. Here ``nn.Dropout`` draws from a hash of its place in the model, the step, the chunk and the element. Operators
that take their seed from `mindspore.set_seed` at each call, such as ``ops.dropout`` in PyNative mode, stay as they are,
and are seeded by step and chunk. Checked with MindSpore 2.10.0 on CPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import nn, ops

from ms_recover.splitting.stages import Stage

_ROUNDS = ((16, 0x85EBCA6B), (13, 0xC2B2AE35))
"""Shifts and multipliers of MurmurHash3's last mixing of 32 bits."""


class RandomState:
    """Sets the random numbers of stages by step and chunk; from when it is made their ``nn.Dropout`` follow it."""

    def __init__(self, stages: Sequence[Stage]) -> None:
        self._seed = ms.Parameter(ms.Tensor(np.zeros(1, np.int32)), name="ms_recover.seed", requires_grad=False)
        done: set[int] = set()
        for stage in stages:
            for place, (_, cell) in enumerate(stage.cell.cells_and_names()):
                if isinstance(cell, nn.Dropout) and id(cell) not in done:
                    done.add(id(cell))
                    keep = cell.keep_prob if cell.p is None else 1.0 - cell.p
                    _replace(cell, _Dropout(keep, self._seed, mixed(stage.index, place)))

    def seed(self, step: int, chunk: int) -> None:
        """Begin the random numbers of a chunk in a step."""
        value = mixed(step, chunk)
        self._seed.asnumpy()[0] = value
        ms.set_seed(value)


class _Dropout(nn.Cell):  # type: ignore[misc]
    """Takes the place of the operator in ``nn.Dropout``."""

    def __init__(self, keep: float, seed: Any, place: int) -> None:
        super().__init__(auto_prefix=False)
        self.seed_value = seed
        self.place = place
        self.scale = 1.0 / keep
        self.limit = min(int(keep * (1 << 31)), (1 << 31) - 1)
        self.rounds = tuple((shift, _signed(factor)) for shift, factor in _ROUNDS)
        self.flat = ops.Reshape()

    def construct(self, x: Any) -> Any:
        """Return the output and its mask."""
        value = ops.arange(0, x.size, 1, dtype=ms.int32) ^ self.place
        value = value * _GOLDEN + self.seed_value
        for shift, factor in self.rounds:
            value = (value ^ ops.bitwise_right_shift(value, shift)) * factor
        value = (value ^ ops.bitwise_right_shift(value, 16)) & 0x7FFFFFFF
        mask = self.flat((value < self.limit).astype(x.dtype), x.shape)
        return x * mask * self.scale, mask


def mixed(first: int, second: int) -> int:
    """Return a number of 31 bits that differs for nearby pairs."""
    value = (first * 0x9E3779B97F4A7C15 + second * 0xBF58476D1CE4E5B9) & (1 << 64) - 1
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & (1 << 64) - 1
    return int((value ^ value >> 27) & 0x7FFFFFFF)


def _signed(value: int) -> int:
    return value - (1 << 32) if value >= 1 << 31 else value


_GOLDEN = _signed(0x9E3779B1)


def _replace(cell: Any, operator: Any) -> None:
    """Let ``nn.Dropout`` use another operator."""
    cell._primitives.pop("dropout", None)
    vars(cell).pop("dropout", None)
    cell.dropout = operator
