"""One entry of ``metadata.json``: checked JSON values as nouns, and the shard ids that name the entries of storage."""

from __future__ import annotations

import re
from itertools import pairwise
from math import prod
from typing import Any

from ms_recover.bounded_json import are_numbers, is_text
from ms_recover.errors import FormatError
from ms_recover.file_names import weights_name
from ms_recover.formats.dtypes import ITEM_SIZES
from ms_recover.model.shard_metadata import SavedLayout, ShardedParameter, StoredShard

MAX_RANK = 1 << 24
"""Ranks are smaller than this."""
MAX_NAME = 4096
"""Longest name of a parameter or a file, in characters."""
MOST_DIMENSIONS = 64
MAX_ELEMENTS = 1 << 60
"""Elements of a whole tensor."""

DTYPES = {name.lower(): name for name in ITEM_SIZES if name != "str"}
"""MindSpore's type names by their lower case, which MindFormers writes."""

_LAYOUT = ("device_matrix", "tensor_map", "interleaved_parallel", "alias_name", "rank_list")
_ENTRY = ("properties", "global_shape", "axis_fragmentations", "layout", "chunk")
_PROPERTIES = ("dtype", "replica_id", "allow_shape_mismatch", "allow_to_save")
_CHUNK = ("global_offset", "local_shape")
_ITEM = ("file_name", "storage_rank", "rank_group")

_PLAIN_ID = re.compile(r"\('([^'\\]{1,4096})', \((0|[1-9][0-9]{0,17}),\)\)\Z")
_SHARD_ID = re.compile(r"""\((?P<text>'[^']*'|"[^"]*"|'(?:[^'\\]|\\.)*'), \((?P<index>0|[1-9][0-9]{0,17}),\)\)\Z""")
_ESCAPE = re.compile(r"\\(?:x([0-9a-f]{2})|u([0-9a-f]{4})|U([0-9a-f]{8})|(.))", re.DOTALL)
_ESCAPED = {"n": "\n", "r": "\r", "t": "\t", "\\": "\\", "'": "'", '"': '"'}


def parse_shard_id(text: str) -> tuple[str, int]:
    """Return the parameter's name and the index of the fragment of a shard id, ``('name', (3,))`` as Python writes it.

    Raises
    ------
    FormatError
        When it is anything else.
    """
    if (plain := _PLAIN_ID.match(text)) and plain[1].isprintable():
        return plain[1], int(plain[2])
    found = _SHARD_ID.match(text)
    if found and len(text) <= 2 * MAX_NAME:
        name = found["text"][1:-1]
        if "\\" in name:
            name = _ESCAPE.sub(_unescape, name)
        index = int(found["index"])
        if repr((name, (index,))) == text:
            return name, index
    raise FormatError(f"{text[:100]!r} is no shard id such as \"('name', (0,))\"")


