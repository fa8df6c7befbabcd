"""Values of a program, with tensors of MindSpore and arrays of numpy, as the values of a state file, and back."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from ms_recover.errors import UsageError
from ms_recover.formats.state import MAX_DEPTH, STATE_DTYPES
from ms_recover.model.state import StateTensor, StateValue
from ms_recover.tensors.memory import bytes_of, is_tensor, tensor_of

_NUMPY = {np.dtype(name.lower()): name for name in STATE_DTYPES - {"BFloat16"}}
_BY_NAME = {name: dtype for dtype, name in _NUMPY.items()}
_PLAIN = (bool, int, float)


def to_state(value: Any, place: str) -> StateValue:
    """Return a value as state files hold it, a copy that does not change with it.

    Raises UsageError, which names the `place` and the reason, when it cannot be held.
    """
    return _to_state(value, place, 0)


def _to_state(value: Any, place: str, depth: int) -> StateValue:
    if depth > MAX_DEPTH:
        raise UsageError(f"{place} is nested more than {MAX_DEPTH} deep")
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return str(value)
    if is_tensor(value):  # a parameter as well
        return _of_tensor(value, place)
    if isinstance(value, (np.ndarray, np.generic)):
        return _of_array(value, place)
    for kind in _PLAIN:
        if isinstance(value, kind):
            return kind(value)
    if isinstance(value, dict):
        return {
            _to_state(key, f"a name in {place}", depth + 1): _to_state(item, f"{place}[{key!r}]", depth + 1)
            for key, item in value.items()
        }
    for container in (list, tuple, set, frozenset):
        if isinstance(value, container):
            items = (_to_state(item, f"{place}[{index}]", depth + 1) for index, item in enumerate(value))
            return set(items) if container is frozenset else container(items)
    raise UsageError(
        f"{place} is a {type(value).__name__}, which cannot be saved; save numbers, texts, tensors and arrays, and "
        "lists, tuples and dicts of them"
    )


def from_state(value: StateValue) -> Any:
    """Return the value of a program that a state file holds."""
    if isinstance(value, StateTensor):
        return tensor_of(value.dtype, value.shape, value.data) if value.kind == "tensor" else _to_array(value)
    if isinstance(value, dict):
        return {key: from_state(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set)):
        return type(value)(from_state(item) for item in value)
    return value


def _of_tensor(tensor: Any, place: str) -> StateTensor:
    dtype = str(tensor.dtype)
    if dtype not in STATE_DTYPES:
        raise UsageError(f"{place} is a tensor of {dtype}, which cannot be saved")
    shape = tuple(int(size) for size in tensor.shape)
    return StateTensor("tensor", dtype, shape, bytes(bytes_of(tensor)) if prod(shape) else b"")


def _of_array(array: Any, place: str) -> StateTensor:
    found = np.asarray(array)
    dtype = _NUMPY.get(found.dtype.newbyteorder("="))
    if dtype is None:
        raise UsageError(f"{place} is a numpy array of {found.dtype}, which cannot be saved")
    data = found.astype(found.dtype.newbyteorder("<")).tobytes()
    return StateTensor("array" if isinstance(array, np.ndarray) else "scalar", dtype, found.shape, data)


def _to_array(value: StateTensor) -> Any:
    found = np.frombuffer(value.data, _BY_NAME[value.dtype].newbyteorder("<")).reshape(value.shape)
    array = found.astype(_BY_NAME[value.dtype])
    return array[()] if value.kind == "scalar" else array
