"""Which part of a parameter a rank holds, by the layouts of a strategy file.

The rule was checked against MindSpore 2.10's compiler; its source is ``_get_tensor_strategy`` and ``_load_tensor`` in
``mindspore/parallel/_tensor.py``. Optimizer shards go by the position within the replicas, not by
``(rank // step) % size``, which is wrong where the replicas' axes are not neighbours.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from ms_recover.model.slices import Parameter
from ms_recover.model.strategy import Layout
from ms_recover.planning.redundancy.regions import Box

NOT_SHARDED = ("accu_grads.",)
"""Parameters for which strategy files claim an optimizer shard that the slices do not have."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One part of a tensor that is cut into equal parts.

    Parameters
    ----------
    index : tuple of int
        Which part, for each dimension.
    count : tuple of int
        Of how many.
    """

    index: tuple[int, ...]
    count: tuple[int, ...]


def cell_of(layout: Layout, rank: int) -> Cell:
    """Return the part that a rank holds.

    Parameters
    ----------
    layout : Layout
        Of the parameter, in the stage of the rank.
    rank : int
        Global rank; stages own consecutive ranks.
    """
    matrix = layout.device_matrix
    coordinates, rest = [], rank % prod(matrix)
    for size in reversed(matrix):
        coordinates.append(rest % size)  # counted from the right, as tensor maps count axes
        rest //= size
    sizes = matrix[::-1]
    index, count = [], []
    for axes in layout.tensor_map:
        part, parts = 0, 1
        for axis in axes:
            part, parts = part * sizes[axis] + coordinates[axis], parts * sizes[axis]
        index.append(part)
        count.append(parts)
    shards, used = layout.opt_shard_size, {axis for axes in layout.tensor_map for axis in axes}
    if shards and index and not layout.parameter.startswith(NOT_SHARDED):
        position, replicas = 0, 1
        for axis in reversed(range(len(sizes))):
            if axis not in used:
                position, replicas = position * sizes[axis] + coordinates[axis], replicas * sizes[axis]
        shards = replicas if shards < 0 else shards
        index[0], count[0] = index[0] * shards + position % shards, count[0] * shards
    return Cell(tuple(index), tuple(count))


def cut_alike(layout: Layout) -> Layout:
    """Return the same layout for all parameters that are cut alike; equal ones have equal cells on every rank."""
    sharded = layout.opt_shard_size if not layout.parameter.startswith(NOT_SHARDED) else 0
    return replace(layout, parameter="", opt_shard_step=0, opt_shard_size=sharded, tensor_shape=())


def fit(layout: Layout, parameter: Parameter) -> Layout | None:
    """Return a layout with one entry per dimension of the slice's tensor, None when it cannot be that tensor's.

    JSON strategy files cut nested dimensions into several and tell the shape after that; here they are put together
    again.

    Parameters
    ----------
    layout : Layout
        Of the parameter.
    parameter : Parameter
        As some slice lists it.
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
    """Return the region of the global tensor that a slice's tensor is.

    Parameters
    ----------
    layout : Layout
        One entry per dimension.
    cell : Cell
        Of the slice's rank.
    shape : tuple of int
        Of the slice's tensor.

    Returns
    -------
    Box or None
        None when the tensor cannot be that part.
    """
    starts = [index * local for index, local in zip(cell.index, shape, strict=True)]
    if layout.split_shape and not layout.field:
        if len(layout.split_shape) != cell.count[0] or layout.split_shape[cell.index[0]] != shape[0]:
            return None
        starts[0] = sum(layout.split_shape[: cell.index[0]])
    return tuple((start, start + local) for start, local in zip(starts, shape, strict=True))


def shape_at(layout: Layout, cell: Cell, like: Parameter) -> Parameter:
    """Return a parameter as the slice of another rank of the stage lists it.

    All parts are equal but for embeddings that were split by hand.

    Parameters
    ----------
    layout : Layout
        One entry per dimension.
    cell : Cell
        Of the other rank.
    like : Parameter
        As some rank of the stage lists it.
    """
    if not layout.split_shape or layout.field or len(layout.split_shape) != cell.count[0] or not like.shape[0]:
        return like
    rows = layout.split_shape[cell.index[0]]
    return replace(like, shape=(rows, *like.shape[1:]), nbytes=like.nbytes // like.shape[0] * rows)
