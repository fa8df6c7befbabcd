"""The memory of a MindSpore tensor, of a view into another one too.

``asnumpy()`` shows the memory of a whole tensor on the CPU, but a copy of a view (a row, a column, ``view``,
``reshape``, transposed, one element), and ``assign_value`` gives a tensor other memory, which an optimizer that has
stepped in PyNative mode never sees. The memory itself begins at ``data_ptr()`` and has the strides of ``stride()``;
``data_ptr()`` waits for the operators that were begun before (seen with MindSpore 2.10).
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ms_recover.errors import UsageError


class _Memory:
    """Memory that lives as long as its tensor, for numpy."""

    def __init__(self, tensor: Any, pointer: int, size: int, strides: Sequence[int]) -> None:
        self.tensor = tensor
        self.__array_interface__ = {
            "version": 3,
            "typestr": f"<u{size}" if size <= 8 else f"|V{size}",
            "data": (pointer, False),
            "shape": tuple(tensor.shape),
            "strides": tuple(stride * size for stride in strides),
        }


def is_tensor(value: object) -> bool:
    """Whether a value is a ``mindspore.Tensor``; does not import MindSpore."""
    kind = getattr(sys.modules.get("mindspore"), "Tensor", None)
    return kind is not None and isinstance(value, kind)


def refuse_masked(value: object) -> None:
    """Raise `UsageError` for a masked array: bytes and type have no place for its mask."""
    if isinstance(value, np.ma.MaskedArray):
        raise UsageError("a masked array would lose its mask: give array.filled(...), or its data and its mask apart")


def memory_of(tensor: Any) -> npt.NDArray[Any] | None:
    """Return the memory of a tensor, with its shape and strides, as unsigned numbers of its elements' size.

    None where the host has no such memory, or where elements share it (a dimension that is broadcast): what is written
    there would be no value of the tensor. Operators that were begun before have ended.
    """
    if tensor.has_init:
        tensor.init_data()
    if not _is_on_host(tensor) or not hasattr(tensor, "data_ptr"):
        return None
    shape, size = tuple(tensor.shape), int(tensor.itemsize)
    if 0 in shape:
        return np.empty(shape, f"V{size}")
    strides = tuple(tensor.stride())
    pointer = tensor.data_ptr()
    if not pointer or _overlaps(shape, strides):
        return None
    return np.asarray(_Memory(tensor, pointer, size, strides))


def bytes_of(tensor: Any) -> memoryview:
    """Return the bytes of a tensor in C order: its own memory where that is so, else a copy."""
    memory = memory_of(tensor)
    if memory is not None:
        return _flat(np.ascontiguousarray(memory))
    if str(tensor.dtype) == "BFloat16":  # numpy lacks it
        return memoryview(tensor.get_bytes())
    return _flat(np.ascontiguousarray(tensor.asnumpy()))


def host_bytes(tensor: Any) -> npt.NDArray[np.uint8]:
    """Return the bytes of a whole tensor, a parameter for instance, on this host: to read and to write."""
    memory = memory_of(tensor)
    found: npt.NDArray[np.uint8] = (tensor.asnumpy() if memory is None else memory).reshape(-1).view(np.uint8)
    return found


def byte_copies(tensors: Iterable[Any]) -> list[npt.NDArray[np.uint8]]:
    """Return copies of the bytes of whole tensors, for `set_bytes`."""
    return [host_bytes(tensor).copy() for tensor in tensors]


def set_bytes(tensors: Iterable[Any], values: Iterable[npt.NDArray[np.uint8]]) -> None:
    """Set whole tensors to these bytes, in the memory that they have."""
    for tensor, value in zip(tensors, values, strict=True):
        np.copyto(host_bytes(tensor), value)


def fillable(tensor: Any) -> npt.NDArray[Any]:
    """Return the memory of a tensor that is to be filled; raises `UsageError` when there is none to write to."""
    memory = memory_of(tensor)
    if memory is None:
        raise UsageError(
            f"a tensor of {tensor.dtype} {tuple(tensor.shape)} cannot be filled in place: its memory is not on this "
            "host, or its elements share it (broadcast); receive a new one, and assign it"
        )
    return memory


def fill(memory: npt.NDArray[Any], data: memoryview) -> None:
    """Write bytes in C order into the memory of a tensor, of their size."""
    memory[...] = np.frombuffer(data, memory.dtype).reshape(memory.shape)


def tensor_of(dtype: str, shape: tuple[int, ...], data: bytes | memoryview) -> Any:
    """Return a tensor with a copy of bytes in C order; `dtype` is MindSpore's name of its type, such as ``Float32``.

    MindSpore is imported for it.
    """
    import mindspore as ms
    from mindspore._c_expression import TensorPy

    kind = getattr(ms, dtype.lower() if dtype != "Bool" else "bool_")
    if not len(data):
        return ms.Tensor(np.empty(shape, np.float32), kind)
    return ms.Tensor(TensorPy.convert_bytes_to_tensor(bytes(data), shape, kind))


def tensor_over(dtype: str, shape: tuple[int, ...], memory: npt.NDArray[np.uint8]) -> Any:
    """Return what `tensor_of` returns, on this memory, which nobody else may change; of bfloat16 it is a copy.

    MindSpore is imported for it. Raises `TypeError` for a type that numpy and MindSpore have no tensors of.
    """
    if dtype == "BFloat16":  # numpy lacks it
        return tensor_of(dtype, shape, memory.data)
    import mindspore as ms

    return ms.Tensor.from_numpy(memory.view(np.dtype(dtype.lower())).reshape(shape))


def set_value(tensor: Any, value: Any) -> None:
    """Set a tensor to the value of another of its type and shape, in the memory that it has."""
    memory = memory_of(tensor)
    if memory is None:
        tensor.assign_value(value)
    else:
        fill(memory, bytes_of(value))


def _is_on_host(tensor: Any) -> bool:
    device = getattr(tensor, "device", None)
    if isinstance(device, str):
        return device == "CPU"
    import mindspore

    return bool(mindspore.get_context("device_target") == "CPU")


def _overlaps(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether two elements have the same place."""
    end = 0
    for stride, count in sorted(zip(strides, shape, strict=True)):
        if count > 1:
            if stride <= end:
                return True
            end += stride * (count - 1)
    return False


def _flat(array: npt.NDArray[Any]) -> memoryview:
    return array.reshape(-1).view(np.uint8).data
