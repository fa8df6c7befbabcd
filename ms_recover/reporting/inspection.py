"""One inspected file as text or JSON."""

from __future__ import annotations

from typing import Any

from ms_recover.model.inspection import Inspection
from ms_recover.reporting.tables import ranks_text, render_table, size_text

_NAMES = {
    "ckpt": "a slice (.ckpt)",
    "encrypted-ckpt": "an encrypted slice (.ckpt)",
    "group_info": "a rank list (group_info.pb)",
    "strategy": "a strategy file",
}


def inspection_json(found: Inspection) -> dict[str, Any]:
    """Return what ``inspect --json`` prints."""
    data: dict[str, Any] = {"kind": found.kind, "path": found.path, "problems": list(found.problems)}
    if found.header is not None:
        data["bytes"] = found.header.size
        data["crc"] = found.header.crc is not None
        data["encryption"] = found.header.encryption
        data["parameters"] = [
            {"name": p.name, "dtype": p.dtype, "shape": list(p.shape), "bytes": p.nbytes}
            for p in found.header.parameters
        ]
    if found.group_info is not None:
        data["restore_ranks"] = list(found.group_info.restore_ranks)
        data["groups"] = [{"name": group.name, "ranks": list(group.ranks)} for group in found.group_info.groups]
    if found.strategy is not None:
        data["stages"] = list(found.strategy.stages)
        data["save_count"] = found.strategy.save_count
        data["operators"] = found.strategy.operators
        data["layouts"] = [
            {
                "parameter": layout.parameter,
                "device_matrix": list(layout.device_matrix),
                "tensor_map": [list(axes) for axes in layout.tensor_map],
                "opt_shard_step": layout.opt_shard_step,
                "opt_shard_size": layout.opt_shard_size,
            }
            for layout in found.strategy.layouts
        ]
    return data


def inspection_text(found: Inspection, width: int | None) -> str:
    """Return what ``inspect`` prints: what it is, what is wrong, what it holds."""
    lines = [f"{found.path}: {_NAMES.get(found.kind, found.kind)}"]
    lines += [f"DAMAGED: {problem}" for problem in found.problems]
    if found.header is not None:
        header = found.header
        trailer = ", CRC trailer" if header.crc is not None else ""
        cipher = f", {header.encryption}: parameters cannot be read without the key" if header.encryption else ""
        lines.append(f"{size_text(header.size)}, {len(header.parameters)} parameters{trailer}{cipher}")
        parameters = [
            (p.name, p.dtype, str(list(p.shape)), str(p.nbytes), str(len(pieces)))
            for p, pieces in zip(header.parameters, header.contents, strict=False)
        ]
        if parameters:
            heads = ("name", "dtype", "shape", "bytes", "pieces")
            lines += ["", render_table(heads, parameters, width, right=("bytes", "pieces"))]
    if found.group_info is not None:
        lines.append(f"same slice on ranks: {ranks_text(found.group_info.restore_ranks)}")
        groups = [(group.name, ranks_text(group.ranks)) for group in found.group_info.groups]
        if groups:
            lines += ["", render_table(("communication group", "ranks"), groups, width)]
    if found.strategy is not None:
        strategy = found.strategy
        lines.append(
            f"pipeline stage {ranks_text(strategy.stages) or 'unknown'}, {strategy.devices_per_stage} devices in it, "
            f"{len(strategy.layouts)} layouts, {strategy.operators} operators"
        )
        layouts = [
            (
                layout.parameter,
                str(list(layout.device_matrix)),
                str([axes[0] if len(axes) == 1 else list(axes) if axes else -1 for axes in layout.tensor_map]),
                _shard(layout.opt_shard_size),
            )
            for layout in strategy.layouts
        ]
        if layouts:
            columns = ("parameter", "device matrix", "tensor map", "optimizer shard")
            lines += ["", render_table(columns, layouts, width)]
    return "\n".join(lines)


def _shard(size: int) -> str:
    return {0: "none", -1: "all replicas"}.get(size, str(size))
