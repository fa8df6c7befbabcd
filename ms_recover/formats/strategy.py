"""``strategy.ckpt``: the stage a rank belongs to, and how its parameters are cut.

MindSpore writes the same file on every rank of a stage (``strategy_ckpt_config``), in hash order.
Source: ``ParallelStrategyMap`` in ``mindspore/train/node_strategy_pb2.py`` of MindSpore 2.10; for nested tensor maps
``_convert_to_list`` in ``mindspore/parallel/_parallel_serialization.py``.
"""

from __future__ import annotations

import os
from math import prod
from typing import Any

from ms_recover.errors import FormatError
from ms_recover.formats.identify import DESCRIPTIONS, HEAD, classify
from ms_recover.formats.proto import parse
from ms_recover.formats.source import read_small
from ms_recover.model.strategy import Layout, Strategy

MAX_DEVICES = 1 << 24
MAX_AXES = 32
"""No device matrix is larger, or has more axes."""


def read_strategy(path: str | os.PathLike[str]) -> Strategy:
    """Read a strategy file in its protobuf form.

    Parameters
    ----------
    path : str or path-like
        The file.

    Raises
    ------
    MissingInputError
        When nothing has that name.
    FormatError
        When it is no strategy file, or damaged. The JSON form is recognised and refused.
    StorageError
        When the system refuses to open or to read it.
    """
    name = os.fspath(path)
    data = read_small(path, "a strategy file")
    kind = classify(data[:HEAD], len(data))
    if kind != "strategy":
        form = "; of strategies only the protobuf form (*.ckpt) is read" if kind == "json" else ""
        raise FormatError(f"{name}: no strategy file, the file is {DESCRIPTIONS[kind]}{form}; name a strategy.ckpt")
    try:
        message = parse("ParallelStrategyMap", data)
        layouts = {item.param_name: _layout(item) for item in message.parallel_layout_item}
        if len(layouts) != len(message.parallel_layout_item):
            raise FormatError("it has two layouts for one parameter")
    except FormatError as error:
        raise FormatError(f"{name}: unusable strategy file: {error}; take that of another rank of the stage") from error
    return Strategy(
        stages=tuple(sorted({item.parallel_strategys.stage for item in message.parallel_strategy_item})),
        save_count=message.current_stage,
        layouts=tuple(layouts[parameter] for parameter in sorted(layouts)),
        operators=len(message.parallel_strategy_item),
    )


def _layout(item: Any) -> Layout:
    """Turn one ``ParallelLayoutItem`` into a noun; the text of an error names no file."""
    layouts = item.parallel_layouts
    if len(layouts.dev_matrix) != 1:
        raise FormatError(f"{item.param_name!r} has {len(layouts.dev_matrix)} device matrices instead of one")
    matrix = tuple(layouts.dev_matrix[0].dim)
    if not matrix or len(matrix) > MAX_AXES or min(matrix) < 1 or prod(matrix) > MAX_DEVICES:
        raise FormatError(f"the device matrix {list(matrix[:MAX_AXES])} of {item.param_name!r} cannot be meant")
    maps = [tuple(tensor_map.dim) for tensor_map in layouts.tensor_map]
    if len(maps) > 1:
        # Nested: one message per tensor dimension; MindSpore pads with empty ones.
        tensor_map = tuple(axes if axes != (-1,) else () for axes in maps if axes)
    else:
        tensor_map = tuple((axis,) if axis != -1 else () for axes in maps for axis in axes)
    for axis in (axis for axes in tensor_map for axis in axes):
        if not 0 <= axis < len(matrix):
            raise FormatError(f"{item.param_name!r} is split over axis {axis} of {len(matrix)}")
    return Layout(
        parameter=item.param_name,
        device_matrix=matrix,
        tensor_map=tensor_map,
        opt_shard_step=layouts.opt_weight_shard_step,
        opt_shard_size=layouts.opt_weight_shard_size,
    )
