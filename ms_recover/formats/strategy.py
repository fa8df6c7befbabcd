"""Strategy files: the pipeline stage of a rank, and the cuts of its parameters.

MindSpore writes the same file on every rank of a stage (``strategy_ckpt_config``), in hash order: ``strategy.ckpt``, or
JSON where the name ends in ``.json``.
Source: ``ParallelStrategyMap`` in ``mindspore/train/node_strategy_pb2.py`` of MindSpore 2.10; for nested tensor maps
``_convert_to_list`` in ``mindspore/parallel/_parallel_serialization.py`` and ``to_protobuf`` in its
``strategy_checkpoint_info.cc``.
"""

from __future__ import annotations

import os
from math import prod
from typing import Any

from ms_recover.errors import FormatError, UsageError
from ms_recover.formats.identify import DESCRIPTIONS, HEAD, classify
from ms_recover.formats.proto import message_class, parse
from ms_recover.formats.reading import read_small
from ms_recover.formats.strategy_json import decode_json
from ms_recover.model.strategy import Layout, Strategy

MAX_DEVICES = 1 << 24
MAX_AXES = 32
"""No device matrix is larger, or has more axes."""


def read_strategy(path: str | os.PathLike[str]) -> Strategy:
    """Read a strategy file, in its protobuf or its JSON form, whatever its name.

    Raises
    ------
    FormatError
        When it is no strategy file, or damaged.
    MissingInputError, StorageError
        As `ms_recover.formats.reading.open_regular`.
    """
    return decode_strategy(read_small(path, "a strategy file"), os.fspath(path))


def decode_strategy(data: bytes, where: str) -> Strategy:
    """Decode the bytes of a strategy file, `where` in messages; a FormatError when it is none, or damaged."""
    kind = classify(data[:HEAD], len(data))
    if kind != "strategy":
        raise FormatError(f"{where}: no strategy file, the file is {DESCRIPTIONS[kind]}; name a strategy.ckpt")
    try:
        strategy = _decode_protobuf(data) if data[:1] == b"\x08" else decode_json(data)
        for layout in strategy.layouts:
            _check(layout)
    except FormatError as error:
        raise FormatError(
            f"{where}: unusable strategy file: {error}; take that of another rank of the stage"
        ) from error
    return strategy


def encode_strategy(strategy: Strategy) -> bytes:
    """Return a strategy file in its protobuf form, which MindSpore's ``build_searched_strategy`` reads.

    Operators are no part of a `Strategy`: one of each stage stands for them, because only they name it.

    Raises
    ------
    UsageError
        When a layout is invalid, occurs twice, or still has its `Layout.tensor_shape`, which only the JSON form knows.
    """
    message = message_class("ParallelStrategyMap")()
    message.current_stage = strategy.save_count
    for stage in strategy.stages:
        item = message.parallel_strategy_item.add()
        item.node_name = f"stage{stage}"
        item.parallel_strategys.stage = stage
    if len({layout.parameter for layout in strategy.layouts}) != len(strategy.layouts):
        raise UsageError("a strategy file has one layout per parameter, here is one with two")
    for layout in strategy.layouts:
        try:
            _check(layout)
        except FormatError as error:
            raise UsageError(f"no strategy file can be made of this: {error}") from None
        if layout.tensor_shape:
            raise UsageError(f"{layout.parameter!r} has a layout of the JSON form: put its dimensions together first")
        item = message.parallel_layout_item.add()
        item.param_name = layout.parameter
        _fill(item.parallel_layouts, layout)
    data: bytes = message.SerializeToString()
    return data


def _decode_protobuf(data: bytes) -> Strategy:
    message = parse("ParallelStrategyMap", data)
    layouts = {item.param_name: _layout(item) for item in message.parallel_layout_item}
    if len(layouts) != len(message.parallel_layout_item):
        raise FormatError("it has two layouts for one parameter")
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
    if len(layouts.param_split_shape) > 1 or len(layouts.indices_offset) > 1:
        raise FormatError(f"{item.param_name!r} is split by hand more than once")
    maps = [tuple(tensor_map.dim) for tensor_map in layouts.tensor_map]
    if len(maps) > 1:
        # Nested: one message per tensor dimension; MindSpore pads with empty ones.
        tensor_map = tuple(axes if axes != (-1,) else () for axes in maps if axes)
    else:
        tensor_map = tuple((axis,) if axis != -1 else () for axes in maps for axis in axes)
    return Layout(
        parameter=item.param_name,
        device_matrix=tuple(layouts.dev_matrix[0].dim),
        tensor_map=tensor_map,
        opt_shard_step=layouts.opt_weight_shard_step,
        opt_shard_size=layouts.opt_weight_shard_size,
        split_shape=tuple(rows for message in layouts.param_split_shape for rows in message.dim),
        indices_offset=tuple(offset for message in layouts.indices_offset for offset in message.dim),
        field=layouts.field,
    )


def _fill(layouts: Any, layout: Layout) -> None:
    """Put a layout into a ``ParallelLayouts`` as MindSpore's ``to_protobuf`` does."""
    layouts.dev_matrix.add().dim.extend(layout.device_matrix)
    if all(len(axes) < 2 for axes in layout.tensor_map):
        layouts.tensor_map.add().dim.extend(axes[0] if axes else -1 for axes in layout.tensor_map)
    else:
        for axes in layout.tensor_map:
            layouts.tensor_map.add().dim.extend(axes or (-1,))
        if len(layout.tensor_map) == 1:
            layouts.tensor_map.add()
    layouts.param_split_shape.add().dim.extend(layout.split_shape)
    layouts.indices_offset.add().dim.extend(layout.indices_offset)
    layouts.field = layout.field
    layouts.opt_weight_shard_step = layout.opt_shard_step
    layouts.opt_weight_shard_size = layout.opt_shard_size


def _check(layout: Layout) -> None:
    """Refuse an invalid layout; the text of an error names no file."""
    name, matrix = repr(layout.parameter[:100]), layout.device_matrix
    if not matrix or len(matrix) > MAX_AXES or min(matrix) < 1 or prod(matrix) > MAX_DEVICES:
        raise FormatError(f"the device matrix {list(matrix[:MAX_AXES])} of {name} is invalid")
    if len(layout.tensor_map) > MAX_AXES:
        raise FormatError(f"{name} has {len(layout.tensor_map)} dimensions")
    used: set[int] = set()
    for axis in (axis for axes in layout.tensor_map for axis in axes):
        if not 0 <= axis < len(matrix):
            raise FormatError(f"{name} is split over axis {axis} of {len(matrix)}")
        if axis in used:
            raise FormatError(f"{name} is split over axis {axis} twice")
        used.add(axis)
    if layout.opt_shard_size < -1 or layout.field < 0:
        raise FormatError(f"{name} has {layout.opt_shard_size} optimizer shards and field {layout.field}")
    if max(abs(layout.opt_shard_step), layout.opt_shard_size, layout.field) >> 31:
        raise FormatError(f"the optimizer shard or the field of {name} does not fit into 32 bits")
    rows, offsets = layout.split_shape, layout.indices_offset
    if min(rows, default=0) < 0 or (offsets and len(offsets) != len(rows)):
        raise FormatError(f"{name} is split by hand into {list(rows[:8])}, which is invalid")
