"""Losses that leave a parameter without layout where nothing shows that a rank may take it from others."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from ms_recover.planning.audit.blocks import NOBODY, HeldBlock, Ranks
from ms_recover.planning.audit.evidence import Evidence
from ms_recover.planning.supply.parameters import ParameterIndex

_MOST_LEFT = 64
"""Sets of holders of one block that are asked about apart, however many ranks there are."""


class Doubts:
    """Finds such losses, as `ms_recover.planning.supply.settle` and `ParameterIndex.is_shown_whole` have it.

    A member of its rank list gives a rank such a parameter. Others do where their contents agree, and where they are of
    two rank lists, or of one that has the whole stage. So the rank list may be lost, and all but one rank or rank list.
    """

    def __init__(self, index: ParameterIndex, evidence: Evidence) -> None:
        self._index, self._facts, self._evidence = index, index.facts, evidence
        self.divided: set[int] = set()
        """Stages some parameters of which are cut: what leaves ranks of one part alone takes all holders of others."""
        self.own: set[HeldBlock] = set()
        """Blocks of parameters whose contents differ between rank lists."""
        self._foreign: dict[HeldBlock, Sequence[Ranks]] = {}
        self._among: dict[tuple[HeldBlock, int], Sequence[Ranks]] = {}
        self._asked: set[tuple[HeldBlock, int, bool]] = set()
        self._done: set[tuple[HeldBlock, Ranks, int, bool]] = set()

    def losses(self, rank: int, blocks: Sequence[HeldBlock]) -> Iterator[tuple[Ranks, str]]:
        """Yield losses after which a rank without a copy of its slice cannot take one of its blocks, each with why."""
        uncut = [block for block in blocks if block.kind.cut == "none"]
        group = self._facts.groups.of(rank)
        lists = self._evidence.lists(group) if self._facts.groups.knows(rank) else None
        if lists is not None and not self.own.isdisjoint(uncut):
            yield lists, f"the rank list that names rank {rank}, which alone says who has its values"
        if self._facts.stages.of(rank) in self.divided:
            return
        for block in uncut:
            if self._is_cut_perhaps(block):
                for loss in self._lonely(rank, block, group, lists):
                    yield loss, "parameters without layout, which too few others have"

    def _is_cut_perhaps(self, block: HeldBlock) -> bool:
        name = block.kind.names[0]
        parameter = next((p for one in block.holders if (p := self._index.find(one, name))), None)
        return parameter is not None and not parameter.is_counter and not self._facts.tolerance.covers(name)

    def _lonely(self, rank: int, block: HeldBlock, group: tuple[int, ...], lists: Ranks | None) -> Iterator[Ranks]:
        """Yield losses that leave one rank or rank list with a block, which is not that of a rank."""
        holds = rank in block.members
        lefts: list[tuple[Ranks, Ranks]] = []
        if lists is not None:
            lefts += [(left, lists) for left in self._within(block, group, lists) if rank not in left]
        if (block, group[0], holds) not in self._asked:
            self._asked.add((block, group[0], holds))
            lefts += [(left, NOBODY) for left in self._of_others(block) if left.isdisjoint(group)]
        whose = -1 if not lefts or block.members.issuperset(group) else group[0]
        for left, more in lefts:
            if (block, left, whose, holds) not in self._done:
                self._done.add((block, left, whose, holds))
                yield (block.members - left) | more

    def _of_others(self, block: HeldBlock) -> Sequence[Ranks]:
        """Return the holders of each rank list, or each alone where the list has the whole stage."""
        if block not in self._foreign:
            by_list: dict[tuple[int, ...], list[int]] = defaultdict(list)
            for rank in block.holders:
                group = self._facts.groups.of(rank)
                by_list[group if len(group) < self._facts.stages.devices else (rank,)].append(rank)
            self._foreign[block] = _joined([frozenset(ranks) for ranks in by_list.values()])
        return self._foreign[block]

    def _within(self, block: HeldBlock, group: tuple[int, ...], lists: Ranks) -> Sequence[Ranks]:
        """Return each holder of a rank list that has not the list itself."""
        key = block, group[0]
        if key not in self._among:
            alone = sorted(block.members.intersection(group) - lists)
            self._among[key] = _joined([frozenset((one,)) for one in alone])
        return self._among[key]


def _joined(left: Sequence[Ranks]) -> Sequence[Ranks]:
    """Return at most `_MOST_LEFT` sets, neighbours of many joined; of these a loss that leaves one part is fatal, too.

    A rank in another set needs the block then, so that none has to be asked about the set that it is in.
    """
    size = -(-len(left) // _MOST_LEFT)
    return [NOBODY.union(*left[start : start + size]) for start in range(0, len(left), size)] if left else ()
