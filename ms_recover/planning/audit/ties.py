"""Losses that leave a vote undecided: slices that differ are outvoted only as long as more hold the same."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import combinations
from math import comb

from ms_recover.planning.audit.blocks import Block, Ranks, some_ranks
from ms_recover.planning.facts import Facts, SliceFacts
from ms_recover.planning.judging.judgement import StepJudgement

_MOST_TIES = 2000


def find_ties(
    facts: Facts, judgement: StepJudgement, sound: Mapping[int, SliceFacts], blocks: Iterable[Block]
) -> dict[Ranks, str]:
    """Return the smallest losses after which as many slices differ from a block as hold it, each with the reason.

    A manifest of training settles votes, so that nothing is tied where holders alone have one. Losing the slices that
    differ as well would settle it too; that is not counted on. Where a block has too many such losses to list, those of
    all but one holder stand for them.
    """
    suspects = {
        one.rank: one
        for one in facts.counted_at(judgement.step)
        if one.rank not in sound and one.digests is not None and judgement.slices[one.path].status == "suspect"
    }
    found: dict[Ranks, str] = {}
    for block in blocks if suspects else ():
        model = next((sound[rank] for rank in block.holders if rank in sound), None)
        proven = any(sound[rank].proven for rank in block.holders if rank in sound)
        against = (one for one in suspects.values() if one.proven or not proven)
        odd = [one.rank for one in against if model is not None and _differs(facts, block, one, model)]
        spare = len(block.holders) - len(odd)
        if not odd or spare < 1:
            continue
        text = f"the majority of rank(s) {some_ranks(block.holders)} over rank(s) {some_ranks(odd)}, which differ"
        if comb(len(block.holders), spare) > _MOST_TIES:
            spare = len(block.holders) - 1
        for lost in combinations(block.holders, spare):
            found.setdefault(frozenset(lost), text)
    return found


def _differs(facts: Facts, block: Block, one: SliceFacts, model: SliceFacts) -> bool:
    """Whether a slice is of the ranks that should hold a block, and holds other contents of it."""
    names = block.kind.names
    if not names:
        return one.rank in facts.groups.of(model.rank)
    stages = facts.stages
    if stages.of(one.rank) != stages.of(model.rank):
        return False
    for cut in stages.cuts.get(stages.of(model.rank), ()):
        if (
            cut.names.issuperset(names)
            and cut.parts[one.rank % stages.devices] != cut.parts[model.rank % stages.devices]
        ):
            return False
    return any(one.digest_of(name) != model.digest_of(name) for name in names if not facts.tolerance.covers(name))
