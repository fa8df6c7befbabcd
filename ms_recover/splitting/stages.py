"""A model as a row of stages: each takes what the one before returned."""

from __future__ import annotations

import contextlib
import io
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import mindspore as ms
from mindspore import nn

from ms_recover.errors import UsageError

_HOW = (
    "give it a method stages() that returns its stages, cells of which each takes the output of the one before as its "
    'only argument, or wrap them in nn.SequentialCell, or use split="batch", which cuts no model'
)


@dataclass(frozen=True, eq=False)
class Stage:
    """A piece of a model that is never cut.

    Parameters
    ----------
    index : int
        Position in the model, from 0.
    name : str
        Where it is in the model, such as ``2`` or ``encoder.0``.
    cell : mindspore.nn.Cell
    parameters : dict of str to mindspore.Parameter
        By the name under which slices hold them: the parameter's own, unless another one of the model has it as well.
    """

    index: int
    name: str
    cell: Any
    parameters: dict[str, Any] = field(default_factory=dict)


class ModelPart:
    """Consecutive stages, run one after the other.

    Parameters
    ----------
    stages : sequence of Stage
        At least one. When the first is the model's first it gets the arguments of the call, else one argument.
    """

    def __init__(self, stages: Sequence[Stage]) -> None:
        indexes = [stage.index for stage in stages]
        if not indexes or indexes != list(range(indexes[0], indexes[0] + len(indexes))):
            raise UsageError(f"a part is made of consecutive stages, not of {indexes}")
        self.stages = tuple(stages)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the last stage returns."""
        first, *others = self.stages
        if first.index and (len(args) != 1 or kwargs):
            raise UsageError(
                f"stage {first.index} ({first.name}) takes one argument, the output of the stage before, "
                f"not {len(args)} and {len(kwargs)} by name"
            )
        value = first.cell(*args, **kwargs)
        for stage in others:
            value = stage.cell(value)
        return value


def stages_of(model: Any) -> list[Stage]:
    """Return the stages of a model that can be cut.

    Parameters
    ----------
    model : mindspore.nn.Cell
        A ``SequentialCell``, or a cell with a method ``stages()`` that returns a list, tuple or ``CellList`` of cells
        whose composition is the same function: the first one gets the arguments of the call, each other one the output
        of the one before. A ``SequentialCell`` among the stages counts as its cells.

    Raises
    ------
    UsageError
        When the model is neither, is in training mode or normalizes by the statistics of the batch.
    """
    _check_cell(model)
    declared = getattr(model, "stages", None)
    kind = type(model).__name__
    if callable(declared) and not isinstance(declared, nn.Cell):
        cells = declared()
        if not isinstance(cells, list | tuple | nn.CellList) or not all(isinstance(cell, nn.Cell) for cell in cells):
            raise UsageError(f"{kind}.stages() has to return a list of cells, not {_told(cells)}")
        # a stage is called what the model calls it where it is one of its cells
        names = {id(cell): name for name, cell in model.cells_and_names()}
        named = [(names.get(id(cell)) or str(index), cell) for index, cell in enumerate(cells)]
        found = [pair for name, cell in named for pair in _flat(name, cell)]
    elif _is_sequence(model):
        found = list(_flat("", model))
    else:
        raise UsageError(f"{kind} does not say what its stages are: {_HOW}")
    if not found:
        raise UsageError(f"{kind} has no stages: {_HOW}")
    return _stages(found)


def whole_model(model: Any) -> list[Stage]:
    """Return a model as one stage, for devices that each hold all of it.

    Raises
    ------
    UsageError
        When it is no cell, is in training mode or normalizes by the statistics of the batch.
    """
    _check_cell(model)
    return _stages([("", model)])


def parameters_of(stages: Sequence[Stage]) -> dict[str, Any]:
    """Return the parameters of a part by name, in order; one that several stages use is there once.

    Raises
    ------
    UsageError
        When two parameters have one name, which happens only to stages that were not found together.
    """
    found: dict[str, Any] = {}
    for stage in stages:
        for name, parameter in stage.parameters.items():
            if found.setdefault(name, parameter) is not parameter:
                raise UsageError(f"two parameters are named {name!r}, one of them in stage {stage.index}: rename one")
    return found


def estimated_costs(stages: Sequence[Stage]) -> list[float]:
    """Return the number of each stage's parameter elements, and one for its work without any."""
    return [1.0 + sum(math.prod(each.shape) for each in stage.parameters.values()) for stage in stages]


