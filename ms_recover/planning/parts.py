"""Who holds which part of which parameter at one step, parameter by parameter."""

from __future__ import annotations

from bisect import bisect
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from ms_recover.model.actions import FileState, Replica
from ms_recover.model.inventory import SliceFile
from ms_recover.model.slices import Parameter
from ms_recover.model.strategy import Layout
from ms_recover.planning.situation import Situation
from ms_recover.redundancy.layouts import Cell, cell_of, cut_alike, fit, region_of
from ms_recover.redundancy.regions import Box
from ms_recover.redundancy.stages import Stages

_MOST_COMPARED = 64
"""Holders of one part that are compared and chosen from; more prove nothing more."""

Names = dict[str, int]
"""Position of each parameter in the list of a slice."""


@dataclass(frozen=True, slots=True)
class Part:
    """Ranks that hold the same region of a parameter.

    Parameters
    ----------
    region : Box or None
        Of the global tensor; None where no layout tells, and every rank of the stage holds all of it.
    ranks : tuple of int
        Ranks whose slices give it, ascending; at most `_MOST_COMPARED`.
    problem : str or None
        Why it cannot be taken from anyone.
    disputed : bool
        It is held, but the holders differ and nothing says who is right.
    tolerated : bool
        The holders differ, as they may.
    """

    region: Box | None
    ranks: tuple[int, ...]
    problem: str | None = None
    disputed: bool = False
    tolerated: bool = False


def replica_of(situation: Situation, file: SliceFile) -> Replica:
    """Return a slice as something to take bytes from."""
    read = situation.contents.digests.get(file.path)
    digests = file.manifest.digests if file.manifest is not None else read
    return Replica(file.rank, file.path, FileState(file.size, file.mtime_ns), digests.file if digests else None)


