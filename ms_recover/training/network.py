"""Bringing a slice into the train network: compile it, then load, and refuse what does not fit."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import mindspore as ms

from ms_recover.errors import InputError
from ms_recover.model.steps import Step
from ms_recover.training.world import device_target

_log = logging.getLogger(__name__)
_MOST_NAMED = 8


@dataclass(frozen=True)
class OwnSlice:
    """The slice a rank resumes from, named in every message about it.

    Parameters
    ----------
    rank : int
        Whose it is.
    step : Step
        Its step.
    path : str
        Absolute path.
    """

    rank: int
    step: Step
    path: str

    def __str__(self) -> str:
        return f"rank {self.rank}, step {self.step}, {self.path}"


def load_slice(own: OwnSlice) -> dict[str, Any]:
    """Read a slice's parameters.

    Raises
    ------
    InputError
        When MindSpore cannot read it.
    """
    try:
        parameters: dict[str, Any] = ms.load_checkpoint(own.path)
    except (ValueError, OSError) as error:
        raise InputError(
            f"{own}: MindSpore cannot load it ({error}); remove the file, and a peer's slice or an older step is taken"
        ) from error
    return parameters


def compile_network(model: Any, dataset: Any, epochs: int, sink: bool, sink_size: int) -> None:
    """Compile the train network, so that its parameters have the shapes that slices have.

    Under (semi-)auto parallel parameters are cut when they are compiled: what is loaded before does not fit.

    Parameters
    ----------
    model : mindspore.train.Model
        Its train network is compiled.
    dataset : mindspore.dataset.Dataset
        In sink mode it is bound to the device queue from where it stands; otherwise one batch is read from a copy,
        and the dataset itself is left as it is.
    epochs : int
        Epochs that `Model.train` will be called with.
    sink : bool
        Whether the dataset is sunk.
    sink_size : int
        Steps per sink, -1 for the whole dataset.
    """
    if sink and device_target() == "Ascend":
        model.build(train_dataset=dataset, epoch=epochs, sink_size=sink_size)
    elif ms.get_context("mode") == ms.GRAPH_MODE:
        network = model.train_network
        network.set_train(True)
        network.phase = "train"
        network.compile(*next(dataset.create_tuple_iterator(num_epochs=1, do_copy=False)))


def load_into_network(network: Any, parameters: Mapping[str, Any], own: OwnSlice) -> None:
    """Load a slice into the compiled train network, all of it or nothing.

    `mindspore.load_param_into_net` goes on when parameters are missing, or takes one whose name merely ends alike.

    Parameters
    ----------
    network : mindspore.nn.Cell
        ``model.train_network``: weights and optimizer state.
    parameters : mapping
        What `load_slice` returned.
    own : OwnSlice
        Whose they are.

    Raises
    ------
    InputError
        When a parameter of the network is not in the slice, or has another shape or type.
    """
    missing = sorted(required_parameters(network) - parameters.keys())
    if missing:
        raise InputError(
            f"{own}: the slice lacks {_names(missing)} of the network, so nothing was loaded; resume with the network "
            "and the optimizer that the slice was saved from"
        )
    try:
        left, unused = ms.load_param_into_net(network, dict(parameters), strict_load=True)
    except (RuntimeError, TypeError, ValueError) as error:
        raise InputError(
            f"{own}: the slice does not fit the network ({error}); resume with the network, the optimizer and the "
            "parallel layout that the slice was saved from"
        ) from error
    if left:
        raise InputError(f"{own}: MindSpore did not load {_names(left)} of the network")
    if unused:
        _log.info("%s: not used by the network: %s", own, ", ".join(unused))


def required_parameters(network: Any) -> set[str]:
    """Return the names a slice of this rank must have.

    Those of the whole network; under (semi-)auto parallel, those the compiler gave to this rank's pipeline stage, as
    in MindSpore's own ``save_checkpoint`` and ``load_param_into_net`` (``train/serialization.py``).
    """
    parameters = [parameter for _, parameter in network.parameters_and_names()]
    compiled_parallel = any(parameter.param_info.is_param_init for parameter in parameters)
    return {
        parameter.name
        for parameter in parameters
        if not parameter.param_info.is_pipeline_shared_param and (parameter.sliced or not compiled_parallel)
    }


def _names(names: list[str]) -> str:
    rest = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return f"parameter{'s' if len(names) > 1 else ''} {', '.join(names[:_MOST_NAMED])}{rest}"
