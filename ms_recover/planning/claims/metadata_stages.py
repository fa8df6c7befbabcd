"""The layouts of ``metadata.json`` in the terms of planning: one strategy for each pipeline stage."""

from __future__ import annotations

from dataclasses import dataclass

from ms_recover.model.shard_metadata import SavedLayout, ShardMetadata, StoredShard
from ms_recover.model.strategy import Layout, Strategy


@dataclass(frozen=True, kw_only=True, eq=False)
class DocumentStage:
    """One pipeline stage of ``metadata.json``."""

    ranks: tuple[int, ...]
    """Consecutive ranks; the first is a multiple of their number."""
    strategy: Strategy
    """Of the parameters of the stage whose layouts are known, those that are never saved included."""
    holders: tuple[tuple[frozenset[str], tuple[int, ...]], ...]
    """Of the other parameters, each of which lies whole on every rank that holds it: the ranks of this stage that hold
    the same ones, and their names.
    """


def find_document_stages(metadata: ShardMetadata) -> tuple[DocumentStage, ...]:
    """Return the pipeline stages, by their first ranks.

    `ms_recover.planning.claims.layouts.cells_of` gives for their layouts the regions that the metadata states. A
    parameter that several stages share is in the strategy of each of them. Without any layout all ranks are one stage.
    """
    stages = metadata.stages or (tuple(range(metadata.world_size)),)
    size = len(stages[0])
    layouts: dict[int, list[Layout]] = {ranks[0]: [] for ranks in stages}
    whole: dict[int, dict[tuple[int, ...], list[str]]] = {}
    ranks_of: dict[tuple[int, int], frozenset[int]] = {}
    for name, parameter in metadata.parameters.items():
        stored = metadata.stored[name]
        if (key := (id(parameter.layout), id(stored))) not in ranks_of:
            ranks_of[key] = _starts(parameter.layout, stored, size)
        for start in ranks_of[key]:
            if parameter.layout:
                layouts.setdefault(start, []).append(parameter.layout.layout_of(name))
            else:
                ranks = tuple(rank for rank in stored[0][0].rank_group if start <= rank < start + size)
                whole.setdefault(start, {}).setdefault(ranks, []).append(name)
    return tuple(
        DocumentStage(
            ranks=tuple(range(start, start + size)),
            strategy=Strategy(
                stages=(start // size,),
                save_count=0,
                layouts=tuple(sorted(layouts.get(start, ()), key=lambda layout: layout.parameter)),
            ),
            holders=tuple((frozenset(names), ranks) for ranks, names in sorted(whole.get(start, {}).items())),
        )
        for start in sorted(layouts.keys() | whole.keys())
    )


def _starts(layout: SavedLayout | None, stored: tuple[tuple[StoredShard, ...], ...], size: int) -> frozenset[int]:
    """Return the first ranks of the stages that hold a parameter: the same for every fragment."""
    starts = {rank // size * size for rank in stored[0][0].rank_group}
    return frozenset(starts | ({layout.rank_list[0]} if layout else set()))
