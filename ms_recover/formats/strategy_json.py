"""Strategy files in their JSON form, which MindSpore writes where ``save_file`` ends in ``.json``.

::

    {"current_stage": 2,
     "parallel_strategy_item": {operator: {"stage": 0, "parallel_strategy": [[2, 1], ...]}, ...},
     "parallel_layout_item": {parameter: {
         "dev_matrix": [2, 2, 2], "tensor_map": [-1, 1, 0], "tensor_shape": [32, 2, 32],
         "field": 0, "opt_weight_shard_step": 0, "opt_weight_shard_size": 0,
         "param_split_shape": [...], "indices_offset": [...]}, ...}, ...}

A dimension that is split over several axes stands as several dimensions, one per axis, in ``tensor_map`` and
``tensor_shape`` alike; which of them belong together follows only from the shape of the slice's tensor.
``tensor_shape`` is the shape of the whole tensor. The last two keys are there only for embeddings split by hand.

Source: ``_build_json_strategy`` in ``mindspore/parallel/_parallel_serialization.py`` of MindSpore 2.10, and ``to_json``
in its ``strategy_checkpoint_info.cc``.
"""

from __future__ import annotations

from typing import Any

from ms_recover.bounded_json import are_numbers, decode_object, is_text
from ms_recover.errors import FormatError
from ms_recover.model.strategy import Layout, Strategy

_MOST_BRACKETS = 1 << 20
_MOST_COMMAS = 1 << 22
_MOST_NUMBERS = 1 << 16
_MAX_STAGE = 1 << 24


def decode_json(data: bytes) -> Strategy:
    """Turn the JSON form into a noun; the caller checks the layouts. The text of a FormatError names no file."""
    found = decode_object(data, brackets=_MOST_BRACKETS, commas=_MOST_COMMAS)
    operators = _objects(found, "parallel_strategy_item")
    layouts = _objects(found, "parallel_layout_item")
    if not operators and not layouts:
        raise FormatError("it names no operator and no parameter")
    count = found.get("current_stage", 0)
    stages: list[Any] = [item.get("stage") for item in operators.values()]
    if not are_numbers([count, *stages], len(stages) + 1) or max(stages, default=0) >= _MAX_STAGE:
        raise FormatError("its stages are invalid")
    return Strategy(
        stages=tuple(sorted(set(stages))),
        save_count=count,
        layouts=tuple(_layout(name, layouts[name]) for name in sorted(layouts)),
        operators=len(operators),
    )


def _objects(found: dict[str, Any], key: str) -> dict[str, dict[str, Any]]:
    items = found.get(key, {})
    if not isinstance(items, dict) or not all(is_text(n) and isinstance(item, dict) for n, item in items.items()):
        raise FormatError(f"its {key} is no object of objects")
    return items


def _layout(name: str, item: dict[str, Any]) -> Layout:
    shape = _numbers(name, item, "tensor_shape", 0) if "tensor_shape" in item else ()
    axes = _numbers(name, item, "tensor_map", -1)
    if shape and len(shape) != len(axes):
        raise FormatError(f"{name[:100]!r} has {len(shape)} dimensions in tensor_shape and {len(axes)} in tensor_map")
    numbers = [item.get(key) for key in ("opt_weight_shard_step", "opt_weight_shard_size", "field")]
    if not are_numbers(numbers, 3, -(1 << 31)):
        raise FormatError(f"{name[:100]!r} has an optimizer shard or a field that is not a number")
    step, size, field = (int(number) for number in numbers if number is not None)
    return Layout(
        parameter=name,
        device_matrix=_numbers(name, item, "dev_matrix", 0),
        tensor_map=tuple(() if axis == -1 else (axis,) for axis in axes),
        opt_shard_step=step,
        opt_shard_size=size,
        split_shape=_numbers(name, item, "param_split_shape", 0) if "param_split_shape" in item else (),
        indices_offset=_numbers(name, item, "indices_offset", -(1 << 63)) if "indices_offset" in item else (),
        field=field,
        tensor_shape=shape,
    )


def _numbers(name: str, item: dict[str, Any], key: str, least: int) -> tuple[int, ...]:
    values = item.get(key)
    if not are_numbers(values, _MOST_NUMBERS, least):
        raise FormatError(f"{name[:100]!r} has no {key} that can be meant")
    assert isinstance(values, list)
    return tuple(values)
