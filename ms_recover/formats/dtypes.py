"""MindSpore's element types, and how many bytes a tensor of a given type and shape must have."""

from __future__ import annotations

from math import prod

_BY_SIZE = {
    1: "Bool Int4 Int8 UInt8",
    2: "Int16 UInt16 Float16 BFloat16",
    4: "Int32 UInt32 Float32 str",
    8: "Int64 UInt64 Float64 Complex64",
    16: "Complex128",
}
_NUMPY_BY_SIZE = {
    1: "bool int8 uint8",
    2: "int16 uint16 float16",
    4: "int32 uint32 float32",
    8: "int64 uint64 float64",
}

ITEM_SIZES = {name: size for size, names in _BY_SIZE.items() for name in names.split()}
"""Bytes per element of the types in slices. ``Int4`` takes a byte per element; ``str`` is UTF-32.

MindSpore saves ``Complex64`` and ``Complex128`` but cannot load them again.
"""

MAP_ITEM_SIZES = {name: size for size, names in _NUMPY_BY_SIZE.items() for name in names.split()}
"""Bytes per element of the types inside map parameters, which carry numpy's names."""


def shape_of(dtype: str, dims: tuple[int, ...], nbytes: int) -> tuple[tuple[int, ...], str | None]:
    """Return the shape of a parameter, and what is wrong with its size.

    Dims are as the file gives them, ``(0,)`` also for a scalar or a string; `nbytes` counts the contents of all pieces.
    """
    size = ITEM_SIZES.get(dtype)
    if size is None:
        return dims, f"type {dtype!r} is unknown"
    if dims == (0,) and (dtype == "str" or nbytes == size):
        dims = ()
    if dtype == "str":
        if dims or not nbytes or nbytes % size:
            return dims, f"{nbytes} bytes with dims {list(dims)} are no UTF-32 string"
        return dims, None
    if dims and min(dims) < 0:
        return dims, f"dims {list(dims)} are negative"
    expected = prod(dims) * size
    if nbytes == expected:
        return dims, None
    what = f"contents have {nbytes} bytes, {dtype} {list(dims)} takes {expected}"
    if nbytes < expected:
        return dims, f"{what}: a piece is missing, or dims or contents are damaged"
    return dims, f"{what}: the parameter occurs twice, or dims or contents are damaged"
