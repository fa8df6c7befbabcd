"""The contents of a slice, and a copy of them in host memory that training does not change."""

from __future__ import annotations

from typing import Any

import mindspore as ms
import numpy as np
from mindspore.experimental import MapParameter

from ms_recover.storage.digest import Digester

Snapshot = list[dict[str, Any]]
"""Name and data of each parameter, in the form that ``mindspore.save_checkpoint`` takes."""


def saved_parameters(network: Any) -> list[Any]:
    """Return the parameters that a slice of this rank must hold, in the order in which MindSpore saves them.

    All parameters of the network, or under (semi-)auto parallel those that the compiler gave to this rank's pipeline
    stage; without parameters that have no elements. ``mindspore.save_checkpoint`` (``train/serialization.py``) chooses
    the same.
    """
    parameters = [parameter for _, parameter in network.parameters_and_names()]
    compiled_parallel = any(parameter.param_info.is_param_init for parameter in parameters)
    everything = not compiled_parallel or ms.get_context("mode") != ms.GRAPH_MODE
    return [
        parameter
        for parameter in parameters
        if not parameter.param_info.is_pipeline_shared_param
        and (everything or (parameter.sliced and not parameter.has_init))
        and 0 not in parameter.shape
    ]


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


def take_snapshot(network: Any) -> Snapshot | None:
    """Copy a network's parameters to host memory; ``mindspore.save_checkpoint`` writes the same bytes from the copy.

    None when there are parameters that it must read itself: maps, cached and offloaded ones, and those that pipeline
    stages share.
    """
    parameters = saved_parameters(network)
    if any(
        parameter.cache_enable or isinstance(parameter, MapParameter) or parameter.data.offload_file_path()
        for parameter in parameters
    ) or any(parameter.param_info.is_pipeline_shared_param for parameter in network.get_parameters()):
        return None
    return [{"name": parameter.name, "data": copy_values(parameter)} for parameter in parameters]


def digest_of(tensor: Any) -> str:
    """Return the digest of a tensor's values, as a manifest states it of a parameter."""
    digester = Digester()
    try:
        digester.update(np.ascontiguousarray(tensor.asnumpy()).reshape(-1).view(np.uint8).data)
    except TypeError:  # a type that numpy does not have
        digester.update(memoryview(ms.Tensor(tensor).get_bytes()))
    return digester.digests().file


def copy_values(parameter: Any) -> Any:
    """Return a parameter's values as a tensor in host memory that nothing else uses."""
    try:
        array = parameter.asnumpy()
    except TypeError:  # a type that numpy does not have, such as bfloat16
        from mindspore._c_expression import TensorPy  # as load_checkpoint does

        data = ms.Tensor(parameter.data).get_bytes()
        return ms.Tensor(TensorPy.convert_bytes_to_tensor(data, parameter.shape, parameter.dtype))
    return ms.Tensor.from_numpy(array.copy())
