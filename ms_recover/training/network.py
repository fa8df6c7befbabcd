"""Loading a slice: compile the train network, load all of the slice or nothing, and compare it with the manifest."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import mindspore as ms
import numpy as np
from mindspore.experimental import MapParameter
from mindspore.parallel.auto_parallel import AutoParallel

from ms_recover.errors import InputError, MsRecoverError, StorageError, VerificationError
from ms_recover.file_names import MANIFEST_SUFFIX
from ms_recover.formats.manifest import read_manifest
from ms_recover.loading.contents import SliceContents
from ms_recover.loading.slices import load_contents
from ms_recover.loading.tensors import parameters_of
from ms_recover.model.manifest import Manifest
from ms_recover.model.texts import list_some
from ms_recover.stores.digest import digest_of
from ms_recover.stores.local_store import LocalStore
from ms_recover.training.deciding.own_slice import OwnSlice, digests_by_name
from ms_recover.training.deciding.resume_text import VALUES
from ms_recover.training.generators import generator_states, restore_generators
from ms_recover.training.mindspore_inside import (
    broadcasts_parameters,
    parallel_context_of,
    without_gradient,
    wrapped_network,
)
from ms_recover.training.proof import resume_line
from ms_recover.training.snapshot import is_compiled_parallel, saved_parameters, values_of
from ms_recover.training.this_process import device_target

_log = logging.getLogger(__name__)

_OTHER_LAYOUT = "; where only the parallel layout is another one, reshard=True cuts the slices anew"


def load_slice(own: OwnSlice, kept: SliceContents | None = None) -> dict[str, Any]:
    """Return a slice's parameters, in memory of their own that is read once; `kept` if it was read to prove it.

    Raises
    ------
    InputError
        When it is no sound slice, or encrypted.
    VerificationError
        When its bytes are not those of its manifest, or of its CRC where it has no manifest.
    """
    if kept is None:
        try:
            manifest = read_manifest(own.path + MANIFEST_SUFFIX)
        except MsRecoverError:  # which `load_into` says
            manifest = None
        try:
            kept = load_contents(LocalStore("/"), os.path.abspath(own.path)[1:], manifest)
        except (InputError, StorageError) as error:
            raise InputError(
                f"{own}: MindSpore cannot load it ({error}); remove the file, so that another rank's slice or an older "
                "step is used"
            ) from error
    return parameters_of(kept)


def compile_network(model: Any, dataset: Any, epochs: int, sink: bool, sink_size: int) -> None:
    """Compile the train network where its parameters have the shapes of those in slices only afterwards.

    Under (semi-)auto parallel the compiler cuts them. In sink mode the dataset is bound to the device queue from its
    present position; otherwise the shapes and types of its samples suffice. MindSpore reads a sample to find them; what
    that draws from generators is put back. Elsewhere the first step compiles the network, as in any training.
    """
    if sink and device_target() == "Ascend":
        model.build(train_dataset=dataset, epoch=epochs, sink_size=sink_size)
    elif ms.get_context("mode") == ms.GRAPH_MODE and _is_cut_by_compiler(model):
        before = generator_states()
        try:
            with parallel_context_of(wrapped_network(model)):
                columns = zip(dataset.output_shapes(), dataset.output_types(), strict=True)
                batch = [ms.Tensor(np.zeros(shape, dtype)) for shape, dtype in columns]
                network = model.train_network
                network.set_train(True)
                network.phase = "train"
                network.compile(*batch)
        finally:
            restore_generators(before, ("python", "numpy"))


def _is_cut_by_compiler(model: Any) -> bool:
    """Whether the parameters change when the network is compiled; they may also be broadcast from another rank."""
    return isinstance(wrapped_network(model), AutoParallel) or _is_auto_parallel() or broadcasts_parameters(model)


def _is_auto_parallel() -> bool:
    mode = ms.get_auto_parallel_context("parallel_mode")
    return mode in (ms.ParallelMode.SEMI_AUTO_PARALLEL, ms.ParallelMode.AUTO_PARALLEL)


_SEVERAL = "a script with several trainings gives each a prefix of its own (SliceCheckpoint(prefix=...))"


def _advice(network: Any, same: str) -> str:
    """Say what to do about a slice that does not fit: compile, where the compiler is going to cut the parameters."""
    wrapped = any(isinstance(cell, AutoParallel) for _, cell in network.cells_and_names())
    if (wrapped or _is_auto_parallel()) and not is_compiled_parallel(network):
        return (
            "the compiler of (semi-)auto parallel cuts its parameters, and has not yet: compile it before, with "
            "Model.build or by its first step"
        )
    return f"resume with {same} that the slice was saved from{_OTHER_LAYOUT}; {_SEVERAL}"


def load_into_network(
    network: Any,
    parameters: Mapping[str, Any],
    own: OwnSlice,
    initial: Collection[str] = (),
    *,
    in_place: bool = True,
) -> None:
    """Load a slice into the compiled train network, optimizer state included, all of it or nothing.

    `mindspore.load_param_into_net` accepts missing parameters, and parameters whose names only end alike. Here
    InputError is raised when a parameter of the network is not in the slice, or has another shape or type. Those named
    `initial` keep the values that the network has.

    Values are written `in_place`, unless a parameter has no memory yet. `load_param_into_net` gives a parameter other
    memory: what MindSpore compiled before, such as an optimizer in PyNative mode, then goes on with the old one, and
    training changes nothing any more.
    """
    required = {parameter.name for parameter in saved_parameters(network)}.difference(initial)
    parameters = {name: value for name, value in parameters.items() if name not in initial}
    missing = sorted(required - parameters.keys())
    if missing:
        raise InputError(
            f"{own}: the slice lacks {_names(missing)} of the network, so nothing was loaded; "
            f"{_advice(network, 'the network and the optimizer')}"
        )
    _check_rates(network, parameters, own)
    if in_place and (pairs := _fitting(network, required, parameters)) is not None:
        with without_gradient():
            for parameter, value in pairs:
                parameter.copy_(value.data)
        unused = sorted(parameters.keys() - {parameter.name for parameter, _ in pairs})
        _name_unused(own, unused)
        return
    try:
        left, unused = ms.load_param_into_net(network, dict(parameters), strict_load=True)
    except (RuntimeError, TypeError, ValueError) as error:
        advice = _advice(network, "the network, the optimizer and the parallel layout")
        raise InputError(f"{own}: the slice does not fit the network ({error}); {advice}") from error
    if not required.isdisjoint(left):
        raise InputError(f"{own}: MindSpore did not load {_names(sorted(required.intersection(left)))} of the network")
    _name_unused(own, unused)


def _check_rates(network: Any, parameters: Mapping[str, Any], own: OwnSlice) -> None:
    """Refuse a list of learning rates of another length than the slice has, and say how training goes on with it."""
    for one in network.get_parameters():
        shape, saved = list(one.shape), list(getattr(parameters.get(one.name), "shape", one.shape))
        if one.name.startswith("learning_rate") and shape != saved and len(shape) == len(saved) == 1:
            raise InputError(
                f"{own}: {one.name} is a list of {shape[0]} values in the program, and of {saved[0]} in the slice: "
                f"keep=[{one.name!r}] goes on with the program's, from the saved step on, so that a list made for more "
                "epochs is taken; or give the list that the slice was saved with. Nothing was loaded"
            )


def _fitting(network: Any, required: Collection[str], parameters: Mapping[str, Any]) -> list[tuple[Any, Any]] | None:
    """Return the parameters of a network and the values to write into their memory; None when some cannot be."""
    pairs = []
    for parameter in network.get_parameters():
        value = parameters.get(parameter.name)
        if value is None and parameter.name not in required:
            continue
        if isinstance(parameter, MapParameter) or not isinstance(value, ms.Tensor):
            return None
        if parameter.has_init or parameter.cache_enable or parameter.data.offload_file_path():
            return None
        if parameter.shape != value.shape or parameter.dtype != value.dtype:
            return None
        pairs.append((parameter, value))
    return pairs


def _name_unused(own: OwnSlice, names: Sequence[str]) -> None:
    if names:
        _log.warning(
            "%s: the network has no %s, so what the slice holds of it is not loaded; is something frozen or removed? "
            "(%s)",
            own,
            _names(sorted(names)),
            _SEVERAL,
        )
        resume_line().doubt(f"the network has no {_names(sorted(names))}", *VALUES)


def check_network(network: Any, manifest: Manifest, own: OwnSlice, initial: Collection[str] = ()) -> int:
    """Compare the values in the train network with the slice's manifest; return the number of compared parameters.

    Those named `initial` were not loaded.

    Raises VerificationError when a parameter differs from the slice as it was saved.
    """
    expected = digests_by_name(manifest)
    return check_values(network, {name: one for name, one in expected.items() if name not in initial}, own)


def check_values(network: Any, expected: Mapping[str, str], own: OwnSlice) -> int:
    """Compare the values in the train network with digests by name; result and errors as for `check_network`."""
    loaded = [one for one in saved_parameters(network) if one.name in expected]
    wrong = [parameter.name for parameter in loaded if digest_of(values_of(parameter.data)) != expected[parameter.name]]
    if wrong:
        raise VerificationError(
            f"{own}: in the network {_names(wrong)} differ{'' if len(wrong) > 1 else 's'} from the manifest, so "
            "nothing is trained: the memory of this device is faulty, or the network was changed after loading; run "
            "again, and on another device if it happens again"
        )
    return len(loaded)


def _names(names: list[str]) -> str:
    return f"parameter{'s' if len(names) > 1 else ''} {list_some(names, 8)}"
