"""``metadata.json`` of MindFormers' format "weights 2.0": the cut, the files and the holders of every parameter.

::

    {"state_dict_metadata": {name: {"properties": {"dtype": , "replica_id": [...], "allow_shape_mismatch": false,
                                                   "allow_to_save": true},
                                    "global_shape": [...], "axis_fragmentations": [...],
                                    "layout": {"device_matrix": , "tensor_map": , "interleaved_parallel": ,
                                               "alias_name": , "rank_list": } or null,
                                    "chunk": [{"global_offset": [i], "local_shape": [...]}, ...]}, ...},
     "storage_data": {"('name', (i,))": [{"file_name": , "storage_rank": , "rank_group": [...]}, ...], ...}}

Every entry repeats the ranks of its stage or group, so the file of a large job has gigabytes, nearly all of it
repeated. It is read in windows, as MindFormers lays it out; an entry whose bytes occurred before costs a comparison.
Other layouts of the same JSON are read too, up to `MAX_OTHER_SIZE`.

Source: ``save_metadata`` and ``load_metadata`` in ``mindformers/checkpoint/metadata.py``, MindFormers 2.0.0 and
master of July 2026.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import fields, replace
from itertools import islice
from typing import Any

from ms_recover.bounded_json import is_text
from ms_recover.errors import FormatError
from ms_recover.formats.reading import ReadAt, open_regular, pread
from ms_recover.formats.shard_check import check_files, check_storage
from ms_recover.formats.shard_entries import MAX_NAME, make_parameter, make_shards, parse_shard_id
from ms_recover.formats.shard_json import MAX_OTHER_SIZE, Entries, read_any_layout
from ms_recover.formats.shard_text import OtherLayoutError, read_mindformers_layout
from ms_recover.model.shard_metadata import SavedLayout, ShardedParameter, ShardMetadata, StoredShard, shards_by_rank

MAX_SIZE = 16 << 30
"""Longest file that is read, in bytes."""

MOST_SHARDS = 1 << 23
"""Most shards of all parameters together."""

_WHAT = "the metadata.json of an iteration"


def read_metadata(path: str | os.PathLike[str]) -> ShardMetadata:
    """Read a ``metadata.json``.

    It takes up to 1 GiB of memory for hostile files, and for MindFormers' own about the length of the entries that
    differ.

    Raises
    ------
    FormatError
        When it is too large, damaged, no JSON of this kind, or contradicts itself: shapes that do not divide, fragments
        outside the grid, missing or twice, layouts that say otherwise, ranks outside their stage, names that are no
        files of an iteration. The message names the path and the place.
    MissingInputError, StorageError
        As `ms_recover.formats.reading.open_regular`.
    """
    with open_regular(path, _WHAT) as (descriptor, size):
        return decode_metadata(pread(descriptor), size, os.fspath(path))


def decode_metadata(read_at: ReadAt, size: int, where: str) -> ShardMetadata:
    """Decode a ``metadata.json`` of `size` bytes, `where` in messages; a FormatError as for `read_metadata`."""
    try:
        if size > MAX_SIZE:
            raise FormatError(f"its {size} bytes are more than the {MAX_SIZE} that are read")
        try:
            reader = _Reader()
            read_mindformers_layout(read_at, size, reader)
        except OtherLayoutError as other:
            if size > MAX_OTHER_SIZE:
                raise FormatError(
                    f"from byte {other.offset} on it is not laid out as MindFormers does, and only {MAX_OTHER_SIZE} "
                    "bytes are read of another layout: it was cut or damaged"
                ) from None
            reader = _Reader()
            read_any_layout(read_at(0, size), reader)
        return reader.finish()
    except FormatError as error:
        raise FormatError(
            f"{where}: unusable metadata.json: {error}; the files of the iteration count without it"
        ) from None


def encode_metadata(metadata: ShardMetadata) -> Iterator[bytes]:
    """Yield the text of a ``metadata.json`` as MindFormers writes it: indented by 4, UTF-8, no newline at the end.

    Equal entries are made once, so that the text of a large job takes little more than writing it.
    """
    comma = ""
    texts: dict[int, str] = {}
    yield b'{\n    "state_dict_metadata": {'
    for name, parameter in metadata.parameters.items():
        text = texts.get(id(parameter)) or texts.setdefault(id(parameter), _text(_parameter_json(parameter)))
        yield f"{comma}\n        {_text(name)}: {text}".encode()
        comma = ","
    yield b'\n    },\n    "storage_data": {'
    comma = ""
    places = {id(one): {fragment: at for at, fragment in enumerate(one.chunks)} for one in metadata.parameters.values()}
    texts = {}
    for name, fragment in metadata.order or shards_by_rank(metadata.parameters):
        items = metadata.stored[name][places[id(metadata.parameters[name])][fragment]]
        text = texts.get(id(items)) or texts.setdefault(id(items), _text(_shards_json(items, metadata.states_groups)))
        yield f"{comma}\n        {_text(repr((name, (fragment,))))}: {text}".encode()
        comma = ","
    yield b"\n    }\n}"


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=4).replace("\n", "\n        ")


def _parameter_json(one: ShardedParameter) -> dict[str, Any]:
    return {
        "properties": {
            "dtype": one.dtype,
            "replica_id": one.replica_id,
            "allow_shape_mismatch": one.allow_shape_mismatch,
            "allow_to_save": one.allow_to_save,
        },
        "global_shape": one.global_shape,
        "axis_fragmentations": one.axis_fragmentations,
        "layout": one.layout and {field.name: getattr(one.layout, field.name) for field in fields(one.layout)},
        "chunk": [{"global_offset": [fragment], "local_shape": one.local_shape} for fragment in one.chunks],
    }


def _shards_json(items: tuple[StoredShard, ...], states_groups: bool) -> list[dict[str, Any]]:
    whole = [{field.name: getattr(item, field.name) for field in fields(item)} for item in items]
    return whole if states_groups else [{name: one[name] for name in one if name != "rank_group"} for one in whole]


class _Reader(Entries):
    """What has been read of one file; equal entries become one noun."""

    def __init__(self) -> None:
        self._parameters: dict[str, ShardedParameter] = {}
        self._stored: dict[str, dict[int, tuple[StoredShard, ...]]] = {}
        self._unknown: set[str] = set()
        self._same_parameters: dict[ShardedParameter, ShardedParameter] = {}
        self._same_layouts: dict[SavedLayout, SavedLayout] = {}
        self._same_shards: dict[tuple[StoredShard, ...], tuple[StoredShard, ...]] = {}
        self._by_rank: Iterator[tuple[str, int]] | None = None
        self._order: list[tuple[str, int]] | None = None
        self._shards = 0

    def parameter(self, value: Any) -> ShardedParameter:
        made, unknown = make_parameter(value)
        self._unknown |= unknown
        if made.layout:
            made = replace(made, layout=self._same_layouts.setdefault(made.layout, made.layout))
        return self._same_parameters.setdefault(made, made)

    def shards(self, value: Any) -> tuple[StoredShard, ...]:
        made, unknown = make_shards(value)
        self._unknown |= unknown
        return self._same_shards.setdefault(made, made)

    def add_parameter(self, name: str, parameter: ShardedParameter) -> None:
        if name in self._parameters:
            raise FormatError("it occurs twice")
        if not name or len(name) > MAX_NAME or not is_text(name):
            raise FormatError("this is no name of a parameter")
        self._parameters[name] = parameter

    def add_shards(self, key: str, items: tuple[StoredShard, ...]) -> None:
        name, index = shard = parse_shard_id(key)
        held = self._stored.get(name)
        if held is None:
            held = self._stored[name] = {}
        elif index in held:
            raise FormatError("it occurs twice")
        held[index] = items
        if self._order is None:
            self._by_rank = self._by_rank or shards_by_rank(self._parameters)
            if next(self._by_rank, None) != shard:
                self._order = list(islice(shards_by_rank(self._parameters), self._shards))
        if self._order is not None:
            self._order.append(shard)
        self._shards += 1
        if self._shards > MOST_SHARDS:
            raise FormatError(f"there are more than {MOST_SHARDS} shards")

    def ignore(self, name: str) -> None:
        self._unknown.add(name)

    def finish(self) -> ShardMetadata:
        """Return the contents of the file, checked as a whole."""
        if not self._parameters:
            raise FormatError("it names no parameter")
        stored, states_groups = check_storage(self._parameters, self._stored)
        order = None if self._order is None else tuple(self._order)
        if order is not None and order == tuple(shards_by_rank(self._parameters)):
            order = None  # storage_data came first
        metadata = ShardMetadata(
            parameters=self._parameters,
            stored=stored,
            order=order,
            states_groups=states_groups,
            unknown=tuple(sorted(self._unknown)),
        )
        check_files(metadata)
        return metadata
