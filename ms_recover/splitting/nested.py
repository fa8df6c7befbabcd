"""Nested values as JSON and tensors, for the way between processes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ms_recover.errors import InputError, UsageError
from ms_recover.tensors.memory import is_tensor, refuse_masked

DEEPEST = 64
"""Most containers within each other."""
_NUMBERS = 1 << 63


@dataclass(frozen=True, eq=False)
class Shared:
    """An argument, or a piece of one, that every chunk gets whole instead of cut."""

    value: Any


def flatten(value: Any, shared: set[int] | None = None) -> tuple[Any, list[Any]]:
    """Take a value apart into a skeleton that JSON can hold and the tensors in it.

    In the skeleton None, truth values, real numbers (NaN and infinities, too) and texts stand for themselves,
    everything else is a list that starts with its kind: ``["tuple", ...]``, ``["list", ...]``,
    ``["dict", [key, value], ...]``, ``["tensor", index]``, ``["complex", real, imaginary]``. Named tuples become plain.
    What is in a `Shared` is taken apart where a set is given, which gets the indexes of its tensors. Raises UsageError
    when the value contains other types than these or a masked array, or is nested too deeply.
    """
    leaves: list[Any] = []
    return _flatten(value, leaves, shared, 0), leaves


def unflatten(skeleton: Any, leaves: Sequence[Any]) -> Any:
    """Build the value that `flatten` took apart.

    The skeleton is not trusted: one that is invalid, or does not name every leaf once and in order, raises InputError.
    """
    unused = iter(range(len(leaves)))
    value = _unflatten(skeleton, leaves, unused, 0)
    if next(unused, None) is not None:
        raise InputError(f"invalid value: {len(leaves)} tensors with a description of fewer")
    return value


def is_leaf(value: Any) -> bool:
    """Whether a value is a numpy array or a ``mindspore.Tensor``."""
    return isinstance(value, np.ndarray) or is_tensor(value)


def _flatten(value: Any, leaves: list[Any], shared: set[int] | None, depth: int) -> Any:
    def inner(value: Any) -> Any:
        return _flatten(value, leaves, shared, depth + 1)

    if depth > DEEPEST:
        raise UsageError(f"the value is nested more than {DEEPEST} deep")
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, int):
        if not -_NUMBERS <= value < _NUMBERS:
            raise UsageError("invalid whole number: it has more than 64 bits")
        return int(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, complex):
        return ["complex", value.real, value.imag]
    if is_leaf(value):
        refuse_masked(value)
        leaves.append(value)
        return ["tensor", len(leaves) - 1]
    if isinstance(value, tuple | list):
        return ["tuple" if isinstance(value, tuple) else "list", *map(inner, value)]
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                raise UsageError(f"invalid key {key!r:.40} of a dict: expected a text, not {type(key).__name__}")
        return ["dict", *([str(key), inner(each)] for key, each in value.items())]
    if isinstance(value, Shared) and shared is not None:
        first = len(leaves)
        skeleton = inner(value.value)
        shared.update(range(first, len(leaves)))
        return skeleton
    raise UsageError(
        f"invalid argument or output of type {type(value).__name__}: a part of the model takes and returns only "
        "tensors, numpy arrays, numbers, texts and None, in tuples, lists and dicts"
    )


def _unflatten(skeleton: Any, leaves: Sequence[Any], unused: Iterator[int], depth: int) -> Any:
    if depth > DEEPEST:
        raise InputError(f"the description of a value is nested more than {DEEPEST} deep")
    if skeleton is None or type(skeleton) in {bool, int, float, str}:
        return skeleton
    if type(skeleton) is not list or not skeleton or type(skeleton[0]) is not str:
        raise InputError(f"{skeleton!r:.60} is no description of a value")
    kind, *items = skeleton
    if kind == "tensor" and len(items) == 1 and type(items[0]) is int:
        if next(unused, None) != items[0]:
            raise InputError(f"the description names tensor {items[0]} of {len(leaves)} out of order")
        return leaves[items[0]]
    if kind in {"tuple", "list"}:
        values = [_unflatten(item, leaves, unused, depth + 1) for item in items]
        return tuple(values) if kind == "tuple" else values
    if kind == "dict" and all(type(item) is list and len(item) == 2 and type(item[0]) is str for item in items):
        found = {key: _unflatten(item, leaves, unused, depth + 1) for key, item in items}
        if len(found) != len(items):
            raise InputError("duplicate key in the description of a dict")
        return found
    if kind == "complex" and list(map(type, items)) == [float, float]:
        return complex(*items)
    raise InputError(f"{skeleton!r:.60} is no description of a value")
