"""Which part of a parameter a rank holds, by the layouts of a strategy file.

The rule was checked against MindSpore 2.10's compiler; its source is ``_get_tensor_strategy`` and ``_load_tensor`` in
``mindspore/parallel/_tensor.py``. Optimizer shards go by the position within the replicas, not by
``(rank // step) % size``, which is wrong where the replicas' axes are not neighbours.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from ms_recover.model.grouped import grouped
from ms_recover.model.slices import Parameter
from ms_recover.model.strategy import Layout
from ms_recover.planning.claims.regions import Box

NOT_SHARDED = ("accu_grads.",)
"""Parameters for which strategy files claim an optimizer shard that the slices do not have."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One part of a tensor that is cut into equal parts: for each dimension which part, and of how many."""

    index: tuple[int, ...]
    count: tuple[int, ...]


def cells_of(layout: Layout, ranks: Sequence[int]) -> list[Cell]:
    """Return the part that each of some ranks holds; these are global ranks, and stages own consecutive ones."""
    sizes = layout.device_matrix[::-1]  # tensor maps count axes from the right

    def coordinates(axes: Iterable[int]) -> tuple[list[int], int]:
        """Return where each rank stands on several axes, the coarsest first, and the number of places."""
        column, places = [0] * len(ranks), 1
        for axis in axes:
            size, stride = sizes[axis], prod(sizes[:axis])
            column = [at * size + rank // stride % size for at, rank in zip(column, ranks, strict=True)]
            places *= size
        return column, places

    columns = [coordinates(axes) for axes in layout.tensor_map]
    shards = layout.opt_shard_size
    if shards and columns and not layout.parameter.startswith(NOT_SHARDED):
        used = {axis for axes in layout.tensor_map for axis in axes}
        positions, replicas = coordinates(axis for axis in reversed(range(len(sizes))) if axis not in used)
        shards = replicas if shards < 0 else shards
        rows, parts = columns[0]
        sharded = [row * shards + position % shards for row, position in zip(rows, positions, strict=True)]
        columns[0] = sharded, parts * shards
    count = tuple(parts for _, parts in columns)
    indices = zip(*(column for column, _ in columns), strict=True) if columns else [()] * len(ranks)
    known: dict[tuple[int, ...], Cell] = {}
    return [known.get(index) or known.setdefault(index, Cell(index, count)) for index in indices]


@dataclass(frozen=True, kw_only=True, eq=False)
class Cut:
    """One way of cutting: a layout, the parameters of a stage that are cut like it, and the part that each rank holds.

    `parts` has the `Cell.index` of each rank of the stage, by its place in the stage.
    """

    layout: Layout
    names: frozenset[str]
    parts: tuple[tuple[int, ...], ...]


def find_cuts(layouts: Mapping[str, Layout], devices: int) -> tuple[Cut, ...]:
    """Return the ways in which the parameters of a stage of so many ranks are cut: few, however many parameters."""
    alike = grouped(layouts.values(), cut_alike)
    return tuple(
        Cut(
            layout=members[-1],
            names=frozenset(layout.parameter for layout in members),
            parts=tuple(cell.index for cell in cells_of(members[-1], range(devices))),
        )
        for members in alike.values()
    )


def cut_alike(layout: Layout) -> Layout:
    """Return the same layout for all parameters that are cut alike; equal ones have equal cells on every rank."""
    sharded = layout.opt_shard_size if not layout.parameter.startswith(NOT_SHARDED) else 0
    return replace(layout, parameter="", opt_shard_step=0, opt_shard_size=sharded, tensor_shape=())


def fit(layout: Layout, parameter: Parameter) -> Layout | None:
    """Return a layout with one entry per dimension of the slice's tensor, None when it cannot be that tensor's.

    JSON strategy files cut nested dimensions into several and state the shape after that; here they are put together
    again.
    """
    if len(layout.tensor_map) == len(parameter.shape):
        return layout
    if len(layout.tensor_shape) != len(layout.tensor_map):
        return None
    sizes = layout.device_matrix[::-1]
    merged: list[tuple[int, ...]] = []
    rest = list(zip(layout.tensor_shape, layout.tensor_map, strict=True))
    for local in parameter.shape:
        axes: tuple[int, ...] = ()
        full = 0
        while rest and full < local * prod(sizes[axis] for axis in axes):
            dimension, more = rest.pop(0)
            full, axes = max(full, 1) * dimension, axes + more
        merged.append(axes)
    return replace(layout, tensor_map=tuple(merged), tensor_shape=()) if not rest else None


def region_of(layout: Layout, cell: Cell, shape: tuple[int, ...]) -> Box | None:
    """Return the region of the global tensor that a slice's tensor of this shape is, None when it cannot be that part.

    The layout has one entry per dimension.
    """
    starts = [index * local for index, local in zip(cell.index, shape, strict=True)]
    if layout.split_shape and not layout.field:
        if len(layout.split_shape) != cell.count[0] or layout.split_shape[cell.index[0]] != shape[0]:
            return None
        starts[0] = sum(layout.split_shape[: cell.index[0]])
    return tuple((start, start + local) for start, local in zip(starts, shape, strict=True))


def shape_at(layout: Layout, cell: Cell, like: Parameter) -> Parameter:
    """Return a parameter as the slice of another rank of the stage lists it, by that rank's cell.

    All parts are equal but for embeddings that were split by hand. The layout has one entry per dimension.
    """
    if not layout.split_shape or layout.field or len(layout.split_shape) != cell.count[0] or not like.shape[0]:
        return like
    rows = layout.split_shape[cell.index[0]]
    return replace(like, shape=(rows, *like.shape[1:]), nbytes=like.nbytes // like.shape[0] * rows)