def measured_costs(
    stages: Sequence[Stage],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    repeats: int = 3,
    clock: Callable[[], float] = time.perf_counter,
) -> list[float]:
    """Run the stages on a sample and return the seconds that each one takes.

    Parameters
    ----------
    stages : sequence of Stage
        All of a model.
    args, kwargs
        What the model is called with: a batch of the size of the chunks to come.
    repeats : int
        Runs of each stage, of which the fastest counts: the first compiles and allocates.
    clock : callable
        Monotonic, in seconds.

    Raises
    ------
    UsageError
        When `repeats` is not positive.
    """
    if repeats < 1:
        raise UsageError(f"stages cannot be measured {repeats} times: give a positive number")
    absorb_first_operator_error()
    costs = []
    for stage in stages:
        fastest = math.inf
        for _ in range(repeats):
            began = clock()
            output = stage.cell(*args, **kwargs)
            ms.runtime.synchronize()  # operators run behind the call that starts them
            fastest = min(fastest, clock() - began)
        costs.append(max(fastest, 0.0))
        args, kwargs = (output,), {}
    return costs


def absorb_first_operator_error() -> None:
    """Have MindSpore fail here, where nobody minds, if it has to fail once.

    Beside NumPy 2, a MindSpore that was compiled for NumPy 1 raises SystemError from the first operator of a process
    that takes a Python number (``x * 2.0``), and from no other after it.
    """
    with contextlib.suppress(SystemError), contextlib.redirect_stderr(io.StringIO()):
        ms.Tensor(1.0, ms.float32) * 2.0


def _stages(found: Sequence[tuple[str, Any]]) -> list[Stage]:
    """Give stages their numbers, and parameters names, none of them twice in the model.

    MindSpore names the parameters of cells in a ``SequentialCell`` by position, but cells in a tuple, without prefix or
    renamed by hand can clash. The recovery core takes one name for one parameter.
    """
    members = [[parameter for _, parameter in cell.parameters_and_names()] for _, cell in found]
    taken = {parameter.name for each in members for parameter in each}
    names: dict[int, str] = {}
    owners: set[str] = set()
    stages = []
    for index, ((name, cell), parameters) in enumerate(zip(found, members, strict=True)):
        _check_mode(name, cell)
        for parameter in parameters:
            if id(parameter) in names:
                continue
            key = parameter.name
            if key in owners:
                key, count = f"stage_{index}.{parameter.name}", 1
                while key in taken:
                    count += 1
                    key = f"stage_{index}.{parameter.name}_{count}"
            taken.add(key)
            owners.add(key)
            names[id(parameter)] = key
        stages.append(Stage(index, name, cell, {names[id(each)]: each for each in parameters}))
    return stages


def _is_sequence(cell: Any) -> bool:
    """Whether calling a cell is calling its cells in turn: no subclass that does more, no hooks on the whole."""
    return (
        isinstance(cell, nn.SequentialCell)
        and type(cell).construct is nn.SequentialCell.construct
        and not any(
            getattr(cell, hooks, None) for hooks in ("_forward_pre_hook", "_forward_hook", "_shard_fn", "bprop")
        )
    )


def _flat(name: str, cell: Any) -> Iterator[tuple[str, Any]]:
    if not _is_sequence(cell):
        yield name, cell
        return
    # not name_cells(): it leaves out the second use of a cell
    for key, inner in zip(cell._cells, cell.cell_list, strict=True):
        yield from _flat(f"{name}.{key}" if name else key, inner)


def _check_cell(model: Any) -> None:
    if not isinstance(model, nn.Cell):
        raise UsageError(f"the model has to be a mindspore.nn.Cell, not {_told(model)}")


def _check_mode(name: str, stage: Any) -> None:
    """Refuse cells that give a row something else in another batch: a chunk is another batch."""
    for inner, cell in stage.cells_and_names(name_prefix=name):
        where = f"{type(cell).__name__}{inner and ' '}{inner}"
        if cell.training:
            raise UsageError(
                f"{where} is in training mode, where chunks do not give what the whole batch gives (statistics of the "
                "batch, dropout): call set_train(False) on the model first"
            )
        if getattr(cell, "use_batch_statistics", None) is True:
            raise UsageError(
                f"{where} normalizes by the statistics of the batch, which chunks do not have: make it with "
                "use_batch_statistics=None or False"
            )


def _told(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"{type(value).__name__} of {', '.join(sorted({type(each).__name__ for each in value})) or 'nothing'}"
    return type(value).__name__
