"""Blocks: parameters that are cut alike x the ranks that hold the same region of them.

Every claim about who holds the same gives blocks. The layouts of a strategy file cut the parameters of a stage in a
few ways; each way and each part of the device matrix is one block. A rank list (``group_info.pb``) is one way of
cutting with every parameter in it. Where both are there they are used together: layouts for the parameters they name,
rank lists for the others.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ms_recover.planning.claims.groups import GroupMap
from ms_recover.planning.claims.stages import Stages


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Parameters, and the ranks with a slice that hold the same of them, ascending; the file that claims it.

    No names stand for all parameters that no other block of these ranks names.
    """

    ranks: tuple[int, ...]
    names: frozenset[str] | None
    source: str

    @property
    def by_layout(self) -> bool:
        """Whether a strategy file claims it, and not a rank list."""
        return self.names is not None


def find_blocks(ranks: Iterable[int], stages: Stages, groups: GroupMap) -> tuple[Block, ...]:
    """Return the blocks of the ranks that have a slice of a step, those of layouts first."""
    by_stage: dict[int, list[int]] = defaultdict(list)
    by_group: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for rank in sorted(ranks):
        by_stage[stages.of(rank)].append(rank)
        by_group[groups.of(rank)].append(rank)
    blocks = [block for stage, ranks in by_stage.items() for block in _blocks_of_stage(stage, ranks, stages)]
    for group, members in by_group.items():
        source = groups.sources.get(group[0], "")
        blocks.append(Block(ranks=tuple(members), names=None, source=source))
    return tuple(blocks)


def _blocks_of_stage(stage: int, ranks: Sequence[int], stages: Stages) -> list[Block]:
    blocks = []
    for cut in stages.cuts.get(stage, ()):
        cells: dict[tuple[int, ...], list[int]] = defaultdict(list)
        for rank in ranks:
            cells[cut.parts[rank % stages.devices]].append(rank)
        for holders in cells.values():
            blocks.append(Block(ranks=tuple(holders), names=cut.names, source=stages.paths[stage]))
    return blocks