class Parts:
    """Answer who holds a parameter's parts.

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
        self._doubts: dict[tuple[int, str], str | None] = {}
        self._told: dict[int, bool] = {}

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

    def part(self, rank: int, parameter: Parameter) -> Part:
        """Return who holds what a rank's slice should hold of a parameter.

        Parameters
        ----------
        rank : int
            Whose slice it is.
        parameter : Parameter
            As that slice lists it.
        """
        stage, name = self.stages.of(rank), parameter.name
        local = self.layout(stage, name) is None
        ranks = self.holders(rank, parameter)
        if local and name in self.stages.layouts.get(stage, {}):
            return Part(None, (), "its layout in the strategy file does not fit the slices")
        if local and len(ranks) == 1 and ranks != (rank,) and not self._is_common(parameter):
            return Part(None, (), f"no layout tells how it is cut, and rank {ranks[0]} alone has it: it may be its own")
        return self._settle(rank, parameter, self.region(rank, parameter), ranks, local=local)

    def _is_common(self, parameter: Parameter) -> bool:
        """Whether a parameter without layout is of a kind that all ranks have alike, such as a learning rate."""
        return not parameter.shape or self.situation.tolerance.covers(parameter.name)

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

    def outvoted(self, rank: int, wanted: Iterable[tuple[Parameter, Part]]) -> str | None:
        """Return why majorities are not believed: who is outvoted over one parameter is in the majority over others.

        A damaged slice or two are outvoted; where half of the holders are, the layouts are of other slices.
        """
        stage = self.stages.of(rank)
        if self.is_told(stage) or not self._read:
            return None
        holders: set[int] = set()
        odd: set[int] = set()
        for parameter, part in wanted:
            if part.ranks and part.region is not None and not part.tolerated:
                right = self.digest(part.ranks[0], parameter.name)
                others = self.holders(rank, parameter)
                holders.update(others)
                odd.update(one for one in others if self.digest(one, parameter.name) not in (None, right))
        if not odd or 2 * len(odd) < len(holders):
            return None
        return (
            f"of ranks {sorted(holders)}, which hold the same by the layouts in {self.stages.paths[stage]}, each of "
            f"{sorted(odd)} holds something else somewhere: it is not the strategy file of these slices, or they are "
            "damaged"
        )

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
        return [(box, tuple(ranks[:_MOST_COMPARED])) for box, ranks in sorted(found.items())]

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
        if len(ranks) > _MOST_COMPARED:
            start = min(max(0, bisect(ranks, rank) - _MOST_COMPARED // 2), len(ranks) - _MOST_COMPARED)
        near = ranks[start : start + _MOST_COMPARED]
        listed: dict[tuple[int, frozenset[str] | None], bool] = {}
        for other in near:
            kind = id(self.files[other].parameters), self._good.get(other)
            if kind not in listed:
                listed[kind] = self.find(other, parameter.name) == parameter
        return [other for other in near if listed[id(self.files[other].parameters), self._good.get(other)]]

    def in_cell(self, stage: int, layout: Layout, cell: Cell) -> list[int]:
        """Return the ranks of a stage that hold a slice and, by a layout, this part."""
        return self._cells_of(stage, layout).get(cell, [])

    def _cells_of(self, stage: int, layout: Layout) -> dict[Cell, list[int]]:
        kind = cut_alike(layout)
        key = (stage, kind)
        if key not in self._cells:
            cells: dict[Cell, list[int]] = defaultdict(list)
            for rank in self.by_stage.get(stage, ()):
                cells[cell_of(kind, rank)].append(rank)
            self._cells[key] = cells
        return self._cells[key]

    def _settle(
        self, rank: int, parameter: Parameter, region: Box | None, ranks: tuple[int, ...], *, local: bool
    ) -> Part:
        """Compare holders' contents; a majority wins, and a side of which alone a manifest speaks."""
        if rank in ranks:  # salvaged from the rank's own damaged slice, by its manifest
            return Part(region, (rank,))
        if not self._read:
            return Part(region, ranks)
        sides: dict[str, list[int]] = defaultdict(list)
        unknown: list[int] = []
        for other in ranks:
            digest = self.digest(other, parameter.name)
            (unknown if digest is None else sides[digest]).append(other)
        if len(sides) < 2:
            doubt = self._doubt(rank, parameter.name) if ranks else None
            return Part(region, (), doubt, disputed=True) if doubt is not None else Part(region, ranks)
        if self.situation.tolerance.covers(parameter.name):
            return Part(region, ranks, tolerated=True)
        proven = [side for side in sides.values() if any(self.files[other].manifest for other in side)]
        best = max(sides.values(), key=len)
        if len(proven) == 1:
            return Part(region, tuple(proven[0]))
        if local:  # what no layout tells of is the same everywhere or each rank's own; a majority does not tell
            return Part(region, (), "it differs from rank to rank, and only the rank itself had its own")
        if 2 * len(best) > len(ranks) - len(unknown):
            return Part(region, tuple(best))
        parts = " and ".join(f"rank {side[0]}" for side in list(sides.values())[:2])
        problem = f"{parts} hold different contents, and nothing says who is right"
        return Part(region, (), problem, disputed=True)

    def _doubt(self, rank: int, name: str) -> str | None:
        """Return why a layout is not believed: mostly, ranks that hold the same by it hold different contents.

        That is a strategy file of another layout, or damage; where manifests name the strategy file it is known.
        """
        stage = self.stages.of(rank)
        layout = self.layout(stage, name)
        if layout is None or self.is_told(stage) or not self._read or self.situation.tolerance.covers(name):
            return None
        key = (stage, name)
        if key not in self._doubts:
            alike, unlike = 0, []
            for ranks in self._cells_of(stage, layout).values():
                digests = {one: self.digest(one, name) for one in ranks if self.find(one, name) is not None}
                known = [one for one, digest in digests.items() if digest is not None]
                odd = next((one for one in known if digests[one] != digests[known[0]]), None)
                if odd is not None:
                    unlike.append((known[0], odd))
                elif len(known) > 1:
                    alike += 1
            text = None
            if len(unlike) > alike:
                one, other = unlike[0]
                text = (
                    f"by the layouts in {self.stages.paths[stage]} ranks {one} and {other} hold the same of it, and do "
                    "not: it is not the strategy file of these slices, or they are damaged"
                )
            self._doubts[key] = text
        return self._doubts[key]

    @cached_property
    def _read(self) -> bool:
        """Whether anything is known of what slices contain."""
        return any(self.situation.digests_of(file) is not None for file in self.files.values())

    def is_told(self, stage: int) -> bool:
        """Whether a manifest says that slices of a stage were saved under the strategy file that is used."""
        if stage not in self._told:
            known = self.stages.digests.get(stage, frozenset())
            manifests = (self.files[rank].manifest for rank in self.by_stage.get(stage, ()))
            self._told[stage] = any(told is not None and told.strategy_digest in known for told in manifests)
        return self._told[stage]

    def _index(self, file: SliceFile) -> Names:
        key = id(file.parameters)  # scans share equal lists; hashing one takes longer than reading it
        if key not in self._names:
            self._names[key] = {parameter.name: index for index, parameter in enumerate(file.parameters)}
        return self._names[key]
