"""Conversion of tensors to bytes and back, and the arithmetic of reductions: the only module of worlds with numpy.

MindSpore is imported only to return a ``mindspore.Tensor``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ms_recover.errors import UsageError
from ms_recover.tensors.memory import bytes_of, fillable, is_tensor, refuse_masked
from ms_recover.tensors.memory import fill as fill_memory
from ms_recover.worlds.wire import DTYPES

BUFFERS = (bytes, bytearray, memoryview)
OPERATIONS = ("sum", "prod", "max", "min")
_NAMES = {np.dtype(name): name for name in DTYPES if name != "bfloat16"}
_FORMATS = {np.empty(0, dtype).data.format: name for dtype, name in _NAMES.items()}
_UFUNCS: dict[str, Callable[..., Any]] = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}


class Raw(NamedTuple):
    """Type, shape and bytes of a tensor; the bytes are a view of its memory where possible."""

    dtype: str
    shape: tuple[int, ...]
    data: memoryview


_raw = partial(tuple.__new__, Raw)  # in half the time, because it takes the fields by position only


def allocate(size: int) -> memoryview:
    """Return `size` bytes of new memory, not cleared."""
    return np.empty(size, np.uint8).data


def raw(tensor: Any) -> Raw:
    """Return the bytes of a tensor or buffer; raises `UsageError` when it cannot be sent.

    A contiguous buffer, numpy array or CPU tensor is not copied.
    """
    if isinstance(tensor, np.ndarray) and (plain := _plain(tensor)):
        return plain
    if isinstance(tensor, BUFFERS):
        tensor = np.asarray(memoryview(tensor))
    if is_tensor(tensor):
        dtype = str(tensor.dtype).lower()
        if dtype not in DTYPES:
            raise UsageError(f"tensors of {tensor.dtype} cannot be sent")
        return Raw(dtype, tuple(tensor.shape), bytes_of(tensor))
    if not isinstance(tensor, np.ndarray | np.generic):
        raise UsageError(
            f"{type(tensor).__name__} cannot be sent: expected a numpy array, a mindspore.Tensor or a buffer"
        )
    array = np.asarray(tensor)
    if array.dtype.name not in DTYPES:
        raise UsageError(f"arrays of {array.dtype} cannot be sent")
    return Raw(array.dtype.name, array.shape, _bytes(np.asarray(array, array.dtype.newbyteorder("="), order="C")))


def copied(source: Raw) -> Raw:
    """Return a copy in new memory."""
    data = allocate(len(source.data))
    data[:] = source.data
    return source._replace(data=data)


def copy_bytes(into: memoryview, source: memoryview) -> None:
    """Copy bytes to memory of their size, unless they are there already."""
    if np.frombuffer(into, np.uint8).ctypes.data != np.frombuffer(source, np.uint8).ctypes.data:
        into[:] = source


def target(out: Any) -> tuple[Raw, Callable[[], Any]]:
    """Return the memory to receive into for a given tensor or buffer, and a function that returns the filled tensor.

    Raises `UsageError` when it cannot be filled in place.
    """
    refuse_masked(out)
    array = np.asarray(memoryview(out)) if isinstance(out, BUFFERS) else out
    if isinstance(array, np.ndarray):
        if not array.flags.c_contiguous or not array.flags.writeable or not array.dtype.isnative:
            raise UsageError("out must be contiguous, writable and of native byte order")
        dtype = _NAMES.get(array.dtype) or array.dtype.name
        if dtype not in DTYPES:
            raise UsageError(f"arrays of {array.dtype} cannot be received")
        return Raw(dtype, array.shape, _bytes(array)), lambda: out
    if not is_tensor(out):
        raise UsageError(f"out is {type(out).__name__}, expected a numpy array, a mindspore.Tensor or a buffer")
    dtype, shape = str(out.dtype).lower(), tuple(out.shape)
    if dtype not in DTYPES:
        raise UsageError(f"tensors of {out.dtype} cannot be received")
    fillable(out)
    data = allocate(int(np.prod(shape, dtype=np.int64)) * DTYPES[dtype])

    def assign() -> Any:
        fill_memory(fillable(out), data)
        return out

    return Raw(dtype, shape, data), assign


def writable(out: Any) -> Raw | None:
    """Return the memory of a plain array that can be received into as it is, as `target` finds it; None for others."""
    plain = _plain(out) if isinstance(out, np.ndarray) else None
    return None if plain is None or plain[2].readonly else plain


def check_fillable(*outs: Any) -> None:
    """Raise a `UsageError` for the first that `target` refuses: before anything is sent."""
    for out in outs:
        if writable(out) is None:
            target(out)


def fill(out: Any, value: Any) -> None:
    """Copy a tensor into another of its type and shape; raises `UsageError` when that one has another."""
    if out is value:
        return
    source, (into, finish) = raw(value), target(out)
    if (into.dtype, into.shape) != (source.dtype, source.shape):
        raise UsageError(f"{source.dtype} {source.shape} came for a tensor of {into.dtype} {into.shape}")
    into.data[:] = source.data
    finish()


def to_array(source: Raw) -> npt.NDArray[Any]:
    """Return a numpy array on these bytes; bfloat16, which numpy lacks, as float32 with the same values."""
    if source.dtype == "bfloat16":
        return _widen(np.frombuffer(source.data, np.uint16)).reshape(source.shape)
    return np.frombuffer(source.data, np.dtype(source.dtype)).reshape(source.shape)


def to_tensor(source: Raw) -> Any:
    """Return a ``mindspore.Tensor`` on these bytes."""
    import mindspore

    tensor = mindspore.Tensor.from_numpy(to_array(source))
    return tensor.astype(mindspore.bfloat16) if source.dtype == "bfloat16" else tensor


def accumulate(operation: str, dtype: str, into: memoryview, other: memoryview) -> None:
    """Reduce `other` into `into`, element by element, in the element type itself (bfloat16 in float32)."""
    function = _UFUNCS[operation]
    with np.errstate(all="ignore"):  # infinities and overflows are valid results
        if dtype == "bfloat16":
            ours = np.frombuffer(into, np.uint16)
            ours[:] = _narrow(function(_widen(ours), _widen(np.frombuffer(other, np.uint16))))
        else:
            array = np.frombuffer(into, np.dtype(dtype))
            function(array, np.frombuffer(other, np.dtype(dtype)), out=array)


def _plain(array: Any) -> Raw | None:
    """Return the memory of a contiguous array of a common type; None when it needs a closer look.

    Raises `UsageError` for a masked one.
    """
    if type(array) is not np.ndarray:
        refuse_masked(array)
    try:
        view = memoryview(array)
        name = _FORMATS.get(view.format)
        return _raw((name, view.shape, view.cast("B"))) if name and view.c_contiguous else None
    except (BufferError, TypeError, ValueError, NotImplementedError):  # a type or shape that buffers do not know
        return None


def _bytes(array: npt.NDArray[Any]) -> memoryview:
    return np.frombuffer(array, np.uint8).data


def _widen(bits: npt.NDArray[np.uint16]) -> npt.NDArray[np.float32]:
    wide: npt.NDArray[np.uint32] = bits.astype(np.uint32) << np.uint32(16)
    return wide.view(np.float32)


def _narrow(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """Round to the nearest bfloat16, ties to even; NaN stays NaN."""
    bits = values.view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    narrow: npt.NDArray[np.uint16] = np.where(np.isnan(values), np.uint32(0x7FC0), rounded).astype(np.uint16)
    return narrow
