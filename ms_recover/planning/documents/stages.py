"""The layouts of ``metadata.json`` in the terms of planning: one strategy for each pipeline stage."""

from __future__ import annotations

from dataclasses import dataclass

from ms_recover.model.shard_metadata import ShardMetadata
from ms_recover.model.strategy import Strategy


@dataclass(frozen=True, kw_only=True, eq=False)
class DocumentStage:
    """One pipeline stage of ``metadata.json``."""

    ranks: tuple[int, ...]
    """Consecutive ranks; the first is a multiple of their number."""
    strategy: Strategy
    """Of the parameters of the stage whose layouts are known."""
    without_layout: frozenset[str]
    """The other parameters that ranks of this stage hold: each of `ranks` that holds one has all of it."""


def find_document_stages(metadata: ShardMetadata) -> tuple[DocumentStage, ...]:
    """Return the pipeline stages, by their first ranks.

    `ms_recover.planning.redundancy.layouts.cells_of` gives for their layouts the regions that the metadata states.
    """
    raise NotImplementedError
