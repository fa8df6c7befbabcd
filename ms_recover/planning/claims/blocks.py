"""Blocks: parameters that are cut alike x the ranks that hold the same region of them.

Every claim about who holds the same gives blocks. The layouts of a strategy file cut the parameters of a stage in a
few ways; each way and each part of the device matrix is one block. A rank list (``group_info.pb``) is one way of
cutting with every parameter in it. Where both are there they are used together: layouts for the parameters they name,
rank lists for the others.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from ms_recover.model.grouped import grouped
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


def find_blocks(ranks: Iterable[int], stages: Stages, groups: GroupMap) -> dict[str, list[Block]]:
    """Return the blocks of ranks by the strategy file that claims them; those of rank lists under no name, the last."""
    ranks = sorted(ranks)
    blocks: dict[str, list[Block]] = defaultdict(list)
    for stage, of_stage in grouped(ranks, stages.of).items():
        for cut in stages.cuts.get(stage, ()):
            cells: dict[tuple[int, ...], list[int]] = defaultdict(list)
            for rank in of_stage:
                cells[cut.parts[rank % stages.devices]].append(rank)
            path = stages.paths[stage]
            blocks[path] += (Block(ranks=tuple(members), names=cut.names, source=path) for members in cells.values())
    for group, members in grouped(ranks, groups.of).items():
        blocks[""].append(Block(ranks=tuple(members), names=None, source=groups.sources.get(group[0], "")))
    return blocks
