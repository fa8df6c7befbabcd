"""Layouts of strategy files in the form in which ``metadata.json`` states them."""

from __future__ import annotations

from math import prod

from ms_recover.model.shard_metadata import NEVER_SAVED, SavedLayout
from ms_recover.model.strategy import Layout


def saved_layout(layout: Layout, first_rank: int) -> SavedLayout | None:
    """Return a layout as ``metadata.json`` states it for the stage that begins with this rank.

    MindFormers has no optimizer shards there: they are one more cut of the first dimension, over the finest axes that
    the parameter leaves free, one of which is taken apart where that is needed. A layout over 4 x 2 devices whose rows
    are split over the second axis and over 2 shards is one over 2 x 2 x 2 devices with the map ``[[0, 1], -1]``.

    Returns
    -------
    SavedLayout or None
        None for embeddings that are cut by hand or by field, for nested dimensions, and for shards that do not fit.
    """
    if layout.split_shape or layout.field or layout.tensor_shape:
        return None
    matrix, axes = list(layout.device_matrix[::-1]), list(layout.tensor_map)
    if layout.opt_shard_size and axes and not layout.parameter.startswith(NEVER_SAVED):
        used = {axis for dimension in axes for axis in dimension}
        free = [axis for axis in range(len(matrix)) if axis not in used and matrix[axis] > 1]
        shards = prod(matrix[axis] for axis in free) if layout.opt_shard_size < 0 else layout.opt_shard_size
        taken: list[int] = []
        for axis in free:
            if shards > 1 and shards % matrix[axis] == 0:
                shards //= matrix[axis]
            elif shards > 1 and matrix[axis] % shards == 0:
                matrix[axis : axis + 1] = [shards, matrix[axis] // shards]
                axes = [tuple(one + (one > axis) for one in dimension) for dimension in axes]
                shards = 1
            else:
                break
            taken.insert(0, axis)
        if shards > 1:
            return None
        axes[0] = (*axes[0], *taken)
    ranks = tuple(range(first_rank, first_rank + prod(matrix)))
    names = tuple(chr(ord("a") + number) for number in range(len(matrix)))
    tensor_map = tuple(-1 if not one else one[0] if len(one) == 1 else one for one in axes)
    return SavedLayout(tuple(matrix[::-1]), tensor_map, False, names, ranks)
