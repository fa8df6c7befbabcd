"""The state of a training that is in no parameter: generators, callbacks, and the values that a program adds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

StateKind = Literal["tensor", "array", "scalar"]
"""A tensor of MindSpore's, an array or a scalar of numpy's."""

StateValue = Any
"""None, bool, int, float, str, bytes, `StateTensor`, or a list, tuple, set or dict of such."""


@dataclass(frozen=True, slots=True)
class StateTensor:
    """The values of a tensor, apart from the library that computes with it."""

    kind: StateKind
    dtype: str
    """Type of the elements, by MindSpore's name."""
    shape: tuple[int, ...]
    data: bytes
    """Little-endian, in C order."""
