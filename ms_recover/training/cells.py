"""The parameters of a training as one cell: what slices are saved from and loaded into."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from mindspore import Parameter, amp, nn
from mindspore.experimental.optim import Optimizer as ExperimentalOptimizer

from ms_recover.errors import UsageError
from ms_recover.model.texts import list_some
from ms_recover.training.options import check_parameters
from ms_recover.training.this_process import device_target

_log = logging.getLogger(__name__)

OPTIMIZERS = (nn.Optimizer, ExperimentalOptimizer)
"""Base classes of MindSpore's optimizers, those of ``mint.optim`` too."""


class _Parts(nn.Cell):  # type: ignore[misc]
    """Cells and parameters as they are, under the names that they have."""

    def __init__(self, parts: list[Any]) -> None:
        super().__init__(auto_prefix=False)
        for number, part in enumerate(parts):
            if isinstance(part, nn.Cell):
                self.insert_child_to_cell(f"part{number}", part)
            else:
                self.insert_param_to_cell(f"part{number}", part, check_name_contain_dot=False)


def as_cell(parameters: Any) -> Any:
    """Return a cell with all of the parameters: a cell, or cells, parameters and loss scalers together.

    Optimizers of ``mindspore.experimental`` keep some, such as the learning rate, where cells do not list them; these
    are added.

    Raises UsageError where there is none, two of them have one name, or one has no name that lasts.
    """
    if isinstance(parameters, nn.Cell):
        whole = parameters
    else:
        if isinstance(parameters, Parameter):
            parts = [parameters]
        elif isinstance(parameters, dict):
            parts = list(parameters.values())
        elif isinstance(parameters, Iterable):
            parts = list(parameters)
        else:
            parts = [parameters]
        parts = [one for part in parts for one in _parts_of(part)]
        for part in parts:
            _check_part(part)
        whole = _Parts(parts)
    hidden = _hidden_parameters(whole)
    if hidden:
        whole = _Parts([whole, *hidden])
    names = [parameter.name for parameter in whole.get_parameters()]
    if not names:
        raise UsageError("parameters: there is none; give the network and the optimizer, such as [network, optimizer]")
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise UsageError(f"parameters: two are named {twice}, so that a slice could not hold both; {_renaming(whole)}")
    return whole


def _parts_of(part: Any) -> list[Any]:
    """Return the parameters of a loss scaler, which is no cell; any other part is itself."""
    if isinstance(part, amp.LossScaler):
        return [one for one in vars(part).values() if isinstance(one, Parameter)]
    return [part]


def _renaming(whole: Any) -> str:
    """Say how parameters of one name get two, such as those of the two optimizers of a GAN."""
    optimizers = [cell for _, cell in whole.cells_and_names() if isinstance(cell, OPTIMIZERS)]
    for number, one in enumerate(optimizers):
        own = {parameter.name for parameter in one.get_parameters()}
        before = [parameter.name for other in optimizers[:number] for parameter in other.get_parameters()]
        if own.intersection(before):
            kind = type(one).__name__
            return (
                f"they are of two optimizers: where the second, {kind}, is made, add a line such as "
                'optimizer_d.update_parameters_name("d.") with its own name and prefix, in every start'
            )
    return 'rename one, such as with network_d.update_parameters_name("d.") before its optimizer is made'


def _hidden_parameters(whole: Any) -> list[Any]:
    """Return the parameters that optimizers keep in plain lists (``mindspore/experimental/optim`` of 2.10)."""
    known = {id(parameter) for parameter in whole.get_parameters()}
    names = {parameter.name for parameter in whole.get_parameters()}
    found: list[Any] = []
    left: list[Any] = []
    for optimizer in (cell for _, cell in whole.cells_and_names() if isinstance(cell, ExperimentalOptimizer)):
        for value in vars(optimizer).values():
            for one in value if isinstance(value, (list, tuple)) else ():
                if isinstance(one, Parameter) and id(one) not in known:
                    known.add(id(one))
                    (left if one.name in names else found).append(one)
                    names.add(one.name)
    if left:
        _log.warning(
            "not saved, because others have their names: %s; give their values to extra where training changes them",
            list_some([one.name for one in left], 8),
        )
    return found


def saved_cell(parameters: Any, form: str, rank: int) -> Any:
    """Return the cell that a saver saves in a format; a warning says so where an optimizer is missing.

    Raises UsageError as `as_cell` and `check_parameters`.
    """
    whole = as_cell(parameters)
    check_parameters(form, whole)
    if not holds_optimizer(whole):
        _log.warning(
            "rank %d: no optimizer is among the parameters, so its state is not saved and a resumed training would "
            "begin with a new one; give SliceSaver [network, optimizer]",
            rank,
        )
    return whole


def holds_optimizer(whole: Any) -> bool:
    """Whether an optimizer is in a cell, or parameters that are named as the states of weights are."""
    if any(isinstance(cell, OPTIMIZERS) for _, cell in whole.cells_and_names()):
        return True
    names = {parameter.name for parameter in whole.get_parameters()}
    return any(name.partition(".")[2] in names for name in names)


def rounding_optimizers(network: Any) -> list[str]:
    """Return the optimizers in a network whose results depend on how often their kernel ran in this process.

    ``ApplyRMSProp`` on CPU shares its work out among threads by trial, and rounds parts of vectors otherwise.
    """
    if device_target() != "CPU":
        return []
    return sorted({type(cell).__name__ for _, cell in network.cells_and_names() if isinstance(cell, nn.RMSProp)})


def _check_part(part: Any) -> None:
    if isinstance(part, Parameter):
        if str(part.name).startswith("Parameter"):  # as MindSpore names them
            raise UsageError(
                f"parameters: {part.name} has no name of its own, and another start would give it another one: "
                "make it with mindspore.Parameter(..., name=...)"
            )
    elif not isinstance(part, nn.Cell):
        model = hasattr(part, "train_network")
        raise UsageError(
            f"parameters: a {type(part).__name__} is neither a cell nor a parameter; give "
            + ("its train_network" if model else "the network and the optimizer, such as [network, optimizer]")
        )
