"""The contents of a slice, and a copy of them in host memory that training does not change."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import Any

import mindspore as ms
import numpy as np
from mindspore.experimental import MapParameter
from safetensors import SafetensorError

from ms_recover.errors import StorageError
from ms_recover.execution.write_slice import write_slice
from ms_recover.file_names import SliceFormat
from ms_recover.formats.dtypes import ITEM_SIZES
from ms_recover.model.manifest import Digests
from ms_recover.model.slices import Parameter
from ms_recover.training.deciding.own_slice import Contents
from ms_recover.training.this_process import device_target


def saved_parameters(network: Any) -> list[Any]:
    """Return the parameters that a slice of this rank must hold, in the order in which MindSpore saves them.

    All parameters of the network, or under (semi-)auto parallel those that the compiler gave to this rank's pipeline
    stage; without parameters that have no elements. ``mindspore.save_checkpoint`` (``train/serialization.py``) chooses
    the same.
    """
    return _saved(list(network.get_parameters()))


def _saved(parameters: list[Any]) -> list[Any]:
    everything = not _is_cut(parameters) or ms.get_context("mode") != ms.GRAPH_MODE
    return [
        parameter
        for parameter in parameters
        if not parameter.param_info.is_pipeline_shared_param
        and (everything or (parameter.sliced and not parameter.has_init))
        and 0 not in parameter.shape
    ]


def is_compiled_parallel(network: Any) -> bool:
    """Whether the compiler of (semi-)auto parallel has cut the parameters."""
    return _is_cut(network.get_parameters())


def _is_cut(parameters: Iterable[Any]) -> bool:
    return any(parameter.param_info.is_param_init for parameter in parameters)


def saved_names(network: Any) -> frozenset[str]:
    """Return the names that the slice of a network must hold."""
    return frozenset(
        f"{parameter.name}.__param_key__{parameter.key}" if parameter.cache_enable else parameter.name
        for parameter in saved_parameters(network)
    )


def flush_caches(network: Any) -> None:
    """Copy the values of cached parameters from the device to the host, as ``ModelCheckpoint`` does."""
    for parameter in network.get_parameters():
        if parameter.cache_enable:
            ms.Tensor(parameter).flush_from_cache()


def read_contents(network: Any) -> Contents | None:
    """Return a network's parameters as they are written; on CPU the values are the memory that training changes.

    None when there are parameters that MindSpore must read itself: maps, cached and offloaded ones, those that pipeline
    stages share, and those whose bytes are no plain array.
    """
    everything = list(network.get_parameters())  # one walk: a network has thousands of cells
    if any(parameter.has_init for parameter in everything) and not _is_cut(everything):
        network.init_parameters_data()
        everything = list(network.get_parameters())
    parameters = _saved(everything)
    if any(
        parameter.cache_enable or isinstance(parameter, MapParameter) or parameter.data.offload_file_path()
        for parameter in parameters
    ) or any(parameter.param_info.is_pipeline_shared_param for parameter in everything):
        return None
    described = [describe(parameter.name, parameter) for parameter in parameters]
    known = tuple(one for one in described if one is not None)
    if len(known) < len(described):
        return None
    return Contents(known, tuple(map(values_of, parameters)))


def describe(name: str, data: Any) -> Parameter | None:
    """Return name, type, shape and size of a tensor; None when its bytes are no plain array."""
    dtype, shape = str(data.dtype), tuple(data.shape)
    if dtype not in ITEM_SIZES or dtype in ("Int4", "str"):
        return None
    return Parameter(name=name, dtype=dtype, shape=shape, nbytes=prod(shape) * ITEM_SIZES[dtype])


def values_of(data: Any) -> memoryview:
    """Return the bytes of a tensor: its own memory where that is the host's, and a copy elsewhere."""
    try:
        array = data.asnumpy()
    except TypeError:  # a type that numpy does not have, such as bfloat16
        return memoryview(ms.Tensor(data.data).get_bytes())
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def memory_places(network: Any) -> dict[str, int]:
    """Return where the trained parameters lie in memory, by name; empty where no compiled optimizer keeps the memory.

    That is all but PyNative mode on CPU: elsewhere addresses are the device's, and MindSpore moves them. Parameters
    that are not trained change their memory in PyNative mode whenever a network sets them (``self.bank = value``).
    """
    if ms.get_context("mode") != ms.PYNATIVE_MODE or device_target() != "CPU":
        return {}
    return {one.name: int(one.data_ptr()) for one in network.get_parameters() if one.requires_grad and not one.has_init}


class HostMemory:
    """Memory for one copy of the contents, which is kept: new memory would take longer to get than to fill."""

    def __init__(self) -> None:
        self._memory = np.empty(0, np.uint8)

    def copy(self, contents: Contents) -> Contents:
        """Return contents that training does not change, until the next copy is made."""
        size = sum(len(value) for value in contents.values)
        if len(self._memory) != size:
            self._memory = np.empty(size, np.uint8)
        values, start = [], 0
        for value in contents.values:
            part = self._memory[start : start + len(value)]
            np.copyto(part, np.frombuffer(value, np.uint8))
            values.append(part.data)
            start += len(value)
        return Contents(contents.parameters, tuple(values))


def write_parameters(path: str, form: SliceFormat, parameters: Any) -> Digests | None:
    """Write `Contents`, or a cell whose parameters MindSpore has to read itself; return the digests of the former.

    Raises StorageError when the file system refuses.
    """
    if isinstance(parameters, Contents):
        return write_slice(path, form, parameters.parameters, parameters.values)
    try:
        ms.save_checkpoint(parameters, path, integrated_save=False, format=form)
    except SafetensorError as error:  # of the file system; types were checked before
        raise StorageError(f"{error}; check the directory, and free some space there") from error
    return None
