"""What ``inspect --json`` prints; nothing reads it back.

The types state the members and their order; docs/schemas/ is made of them.
"""

from __future__ import annotations

from typing import Any

from ms_recover.formats.codec import (
    UNSET,
    Count,
    Fields,
    ParameterFields,
    Rank,
    Size,
    UnsetType,
    fill,
    to_json,
)
from ms_recover.model.inspection import Inspection
from ms_recover.model.shard_metadata import CommonInfo, ShardMetadata


class ListedParameterFields(ParameterFields):
    """A parameter of a slice."""

    pieces: Count


class RankGroupFields(Fields):
    """A communication group."""

    name: str
    ranks: tuple[Rank, ...]


class LayoutFields(Fields):
    """How one parameter is cut over the device matrix."""

    parameter: str
    device_matrix: tuple[Count, ...]
    tensor_map: tuple[tuple[Count, ...], ...]
    tensor_shape: tuple[Count, ...] | None
    opt_shard_step: int
    opt_shard_size: int
    split_shape: tuple[Count, ...]
    indices_offset: tuple[int, ...]
    field: Count
    parts: Count
    copies: Count


class ShardedFields(Fields):
    """A parameter as metadata states it: the cut, and for each fragment, by its index, the ranks that hold it."""

    name: str
    dtype: str
    global_shape: tuple[Count, ...]
    axis_fragmentations: tuple[Count, ...]
    fragments: tuple[tuple[Count, tuple[Rank, ...]], ...]


class NamedFileFields(Fields):
    """A file that metadata names, and the rank that wrote it."""

    file: str
    rank: Rank


class InspectionFields(Fields):
    """The contents of one file: members that its kind does not have are left out."""

    kind: str
    path: str
    problems: tuple[str, ...]
    bytes: Size | UnsetType = UNSET
    crc: bool | UnsetType = UNSET
    encryption: str | UnsetType | None = UNSET
    metadata: dict[str, str] | UnsetType = UNSET
    parameters: tuple[ListedParameterFields, ...] | UnsetType = UNSET
    restore_ranks: tuple[Rank, ...] | UnsetType = UNSET
    groups: tuple[RankGroupFields, ...] | UnsetType = UNSET
    stages: tuple[Count, ...] | UnsetType = UNSET
    save_count: int | UnsetType = UNSET
    operators: Count | UnsetType = UNSET
    devices_per_stage: Count | UnsetType = UNSET
    layouts: tuple[LayoutFields, ...] | UnsetType = UNSET
    world_size: Count | UnsetType = UNSET
    removed_redundancy: bool | UnsetType | None = UNSET
    files: tuple[NamedFileFields, ...] | UnsetType = UNSET
    sharded: tuple[ShardedFields, ...] | UnsetType = UNSET
    common: dict[str, float | int | None] | UnsetType = UNSET
    iteration: Count | UnsetType = UNSET


def inspection_to_json(found: Inspection) -> dict[str, Any]:
    """Return the object that ``inspect --json`` prints."""
    header, strategy = found.header, found.strategy
    fields = fill(InspectionFields, found, found.group_info, strategy)
    if header is not None:
        fields.bytes = header.size
        fields.crc = header.crc is not None
        fields.encryption = header.encryption
        fields.metadata = dict(header.metadata)
        fields.parameters = tuple(
            fill(ListedParameterFields, one, bytes=one.nbytes, pieces=len(pieces))
            for one, pieces in zip(header.parameters, header.contents, strict=True)
        )
    document = found.document
    if isinstance(document, ShardMetadata):
        fields.world_size, fields.removed_redundancy = document.world_size, document.removed_redundancy
        fields.files = tuple(NamedFileFields(name, rank) for name, rank in sorted(document.files.items()))
        fields.sharded = tuple(
            fill(ShardedFields, one, name=name, dtype=one.type_name, fragments=_fragments(document, name))
            for name, one in document.parameters.items()
        )
    elif isinstance(document, CommonInfo):
        fields.common = {name: getattr(document, name) for name in document.members}
    elif document is not None:
        fields.iteration = document
    if strategy is not None:
        fields.layouts = tuple(
            fill(LayoutFields, layout, tensor_shape=layout.tensor_shape or None) for layout in strategy.layouts
        )
    return to_json(fields)


def _fragments(metadata: ShardMetadata, name: str) -> tuple[tuple[int, tuple[int, ...]], ...]:
    stored = metadata.stored[name]
    return tuple(
        (index, items[0].rank_group) for index, items in zip(metadata.parameters[name].chunks, stored, strict=True)
    )
