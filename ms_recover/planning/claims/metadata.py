"""What ``metadata.json`` states in the terms of planning: the contents of each file, and a strategy for each stage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from ms_recover.file_names import WeightsName, weights_name
from ms_recover.model.grouped import grouped
from ms_recover.model.shard_metadata import NEVER_SAVED, SavedLayout, ShardMetadata, StoredShard
from ms_recover.model.slices import Parameter, ParameterList
from ms_recover.model.strategy import Layout, Strategy


@dataclass(frozen=True, kw_only=True, slots=True)
class ExpectedFile:
    """A file that metadata names, and what must be in it."""

    name: WeightsName
    rank: int
    """The rank that wrote it."""
    parameters: ParameterList
    """Sorted by name, with local shapes and MindSpore's type names; files with equal contents share one list.
    `NEVER_SAVED` parameters are left out.
    """


@lru_cache(maxsize=4)
def expected_files(metadata: ShardMetadata) -> Mapping[str, ExpectedFile]:
    """Return the expected file of each name that metadata lists, by name.

    Parameters that no metadata lists, above all ``global_step`` in ``opt`` files, are not among them: see
    `ms_recover.planning.claims.compare_documents.find_unlisted`.
    """
    saved = (name for name in metadata.parameters if not name.startswith(NEVER_SAVED))
    alike = grouped(saved, lambda name: id(metadata.stored[name]))
    listed: dict[str, list[int]] = {file: [] for file in metadata.files}
    groups = list(alike.values())
    for number, names in enumerate(groups):
        files = dict.fromkeys(item.file_name for items in metadata.stored[names[0]] for item in items)
        for file in files:
            listed[file].append(number)
    lists: dict[tuple[int, ...], ParameterList] = {}
    expected = {}
    for file, numbers in sorted(listed.items()):
        key = tuple(numbers)
        if key not in lists:
            names = sorted(name for number in key for name in groups[number])
            lists[key] = ParameterList(expected_parameter(metadata, name) for name in names)
        if weights := weights_name(file):
            expected[file] = ExpectedFile(name=weights, rank=metadata.files[file], parameters=lists[key])
    return expected


def expected_parameter(metadata: ShardMetadata, name: str) -> Parameter:
    """Return a parameter as the header of each file that holds one of its fragments lists it."""
    parameter = metadata.parameters[name]
    return Parameter(name, parameter.type_name, parameter.local_shape, parameter.nbytes)


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
        # Parameters share their layouts and fragments, so that few of many are looked at.
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
