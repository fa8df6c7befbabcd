"""What is decided of a model before it is split: its stages, their costs and its parts."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Real
from typing import Any

import numpy as np

from ms_recover.errors import UsageError
from ms_recover.splitting.batches import to_host, to_tensor
from ms_recover.splitting.comparison import same_weights
from ms_recover.splitting.nested import flatten, unflatten
from ms_recover.splitting.options import Options
from ms_recover.splitting.partition import cut_before, partition
from ms_recover.splitting.slices import SliceStore
from ms_recover.splitting.stages import (
    ModelPart,
    Stage,
    estimated_costs,
    measured_costs,
    parameters_of,
    read_weights,
    stages_of,
    whole_model,
)


def find_stages(model: Any, options: Options) -> list[Stage]:
    """Return the stages of a model, one of them for ``split="batch"``; raise as `stages_of`."""
    if options.split == "batch":
        return whole_model(model)
    return stages_of(model, options.stages, assume_chain=options.cut_at is not None)


def names_to_find(model: Any, cells: Sequence[Stage], options: Options) -> list[str] | None:
    """Return the names by which a worker on another host finds the stages; None when the model itself names them."""
    if not options.remote or (options.stages is None and options.cut_at is None):
        return None
    known = {id(cell) for _, cell in model.cells_and_names()}
    foreign = [stage.name for stage in cells if id(stage.cell) not in known]
    if foreign and options.stages is not None:
        raise UsageError(f"stage {foreign[0]} is no cell of the model: a worker on another host cannot make it")
    return None if foreign else [stage.name for stage in cells]


def cut_parts(cells: Sequence[Stage], costs: Sequence[float], options: Options) -> tuple[range, ...]:
    """Return the stages of each part: cut where the options say, else as even as possible."""
    if options.cut_at is None:
        return partition(costs, min(options.num_devices, len(cells)))
    parts = cut_before([stage.name for stage in cells], options.cut_at)
    if len(parts) > options.num_devices:
        raise UsageError(f"cut_at makes {len(parts)} parts for {options.num_devices} devices: give as many devices")
    return parts


def has_weights(store: SliceStore, parts: Sequence[ModelPart]) -> bool:
    """Whether the model still has the weights with which the splitter was made."""
    return all(same_weights(parameters_of(part.stages), read_weights(store.path(n)[0])) for n, part in enumerate(parts))


def find_costs(cells: Sequence[Any], costs: Sequence[float] | None, sample: Any) -> Sequence[float]:
    """Return the cost of each stage: the given one, the seconds for the sample, or the number of weights."""
    if costs is not None:
        if not isinstance(costs, Sequence | np.ndarray) or isinstance(costs, str):
            raise UsageError(f"invalid costs {costs!r:.60}: expected a list of numbers, one for each stage")
        if len(costs) != len(cells):
            raise UsageError(f"{len(costs)} costs for {len(cells)} stages")
        for cost in costs:
            if not isinstance(cost, Real) or isinstance(cost, bool):
                raise UsageError(f"invalid cost {cost!r:.60}: expected a number")
        return costs
    if sample is None or len(cells) == 1:
        return estimated_costs(cells)
    given = sample if isinstance(sample, tuple) else (sample,)
    skeleton, leaves = flatten(given, set())
    return measured_costs(cells, unflatten(skeleton, [to_tensor(to_host(leaf)) for leaf in leaves]))
