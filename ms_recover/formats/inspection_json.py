"""What ``inspect --json`` prints; nothing reads it back."""

from __future__ import annotations

from typing import Any

from ms_recover.formats.codec import UNSET, Count, Fields, ParameterFields, Rank, Size, UnsetType, fill, to_json
from ms_recover.model.inspection import Inspection


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


def inspection_to_json(found: Inspection) -> dict[str, Any]:
    """Return the object that ``inspect --json`` prints."""
    header, info, strategy = found.header, found.group_info, found.strategy
    fields = InspectionFields(found.kind, found.path, found.problems)
    if header is not None:
        fields.bytes = header.size
        fields.crc = header.crc is not None
        fields.encryption = header.encryption
        fields.metadata = dict(header.metadata)
        fields.parameters = tuple(
            fill(ListedParameterFields, one, bytes=one.nbytes, pieces=len(pieces))
            for one, pieces in zip(header.parameters, header.contents, strict=True)
        )
    if info is not None:
        fields.restore_ranks = info.restore_ranks
        fields.groups = tuple(fill(RankGroupFields, group) for group in info.groups)
    if strategy is not None:
        fields.stages = strategy.stages
        fields.save_count = strategy.save_count
        fields.operators = strategy.operators
        fields.devices_per_stage = strategy.devices_per_stage
        fields.layouts = tuple(
            fill(LayoutFields, layout, tensor_shape=layout.tensor_shape or None) for layout in strategy.layouts
        )
    return to_json(fields)
