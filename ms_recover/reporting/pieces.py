"""Slices parameter by parameter: what has no source, by block, and the holders of each region."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ms_recover.model.compose import MissingRegion
from ms_recover.model.plan import Plan, RankVerdict
from ms_recover.model.texts import list_some, many, name_ranks, ranks_text
from ms_recover.reporting.tables import first_rows, page, section, size_text, table_lines

if TYPE_CHECKING:
    from ms_recover.model.explanation import Explanation

Box = tuple[tuple[int, int], ...]

MOST_BLOCKS = 64
"""Rows of blocks; one more counts the others."""
_MOST_RUNS = 6
"""Runs of ranks that a row names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LostBlock:
    """Parameters of which some ranks hold the same region, which no sound slice has any more.

    Parameters
    ----------
    ranks, parameters : tuple
        Each of these ranks lacks this region of each of these parameters.
    region
        As in `ms_recover.model.compose.MissingRegion`.
    bytes : int
        Of one rank.
    reason : str
        The first clause is the fact.
    """

    ranks: tuple[int, ...]
    parameters: tuple[str, ...]
    region: Box
    bytes: int
    reason: str


def lost_blocks(ranks: Iterable[RankVerdict]) -> list[LostBlock]:
    """Return what has no source, each rank's region of each parameter once, by ranks; those with most bytes first."""
    holders: dict[MissingRegion, list[int]] = {}
    for one in ranks:
        for gone in one.missing:
            holders.setdefault(gone, []).append(one.rank)
    alike: dict[tuple[tuple[int, ...], Box, str], list[MissingRegion]] = {}
    for gone, lacking in holders.items():
        alike.setdefault((tuple(lacking), gone.region, gone.reason), []).append(gone)
    blocks = [
        LostBlock(
            ranks=lacking,
            parameters=tuple(one.parameter for one in found),
            region=region,
            bytes=sum(one.bytes for one in found),
            reason=reason,
        )
        for (lacking, region, reason), found in alike.items()
    ]
    return sorted(blocks, key=lambda one: (one.ranks, -one.bytes))


def lost_block_row(one: LostBlock) -> tuple[str, str, str, str, str]:
    """Return the cells of a block: ranks, the region and its parameters, the size for each rank, and why."""
    ranks = name_ranks(one.ranks, _MOST_RUNS).partition(" ")[2]
    count = many(len(one.parameters), "parameter")
    return ranks, region_text(one.region), f"{count}: {list_some(one.parameters, 3)}", size_text(one.bytes), one.reason


LOST_COLUMNS = ("ranks", "region", "of", "size", "why")


def missing_lines(plan: Plan, width: int | None) -> list[str]:
    """Return what has no source of the slices that cannot be recovered, by block."""
    blocks = lost_blocks(plan.ranks)
    if not blocks:
        return []
    lacking = [one for one in plan.ranks if one.missing]
    shares = [sum(gone.bytes for gone in one.missing) / one.bytes for one in lacking if one.bytes]
    low, high = (f"{end:.1%}" for end in (min(shares, default=0), max(shares, default=0)))
    share = f"{low if low == high else f'{low} to {high}'} of {'its' if len(lacking) == 1 else 'each'}"
    title = f"No holder is left of these regions, {share} slice; --explain RANK and --json list each parameter"
    rows = first_rows([lost_block_row(one) for one in blocks], MOST_BLOCKS, 2)
    return section(title, LOST_COLUMNS, rows, width, right=("size",))


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
