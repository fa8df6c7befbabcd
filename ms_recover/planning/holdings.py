"""Who holds what at one step: slices, the parameters in them, and how layouts cut these."""

from __future__ import annotations

from bisect import bisect
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cached_property

from ms_recover.model.inventory import SliceFile
from ms_recover.model.slices import Parameter
from ms_recover.model.strategy import Layout
from ms_recover.planning.redundancy.layouts import Cell, cell_of, cut_alike, fit, region_of
from ms_recover.planning.redundancy.regions import Box
from ms_recover.planning.redundancy.stages import Stages
from ms_recover.planning.situation import Situation

MOST_COMPARED = 64
"""Holders of one part that are compared and chosen from; more prove nothing more."""

Names = dict[str, int]
"""Position of each parameter in the list of a slice."""


class Holdings:
    """Answer what the slices of a step list and contain.

    Parameters
    ----------
    situation : Situation
        What is known about the tree.
    stages : Stages
        How parameters are cut.
    held : mapping of int to SliceFile
        Sound slices of one step.
    salvaged : mapping of int to (SliceFile, frozenset of str)
        Damaged slices, and the parameters in them that their manifests prove.
    """

    def __init__(
        self,
        situation: Situation,
        stages: Stages,
        held: Mapping[int, SliceFile],
        salvaged: Mapping[int, tuple[SliceFile, frozenset[str]]],
    ) -> None:
        self.situation = situation
        self.stages = stages
        self.files = {**{rank: file for rank, (file, _) in salvaged.items()}, **held}
        self._good = {rank: names for rank, (_, names) in salvaged.items() if rank not in held}
        self._names: dict[int, Names] = {}
        self._cells: dict[tuple[int, Layout], dict[Cell, list[int]]] = {}
        self._fitting: dict[tuple[int, str], Layout | None] = {}

    @cached_property
    def by_stage(self) -> dict[int, list[int]]:
        """Ranks that hold a slice, by stage, ascending."""
        stages: dict[int, list[int]] = defaultdict(list)
        for rank in sorted(self.files):
            stages[self.stages.of(rank)].append(rank)
        return dict(stages)

    @cached_property
    def kinds(self) -> dict[int, list[list[int]]]:
        """Ranks of each stage whose slices list the very same parameters, the largest kind first."""
        found: dict[int, list[list[int]]] = {}
        for stage, ranks in self.by_stage.items():
            kinds: dict[tuple[int, frozenset[str] | None], list[int]] = defaultdict(list)
            for rank in ranks:
                kinds[id(self.files[rank].parameters), self._good.get(rank)].append(rank)
            found[stage] = sorted(kinds.values(), key=lambda kind: (-len(kind), kind[0]))
        return found

    def is_sound(self, rank: int) -> bool:
        """Whether a rank's slice is sound as a whole."""
        return rank in self.files and rank not in self._good

    def find(self, rank: int, name: str) -> Parameter | None:
        """Return a parameter as a rank's slice lists it, None when that slice does not give it."""
        file = self.files.get(rank)
        index = self._index(file).get(name) if file is not None else None
        if file is None or index is None or (rank in self._good and name not in self._good[rank]):
            return None
        return file.parameters[index]

    def digest(self, rank: int, name: str) -> str | None:
        """Return the digest of a parameter's contents in a rank's slice, None when it is not known."""
        file = self.files[rank]
        digests = self.situation.digests_of(file)
        index = self._index(file).get(name)
        return digests.parameters[index] if digests is not None and index is not None and digests.parameters else None

    def layout(self, stage: int, name: str) -> Layout | None:
        """Return the layout of a parameter, None when the strategy file has none that fits the slices."""
        key = (stage, name)
        if key not in self._fitting:
            layout = self.stages.layouts.get(stage, {}).get(name)
            kinds = self.kinds.get(stage, ())
            like = next((found for kind in kinds if (found := self.find(kind[0], name)) is not None), None)
            self._fitting[key] = fit(layout, like) if layout is not None and like is not None else layout
        return self._fitting[key]

    def region(self, rank: int, parameter: Parameter) -> Box | None:
        """Return the region that a rank's slice holds of a parameter, None when no layout tells."""
        layout = self.layout(self.stages.of(rank), parameter.name)
        if layout is None or len(layout.tensor_map) != len(parameter.shape):
            return None
        return region_of(layout, cell_of(layout, rank), parameter.shape)

    def holders(self, rank: int, parameter: Parameter) -> tuple[int, ...]:
        """Return the ranks whose slices give what a rank's slice should hold, whether they agree or not."""
        stage = self.stages.of(rank)
        layout = self.layout(stage, parameter.name)
        ranks: Sequence[int] = self.by_stage.get(stage, ())
        if layout is not None:
            ranks = self.in_cell(stage, layout, cell_of(layout, rank))
        able = self._able(rank, ranks, parameter)
        if not able and layout is None:  # what a whole stage lost may be the same in others
            able = self._able(rank, sorted(self.files), parameter)
        return tuple(able)

    def elsewhere(self, rank: int, parameter: Parameter) -> list[tuple[Box, tuple[int, ...]]]:
        """Return other regions of a parameter that slices hold, cut another way, and who holds them.

        That is where stages share a parameter, and where a slice holds the whole tensor instead of its part.
        """
        own = self.stages.of(rank)
        full = self._full_shape(own, parameter)
        whole = tuple((0, size) for size in full) if full is not None else None
        found: dict[Box, list[int]] = defaultdict(list)
        for stage, kinds in self.kinds.items():
            for kind in kinds:
                theirs = self.find(kind[0], parameter.name)
                if theirs is None or theirs.dtype != parameter.dtype or len(theirs.shape) != len(parameter.shape):
                    continue
                if whole is not None and theirs.shape == full:
                    found[whole] += kind
                elif stage != own and self._full_shape(stage, theirs) == full:
                    for other in kind:
                        if (region := self.region(other, theirs)) is not None:
                            found[region].append(other)
        return [(box, tuple(ranks[:MOST_COMPARED])) for box, ranks in sorted(found.items())]

    def _full_shape(self, stage: int, parameter: Parameter) -> tuple[int, ...] | None:
        layout = self.layout(stage, parameter.name)
        if layout is None or layout.field or len(layout.tensor_map) != len(parameter.shape):
            return None
        count = cell_of(layout, 0).count
        rows = sum(layout.split_shape) if layout.split_shape else 0
        shape = tuple(local * parts for local, parts in zip(parameter.shape, count, strict=True))
        return (rows, *shape[1:]) if rows and shape else shape

    def _able(self, rank: int, ranks: Sequence[int], parameter: Parameter) -> list[int]:
        """Return the ranks that list the parameter just so, a cut-out of them around `rank` when there are many."""
        start = 0
        if len(ranks) > MOST_COMPARED:
            start = min(max(0, bisect(ranks, rank) - MOST_COMPARED // 2), len(ranks) - MOST_COMPARED)
        near = ranks[start : start + MOST_COMPARED]
        listed: dict[tuple[int, frozenset[str] | None], bool] = {}
        for other in near:
            kind = id(self.files[other].parameters), self._good.get(other)
            if kind not in listed:
                listed[kind] = self.find(other, parameter.name) == parameter
        return [other for other in near if listed[id(self.files[other].parameters), self._good.get(other)]]

    def in_cell(self, stage: int, layout: Layout, cell: Cell) -> list[int]:
        """Return the ranks of a stage that hold a slice and, by a layout, this part."""
        return self.cells_of(stage, layout).get(cell, [])

    def cells_of(self, stage: int, layout: Layout) -> dict[Cell, list[int]]:
        """Return the ranks of a stage that hold a slice by the part that it holds by a layout."""
        kind = cut_alike(layout)
        key = (stage, kind)
        if key not in self._cells:
            cells: dict[Cell, list[int]] = defaultdict(list)
            for rank in self.by_stage.get(stage, ()):
                cells[cell_of(kind, rank)].append(rank)
            self._cells[key] = cells
        return self._cells[key]

    @cached_property
    def are_read(self) -> bool:
        """Whether anything is known of what slices contain."""
        return any(self.situation.digests_of(file) is not None for file in self.files.values())

    def _index(self, file: SliceFile) -> Names:
        key = id(file.parameters)  # scans share equal lists; hashing one takes longer than reading it
        if key not in self._names:
            self._names[key] = {parameter.name: index for index, parameter in enumerate(file.parameters)}
        return self._names[key]
