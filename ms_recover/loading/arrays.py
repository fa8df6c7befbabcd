"""Contents as numpy arrays that share their memory."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np

from ms_recover.model.slices import Parameter

NUMPY_TYPES = {
    "Bool": np.bool_,
    "Int4": np.int8,
    "Int8": np.int8,
    "UInt8": np.uint8,
    "Int16": np.int16,
    "UInt16": np.uint16,
    "Int32": np.int32,
    "UInt32": np.uint32,
    "Int64": np.int64,
    "UInt64": np.uint64,
    "Float16": np.float16,
    "Float32": np.float32,
    "Float64": np.float64,
    "Complex64": np.complex64,
    "Complex128": np.complex128,
}
"""numpy's types of MindSpore's; ``Int4`` takes a byte an element. numpy has no ``BFloat16``."""


def array_of(shape: tuple[int, ...], memory: memoryview, dtype: Any) -> Any:
    """Return an array over memory, which it keeps alive."""
    return np.ndarray(shape, dtype, memory if len(memory) else bytearray(1))


def text_of(memory: memoryview) -> str:
    """Return a string parameter; MindSpore saves them as UTF-32, filled up with null characters."""
    return bytes(memory).decode("utf-32-le", "replace").rstrip("\0")


def value_of(parameter: Parameter, memory: memoryview) -> Any:
    """Return a parameter as a numpy array over `memory`, or a string.

    ``BFloat16`` becomes ``ml_dtypes.bfloat16`` where that package is installed, else ``float32`` with the same values.
    """
    if parameter.dtype == "str":
        return text_of(memory)
    if parameter.dtype != "BFloat16":
        return array_of(parameter.shape, memory, NUMPY_TYPES[parameter.dtype])
    if find_spec("ml_dtypes") is not None:
        return array_of(parameter.shape, memory, import_module("ml_dtypes").bfloat16)
    halves = array_of(parameter.shape, memory, np.uint16)
    wide = np.zeros((*parameter.shape, 2), np.uint16)  # a bfloat16 is the upper half of a float32
    wide[..., 1] = halves
    return wide.view(np.float32).reshape(parameter.shape)
