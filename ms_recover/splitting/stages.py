"""A model as a row of stages: each takes the output of the one before."""

from __future__ import annotations

import contextlib
import io
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import mindspore as ms
from mindspore import nn

from ms_recover.errors import FormatError, UsageError
from ms_recover.splitting.chain import NotAChainError, trace_chain

_REPEATS = 3
MARK = "split.part."
"""Start of the name of an extra value in every slice; the part's number ends it. It gives parts without parameters a
slice, and keeps the list of a short part from looking like the truncated list of a long one. It holds the part's first
stage, the one behind its last, the number of the model's stages, and the number of the part's parameters."""
_HOW = (
    "name its cells in order with stages=[...], or give it a method stages() that returns them (each takes the output "
    'of the one before as its only argument), or wrap them in nn.SequentialCell, or use split="batch", which cuts no '
    "model"
)


@dataclass(frozen=True, eq=False)
class Stage:
    """An indivisible section of a model."""

    index: int
    """Position in the model, from 0."""
    name: str
    """Path in the model, such as ``2`` or ``encoder.0``."""
    cell: Any
    parameters: dict[str, Any] = field(default_factory=dict)
    """By their names in slices: the parameter's own, unless another parameter of the model has the same."""


class ModelPart:
    """Consecutive stages of a model, run one after the other.

    The model's first stage gets the arguments of the call, every other one a single argument.
    """

    def __init__(self, stages: Sequence[Stage]) -> None:
        indexes = [stage.index for stage in stages]
        if not indexes or indexes != list(range(indexes[0], indexes[0] + len(indexes))):
            raise UsageError(f"invalid stages {indexes} of a part: expected consecutive ones")
        self.stages = tuple(stages)

    def slice_values(self, number: int, total: int) -> dict[str, Any]:
        """Return the values of the slice of this part, by name: its number among the parts, `total` stages in all."""
        held = parameters_of(self.stages)
        first = self.stages[0].index
        mark = [first, first + len(self.stages), total, len(held)]
        return {**held, f"{MARK}{number}": ms.Tensor(mark, ms.int32)}

    def load(self, names: Iterable[str], fill: Callable[[str, Any], None], where: str) -> None:
        """Set the weights: `fill` sets a tensor to the value of a name. Other names raise FormatError."""
        wanted = parameters_of(self.stages)
        held = set(names)
        if held != set(wanted):
            raise FormatError(
                f"{where} does not fit this part: {len(held)} parameters, expected {len(wanted)} with other names"
            )
        for name, parameter in wanted.items():
            fill(name, parameter)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return the output of the last stage."""
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


def stages_of(model: Any, given: Sequence[Any] | None = None, *, assume_chain: bool = False) -> list[Stage]:
    """Return the stages between which a model can be cut.

    They are the `given` cells of the model or names of such, or those that its method ``stages()`` returns, or the
    cells of a ``SequentialCell``, or those that a ``construct`` calls which is a chain (see
    `ms_recover.splitting.chain`); with `assume_chain` otherwise the model's cells in order of registration. The first
    stage gets the arguments of the call, each other one the output of the one before. The cells of a ``SequentialCell``
    among them are stages of their own. Raises UsageError when there are no such cells, or the model is in training mode
    or normalizes by the statistics of the batch.
    """
    _check_cell(model)
    kind = type(model).__name__
    declared = getattr(model, "stages", None)
    if given is not None:
        cells = _given_cells(model, given)
    elif callable(declared) and not isinstance(declared, nn.Cell):
        cells = declared()
        if not isinstance(cells, list | tuple | nn.CellList) or not all(isinstance(cell, nn.Cell) for cell in cells):
            raise UsageError(f"{kind}.stages() has to return a list of cells, not {_type_text(cells)}")
    elif _is_sequence(model):
        cells = [model]
    else:
        cells = _chain_cells(model, assume_chain)
    # a stage that is a cell of the model has the name of that cell
    names = {id(cell): name for name, cell in model.cells_and_names()}
    named = [(names.get(id(cell)) or str(getattr(cell, "text", index)), cell) for index, cell in enumerate(cells)]
    found = [pair for name, cell in named for pair in _flat("" if cell is model else name, cell)]
    if not found:
        raise UsageError(f"{kind} has no stages: {_HOW}")
    return _stages(found)


def _given_cells(model: Any, given: Sequence[Any]) -> list[Any]:
    kind = type(model).__name__
    if not isinstance(given, list | tuple | nn.CellList):
        raise UsageError(f"invalid stages {given!r:.60}: expected a list of cells of {kind}, or of their names")
    known = dict(model.cells_and_names())
    cells = []
    for each in given:
        cell = known.get(each) if isinstance(each, str) and each else each
        if not isinstance(cell, nn.Cell):
            raise UsageError(f"invalid stage {each!r:.60}: expected a cell of {kind}, or its name")
        cells.append(cell)
    return cells


def _chain_cells(model: Any, assume_chain: bool) -> list[Any]:
    try:
        return trace_chain(model)
    except NotAChainError as error:
        if not assume_chain:
            why = f"{type(model).__name__} does not define its stages, and is no chain of cells: {error}"
            raise UsageError(f"{why}. So {_HOW}") from None
    cells = [list(cell) if isinstance(cell, nn.CellList) else [cell] for cell in model.cells()]
    return [cell for each in cells for cell in each]


def made_stages(makers: Mapping[int, Callable[[], Any]], seed: int | None) -> list[Stage]:
    """Make the stages of a part, each by its function, under the names of an ``nn.SequentialCell`` of all stages.

    With a `seed` the weights of a stage depend on the seed and its index alone. Raises UsageError when a function
    raises, or returns no cell in inference mode.
    """
    stages: list[Stage] = []
    for index, make in makers.items():
        if seed is not None:
            ms.set_seed(seed + index)
        try:
            cell = make()
        except Exception as error:
            raise UsageError(f"the function of stage {index} raised {type(error).__name__}: {error}") from error
        if not isinstance(cell, nn.Cell):
            raise UsageError(
                f"the function of stage {index} returned {_type_text(cell)} instead of a mindspore.nn.Cell"
            )
        cell.update_parameters_name(f"{index}.")
        stages += _stages([(str(index), cell)], index)
    return stages


def whole_model(model: Any) -> list[Stage]:
    """Return a model as a single stage, for devices that each hold all of it; the same models are refused."""
    _check_cell(model)
    return _stages([("", model)])


def parameters_of(stages: Sequence[Stage]) -> dict[str, Any]:
    """Return the parameters of stages by name, in order; one that several stages share appears once.

    A UsageError says that two parameters have the same name: their values would replace each other.
    """
    found: dict[str, Any] = {}
    for stage in stages:
        for name, parameter in stage.parameters.items():
            if found.setdefault(name, parameter) is not parameter:
                raise UsageError(f"two parameters are named {name!r}, one of them in stage {stage.index}: rename one")
    return found


def estimated_costs(stages: Sequence[Stage]) -> list[float]:
    """Return one more than the number of each stage's parameter elements."""
    return [1.0 + sum(math.prod(each.shape) for each in stage.parameters.values()) for stage in stages]