def make_parameter(value: Any) -> tuple[ShardedParameter, set[str]]:
    """Return an entry of ``state_dict_metadata``, and the names of the members in it that are not known.

    Raises
    ------
    FormatError
        When a member is missing or of another kind, or members contradict each other. The text names no parameter.
    """
    entry, unknown = _members(value, _ENTRY, "it")
    properties, more = _members(entry["properties"], _PROPERTIES, "properties")
    unknown |= more
    shape = _sizes(entry["global_shape"], "global_shape")
    parts = _sizes(entry["axis_fragmentations"], "axis_fragmentations")
    if len(shape) != len(parts):
        raise FormatError(f"global_shape {list(shape)} and axis_fragmentations {list(parts)} differ in length")
    if any(whole % count for whole, count in zip(shape, parts, strict=True)):
        raise FormatError(f"global_shape {list(shape)} does not divide into axis_fragmentations {list(parts)}")
    if prod(shape) > MAX_ELEMENTS:
        raise FormatError(f"global_shape {list(shape)} has too many elements")
    layout = None if entry["layout"] is None else _layout(entry["layout"])
    chunks, more = _chunks(entry["chunk"], tuple(whole // count for whole, count in zip(shape, parts, strict=True)))
    _check_cut(parts, layout, chunks)
    dtype, replicas = properties["dtype"], properties["replica_id"]
    if not isinstance(dtype, str) or dtype.lower() not in DTYPES:
        raise FormatError(f"properties.dtype {str(dtype)[:40]!r} is no type of MindSpore")
    if layout and isinstance(replicas, list):
        if not are_numbers(replicas, len(layout.rank_list)) or len(replicas) != len(layout.rank_list):
            raise FormatError("properties.replica_id is not one number for each rank of rank_list")
        replicas = tuple(replicas)
    elif not are_numbers([replicas], 1):
        raise FormatError("properties.replica_id is no number")
    flags = properties["allow_shape_mismatch"], properties["allow_to_save"]
    if not all(type(flag) is bool for flag in flags):
        raise FormatError("properties.allow_shape_mismatch or allow_to_save is neither true nor false")
    name = DTYPES[dtype.lower()]
    return ShardedParameter(
        dtype, replicas, shape, parts, layout, chunks, *flags, name, ITEM_SIZES[name]
    ), unknown | more


def make_shards(value: Any) -> tuple[tuple[StoredShard, ...], set[str]]:
    """Return an entry of ``storage_data``, and the names of the members in it that are not known.

    A rank group that is not stated is empty.

    Raises
    ------
    FormatError
        As `make_parameter`.
    """
    if not isinstance(value, list) or not value:
        raise FormatError("it is no list of files")
    unknown: set[str] = set()
    items = []
    for item in value:
        members, more = _members(item, _ITEM, "a file", optional=("rank_group",))
        unknown |= more
        group = members.get("rank_group", [])
        if not are_numbers([members["storage_rank"]], 1) or not are_numbers(group, MAX_RANK):
            raise FormatError("storage_rank or rank_group is no rank")
        if "rank_group" in members and not group:
            raise FormatError("rank_group is empty")
        items.append(StoredShard(members["file_name"], members["storage_rank"], tuple(group)))
    return check_shards(tuple(items)), unknown


def check_shards(items: tuple[StoredShard, ...]) -> tuple[StoredShard, ...]:
    """Return the files of one shard; a FormatError says what is impossible about them."""
    group = items[0].rank_group
    checked = None
    for item in items:
        if not is_weights_name(item.file_name):
            raise FormatError(f"file_name {str(item.file_name)[:100]!r} is no file of an iteration")
        if item.rank_group != group:
            raise FormatError("the rank_groups of its files differ")
        if item.rank_group is not checked:
            checked = item.rank_group
            if any(one >= other for one, other in pairwise(group)):
                raise FormatError("rank_group is not ascending")
        if item.storage_rank >= MAX_RANK or (group and group[-1] >= MAX_RANK):
            raise FormatError(f"ranks of {MAX_RANK} and more are impossible")
    ranks = {item.storage_rank for item in items}
    if len(ranks) != len(items) or len({item.file_name for item in items}) != len(items):
        raise FormatError("a file or a storage_rank is listed twice for it")
    if group and not ranks <= set(group):
        raise FormatError(f"storage_rank {min(ranks - set(group))} is not in its rank_group")
    kinds = {name.kind for item in items if (name := weights_name(item.file_name))}
    if len(kinds) > 1:
        raise FormatError("it is listed in a model file and in an opt file")
    return items


def is_weights_name(name: Any) -> bool:
    """Whether a value is the name of a file of an iteration that can be used as it is: no directory, no controls."""
    return is_text(name) and len(name) <= MAX_NAME and name.isprintable() and weights_name(name) is not None


def _unescape(found: re.Match[str]) -> str:
    code = found[1] or found[2] or found[3]
    if not code:
        return _ESCAPED.get(found[4], found[0])
    return chr(int(code, 16)) if int(code, 16) < 0x110000 else found[0]


def _members(
    value: Any, names: tuple[str, ...], where: str, optional: tuple[str, ...] = ()
) -> tuple[dict[str, Any], set[str]]:
    if not isinstance(value, dict):
        raise FormatError(f"{where} is no object")
    for name in names:
        if name not in value and name not in optional:
            raise FormatError(f"{where} has no {name}")
    return value, value.keys() - set(names)


def _sizes(value: Any, where: str) -> tuple[int, ...]:
    if not are_numbers(value, MOST_DIMENSIONS, 1):
        raise FormatError(f"{where} is no list of up to {MOST_DIMENSIONS} numbers from 1 on")
    return tuple(value)


def _layout(value: Any) -> SavedLayout:
    members, unknown = _members(value, _LAYOUT, "layout")
    if unknown:
        raise FormatError(f"layout has the member {min(unknown)[:40]!r}, which its readers take for another one")
    matrix = _sizes(members["device_matrix"], "layout.device_matrix")
    names, ranks, axes = members["alias_name"], members["rank_list"], members["tensor_map"]
    if not isinstance(names, list) or len(names) != len(matrix) or not all(map(is_text, names)):
        raise FormatError("layout.alias_name is not one name for each axis of device_matrix")
    if len(set(names)) != len(names):
        raise FormatError("layout.alias_name has a name twice")
    if not are_numbers(ranks, MAX_RANK) or len(ranks) != prod(matrix):
        raise FormatError(f"layout.rank_list is not {prod(matrix)} ranks, the product of device_matrix")
    if ranks != list(range(ranks[0], ranks[0] + len(ranks))) or ranks[0] % len(ranks) or ranks[-1] >= MAX_RANK:
        raise FormatError("layout.rank_list is no pipeline stage: consecutive ranks from a multiple of their number on")
    if type(members["interleaved_parallel"]) is not bool:
        raise FormatError("layout.interleaved_parallel is neither true nor false")
    if not isinstance(axes, list) or len(axes) > MOST_DIMENSIONS:
        raise FormatError("layout.tensor_map is no list of axes")
    tensor_map: list[int | tuple[int, ...]] = []
    for item in axes:
        several = isinstance(item, list)
        if not are_numbers(item if several else [item], len(matrix), 0 if several else -1) or item == []:
            raise FormatError("layout.tensor_map has an item that is neither -1, nor an axis, nor a list of axes")
        tensor_map.append(tuple(item) if several else item)
    layout = SavedLayout(tuple(matrix), tuple(tensor_map), members["interleaved_parallel"], tuple(names), tuple(ranks))
    used = [axis for dimension in layout.axes for axis in dimension]
    if len(set(used)) != len(used) or max(used, default=-1) >= len(matrix):
        raise FormatError("layout.tensor_map has an axis twice, or one that device_matrix does not have")
    return layout


def _chunks(value: Any, local: tuple[int, ...]) -> tuple[tuple[int, ...], set[str]]:
    if not isinstance(value, list) or not value:
        raise FormatError("chunk is no list")
    unknown: set[str] = set()
    found = []
    shape = list(local)
    for item in value:
        members, more = _members(item, _CHUNK, "a chunk")
        unknown |= more
        offset = members["global_offset"]
        if not are_numbers(offset, 1) or len(offset) != 1:
            raise FormatError("global_offset of a chunk is not one index in the grid of fragments")
        if not are_numbers(members["local_shape"], MOST_DIMENSIONS) or members["local_shape"] != shape:
            raise FormatError(f"local_shape of chunk {offset[0]} is not {shape}, global_shape / axis_fragmentations")
        found += offset
    return tuple(found), unknown


def _check_cut(parts: tuple[int, ...], layout: SavedLayout | None, chunks: tuple[int, ...]) -> None:
    """Compare the three statements of one cut: pieces per dimension, layout, chunks."""
    total = prod(parts)
    if layout:
        if len(layout.tensor_map) != len(parts) or layout.counts != parts:
            raise FormatError(f"axis_fragmentations {list(parts)} contradict layout, which cuts {list(layout.counts)}")
    elif total != 1:
        raise FormatError(f"axis_fragmentations {list(parts)} have no layout")
    if max(chunks) >= total:
        raise FormatError(f"chunk {max(chunks)} lies outside the grid of {total} fragments")
    if len(set(chunks)) != len(chunks):
        raise FormatError("a fragment is listed twice in chunk: they overlap")
    if len(chunks) != total:
        raise FormatError(f"chunk lists {len(chunks)} of {total} fragments: there is a gap")
