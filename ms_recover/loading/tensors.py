"""Contents as MindSpore's parameters that share their memory."""

from __future__ import annotations

from typing import Any

import mindspore as ms
import numpy as np
from mindspore.common import np_dtype

from ms_recover.formats.dtypes import MAP_ITEM_SIZES
from ms_recover.formats.records import MAP
from ms_recover.loading.arrays import NUMPY_TYPES, array_of, text_of
from ms_recover.loading.contents import SliceContents
from ms_recover.model.slices import Parameter


def parameters_of(contents: SliceContents) -> dict[str, Any]:
    """Return what ``mindspore.load_checkpoint`` returns, over the same memory; see `load_slice`."""
    pairs = zip(contents.parameters, contents.values, strict=True)
    return {parameter.name: value_of(parameter, *memory) for parameter, memory in pairs}


def value_of(parameter: Parameter, *memory: memoryview) -> Any:
    """Return a ``mindspore.Parameter`` over `memory`, a str, or of a map parameter its three arrays in a list.

    MindSpore shares an array with a tensor (``Tensor.from_numpy``), and a tensor with a parameter that is made of it
    while nothing else refers to the tensor: it counts references, and those of a call with keywords are one more.
    """
    name, dtype, shape = parameter.name, parameter.dtype, parameter.shape
    if dtype == "str":
        return text_of(memory[0])
    if dtype.startswith(MAP):
        return _map_of(parameter, memory)
    if dtype == "Int4":
        return ms.Parameter(ms.Tensor(array_of(shape, memory[0], np.int8), dtype=ms.qint4x2), name)
    if dtype != "BFloat16":
        return ms.Parameter(ms.Tensor.from_numpy(array_of(shape, memory[0], NUMPY_TYPES[dtype])), name)
    if np_dtype.np_dtype_valid(True):
        return ms.Parameter(ms.Tensor.from_numpy(array_of(shape, memory[0], np_dtype.bfloat16)), name)
    from mindspore._c_expression import TensorPy  # as load_checkpoint does: with this numpy nothing is shared

    return ms.Parameter(TensorPy.convert_bytes_to_tensor(bytes(memory[0]), shape, ms.bfloat16), name)


def _map_of(parameter: Parameter, memory: tuple[memoryview, ...]) -> list[Any]:
    """Return keys, values and status; a header has the shape of the values alone."""
    rows = parameter.shape[0]
    arrays = []
    for role, (dtype, held) in enumerate(zip(parameter.dtype[len(MAP) + 1 : -1].split(","), memory, strict=True)):
        count = len(held) // MAP_ITEM_SIZES[dtype]
        shape = parameter.shape if role == 1 else (rows,) if count == rows else (rows, count // rows)
        arrays.append(array_of(shape, held, np.dtype(dtype)))
    return arrays
