"""Slices parameter by parameter: regions without a source, and the holders of each region."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ms_recover.model.plan import Plan
from ms_recover.reporting.tables import page, ranks_text, section, size_text, table_lines

if TYPE_CHECKING:
    from ms_recover.model.explanation import Explanation

_MOST_ROWS = 64


def missing_lines(plan: Plan, width: int | None) -> list[str]:
    """Return the regions without a source of each slice that cannot be recovered."""
    lines: list[str] = []
    for rank in plan.ranks:
        if not rank.missing:
            continue
        gone = sum(region.bytes for region in rank.missing)
        share = f"{gone / rank.bytes:.1%} of {size_text(rank.bytes)}" if rank.bytes else "no bytes"
        rows = [
            (region.parameter, region_text(region.region), size_text(region.bytes), region.reason)
            for region in rank.missing[:_MOST_ROWS]
        ]
        title = f"Regions of the slice of rank {rank.rank} without a source ({share})"
        lines += section(title, ("parameter", "region", "size", "why"), rows, width, right=("size",))
        more = len(rank.missing) - len(rows)
        if more > 0:
            lines.append(f"and {more} more, which --json lists")
    return lines


def explanation_text(found: Explanation, width: int | None) -> str:
    """Return the holders of each region of a rank's parameters, and the chosen sources."""
    head = f"The slice of rank {found.rank} at step {found.step}, parameter by parameter"
    if found.problem is not None:
        return page([f"{head}: no explanation, {found.problem}"])
    rows = [
        (
            item.parameter.name,
            f"{item.parameter.dtype}{list(item.parameter.shape)}",
            "-" if item.region is None else region_text(item.region),
            ranks_text(item.holders) or "nobody",
            ", ".join(f"rank {rank}" for rank in dict.fromkeys(item.chosen)) or "-",
            "; ".join([f"missing {region_text(gone.region)}" for gone in item.missing] + [item.note] * bool(item.note)),
        )
        for item in found.parameters
    ]
    columns = ("parameter", "slice", "region", "held by ranks", "chosen", "note")
    return page([f"{head}, by the layouts in {found.layouts}:", *table_lines(columns, rows, width)])


def region_text(region: tuple[tuple[int, int], ...]) -> str:
    """Return a region as an index expression, such as ``[0:16, 32:64]``; that of a scalar is all of it."""
    if not region:
        return "all of it"
    return f"[{', '.join(f'{start}:{stop}' for start, stop in region)}]"
