"""One inspected file as text."""

from __future__ import annotations

from ms_recover.model.inspection import Inspection
from ms_recover.model.shard_metadata import ShardMetadata
from ms_recover.model.slices import SliceHeader
from ms_recover.model.strategy import Layout, Strategy
from ms_recover.model.texts import many, ranks_text
from ms_recover.reporting.tables import page, section, size_text, table_lines

_NAMES = {
    "ckpt": "a slice (.ckpt)",
    "encrypted-ckpt": "an encrypted slice (.ckpt)",
    "safetensors": "a slice (.safetensors)",
    "group_info": "a rank list (group_info.pb)",
    "strategy": "a strategy file",
    "metadata": "MindFormers' metadata of an iteration",
    "common": "MindFormers' progress of a training",
    "tracker": "MindFormers' tracker",
}


def inspection_text(found: Inspection, width: int | None) -> str:
    """Return the report of ``inspect``: kind, problems, contents."""
    lines = [f"{found.path}: {_NAMES.get(found.kind, found.kind)}"]
    lines += [f"DAMAGED: {problem}" for problem in found.problems]
    if found.header is not None:
        lines += _slice_lines(found.header, width)
    if found.group_info is not None:
        lines.append(f"same slice on ranks: {ranks_text(found.group_info.restore_ranks)}")
        groups = [(group.name, ranks_text(group.ranks)) for group in found.group_info.groups]
        lines += section("", ("communication group", "ranks"), groups, width)
    if found.strategy is not None:
        lines += _strategy_lines(found.strategy, width)
    if found.metadata is not None:
        lines += _metadata_lines(found.metadata, width)
    if found.common is not None:
        lines += [f"{name}: {value}" for name, value in found.common.stated.items()]
    if found.iteration is not None:
        lines.append(f"the newest whole iteration: {found.iteration}")
    return page(lines)


def _metadata_lines(metadata: ShardMetadata, width: int | None) -> list[str]:
    dealt = {True: "one file for each shard (remove_redundancy)", False: "each holder wrote its shards", None: ""}
    stages = [f"{ranks[0]}-{ranks[-1]}" for ranks in metadata.stages]
    parts = [
        many(metadata.world_size, "rank"),
        f"pipeline stages {', '.join(stages)}",
        dealt[metadata.removed_redundancy],
    ]
    lines = [f"{', '.join(part for part in parts if part)}; {len(metadata.files)} files"]
    rows = [
        (
            name,
            one.type_name,
            str(list(one.global_shape)),
            str(list(one.axis_fragmentations)),
            str(sum(map(len, metadata.stored[name]))),
        )
        for name, one in metadata.parameters.items()
    ]
    heads = ("parameter", "dtype", "whole shape", "cut into", "entries")
    return lines + section("", heads, rows, width, right=("entries",))


def _slice_lines(header: SliceHeader, width: int | None) -> list[str]:
    safetensors = header.kind == "safetensors"
    crc = "" if header.crc is None else f", CRC in the {'metadata' if safetensors else 'trailer'}"
    cipher = f", {header.encryption}: parameters cannot be read without the key" if header.encryption else ""
    lines = [f"{size_text(header.size)}, {len(header.parameters)} parameters{crc}{cipher}"]
    if header.metadata:
        lines.append("metadata: " + ", ".join(f"{key}={value}" for key, value in header.metadata))
    parameters = [
        (p.name, p.dtype, str(list(p.shape)), str(p.nbytes), str(len(pieces)))
        for p, pieces in zip(header.parameters, header.contents, strict=True)
    ]
    heads = ("name", "dtype", "shape", "bytes", "pieces")
    return lines + section("", heads, parameters, width, right=("bytes", "pieces"))


def _strategy_lines(strategy: Strategy, width: int | None) -> list[str]:
    devices = strategy.devices_per_stage
    ranks = [rank for stage in strategy.stages for rank in (stage * devices, (stage + 1) * devices - 1)]
    whose = f" (ranks {ranks[0]}-{ranks[1]})" if len(ranks) == 2 and devices else ""
    stage = f"pipeline stage {ranks_text(strategy.stages) or 'unknown'}, {devices} devices in it{whose}"
    lines = [f"{stage}, {len(strategy.layouts)} layouts, {strategy.operators} operators"]
    layouts = strategy.layouts
    if not layouts:
        return lines
    columns: dict[str, list[str]] = {
        "parameter": [layout.parameter for layout in layouts],
        "device matrix": [str(list(layout.device_matrix)) for layout in layouts],
        "tensor map": [_map_text(layout) for layout in layouts],
        "split": [_split_text(layout) for layout in layouts],
        "optimizer shard": [_shard_text(layout.opt_shard_size) for layout in layouts],
        "parts": [str(layout.parts) for layout in layouts],
        "copies": [str(layout.copies) for layout in layouts],
    }
    if any(layout.split_shape or layout.field for layout in layouts):
        columns["split by hand"] = [_by_hand_text(layout) for layout in layouts]
    if any(layout.tensor_shape for layout in layouts):
        columns["whole shape"] = [str(list(layout.tensor_shape)) for layout in layouts]
    table = table_lines(tuple(columns), zip(*columns.values(), strict=True), width, right=("parts", "copies"))
    axes = "tensor maps count the axes of the device matrix from the right: axis 0 is the last one"
    return [*lines, axes, "", *table]


def _map_text(layout: Layout) -> str:
    return str([axes[0] if len(axes) == 1 else list(axes) if axes else -1 for axes in layout.tensor_map])


def _split_text(layout: Layout) -> str:
    """Return the dimensions that a parameter is split along, optimizer shards aside."""
    pieces = []
    for dim, (axes, count) in enumerate(zip(layout.tensor_map, layout.counts, strict=True)):
        if axes:
            over = f"axis {axes[0]}" if len(axes) == 1 else f"axes {', '.join(map(str, axes))}"
            pieces.append(f"dim {dim} by {count} over {over}")
    return "; ".join(pieces) or "whole"


def _shard_text(size: int) -> str:
    return {0: "none", -1: "all replicas"}.get(size, f"dim 0 by {size}")


def _by_hand_text(layout: Layout) -> str:
    field = f", field {layout.field}" if layout.field else ""
    return f"rows {list(layout.split_shape)}{field}" if layout.split_shape else field[2:]