def measured_costs(
    stages: Sequence[Stage], args: Sequence[Any], clock: Callable[[], float] = time.perf_counter
) -> list[float]:
    """Return the seconds that each stage of a model takes for these arguments, a batch of the size of later chunks.

    Of several runs the fastest counts, because the first compiles and allocates.
    """
    absorb_first_operator_error()
    costs = []
    for stage in stages:
        fastest = math.inf
        for _ in range(_REPEATS):
            began = clock()
            try:
                output = stage.cell(*args)
                ms.runtime.synchronize()  # operators run asynchronously
            except Exception as error:
                where = f"stage {stage.index} ({stage.name})"
                raise UsageError(f"{where} raises {type(error).__name__} for the sample: {error}") from error
            fastest = min(fastest, clock() - began)
        costs.append(max(fastest, 0.0))
        args = (output,)
    return costs


def absorb_first_operator_error() -> None:
    """Trigger MindSpore's one-time NumPy 2 error now, where it is harmless.

    With NumPy 2, a MindSpore that was compiled for NumPy 1 raises SystemError from the first operator of a process that
    takes a Python number (``x * 2.0``), and only from that one.
    """
    with contextlib.suppress(SystemError), contextlib.redirect_stderr(io.StringIO()):
        ms.Tensor(1.0, ms.float32) * 2.0


def _stages(found: Sequence[tuple[str, Any]], first: int = 0) -> list[Stage]:
    """Give numbers to the stages, from `first`, and unique names to their parameters.

    MindSpore names the parameters of cells in a ``SequentialCell`` by position; those of cells in a tuple, without
    prefix or renamed by hand can clash. The recovery core takes one name for one parameter.
    """
    members = [[parameter for _, parameter in cell.parameters_and_names()] for _, cell in found]
    taken = {parameter.name for each in members for parameter in each}
    names: dict[int, str] = {}
    owners: set[str] = set()
    stages = []
    for index, ((name, cell), parameters) in enumerate(zip(found, members, strict=True), first):
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
    """Whether a cell only calls its cells in turn: a ``SequentialCell`` without own ``construct`` and without hooks."""
    return (
        isinstance(cell, nn.SequentialCell)
        and type(cell).construct is nn.SequentialCell.construct
        and "construct" not in vars(cell)
        and not any(
            getattr(cell, hooks, None) for hooks in ("_forward_pre_hook", "_forward_hook", "_shard_fn", "bprop")
        )
    )


def _flat(name: str, cell: Any) -> Iterator[tuple[str, Any]]:
    if not _is_sequence(cell):
        yield name, cell
        return
    # not name_cells(), which omits the second use of a cell
    for key, inner in zip(cell._cells, cell.cell_list, strict=True):
        yield from _flat(f"{name}.{key}" if name else key, inner)


def _check_cell(model: Any) -> None:
    if not isinstance(model, nn.Cell):
        raise UsageError(f"the model has to be a mindspore.nn.Cell, not {_type_text(model)}")


def _check_mode(name: str, stage: Any) -> None:
    """Refuse cells whose output for a row depends on the other rows: a chunk is another batch."""
    for inner, cell in stage.cells_and_names(name_prefix=name):
        where = f"{type(cell).__name__}{inner and ' '}{inner}"
        if cell.training:
            raise UsageError(
                f"{where} is in training mode, where chunks and the whole batch give different outputs (batch "
                "statistics, dropout): call set_train(False) on the model first"
            )
        if getattr(cell, "use_batch_statistics", None) is True:
            raise UsageError(
                f"{where} normalizes by the statistics of the batch, which a chunk lacks: make it with "
                "use_batch_statistics=None or False"
            )


def _type_text(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"{type(value).__name__} of {', '.join(sorted({type(each).__name__ for each in value})) or 'nothing'}"
    return type(value).__name__
