"""The parameters that slices of one step give: who lists them, where they lie, and how layouts cut them."""

from __future__ import annotations

from bisect import bisect
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from ms_recover.model.actions import FileState, Replica
from ms_recover.model.slices import Parameter, ParameterList
from ms_recover.model.steps import Step
from ms_recover.model.strategy import Layout
from ms_recover.planning.claims.layouts import Cell, cells_of, cut_alike, fit, region_of
from ms_recover.planning.claims.regions import Box
from ms_recover.planning.claims.stages import Stages
from ms_recover.planning.judging.judgement import StepJudgement
from ms_recover.planning.tree.facts import Facts, SliceFacts

MOST_COMPARED = 64
"""Sources of one part that are compared and chosen from; more prove nothing more."""

_Kind = tuple[ParameterList, frozenset[str] | None]
"""What slices give that give the very same parameters: what they list, and which of it where not all is good."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Way:
    """One way of cutting parameters of a stage, by a layout that has an entry for each dimension of the slices.

    `cells` has the part that each rank of the stage holds, by its place in the stage; `holders` has the ranks with a
    usable slice, ascending, by the `Cell.index` of their part. No two ways have one number.
    """

    number: int
    layout: Layout
    cells: Sequence[Cell]
    holders: Mapping[tuple[int, ...], Sequence[int]]

    def cell(self, rank: int) -> Cell:
        """Return the part that a rank of the stage holds."""
        return self.cells[rank % len(self.cells)]


def replica_of(one: SliceFacts) -> Replica:
    """Return a slice as a source of bytes."""
    digests = one.manifest.digests if one.manifest is not None else one.digests
    state = FileState(one.file.size, one.file.mtime_ns)
    return Replica(one.rank, one.path, state, digests.file if digests is not None else None)


def usable_slices(
    facts: Facts, judgement: StepJudgement, sound: Mapping[int, SliceFacts]
) -> tuple[dict[int, SliceFacts], dict[int, tuple[SliceFacts, frozenset[str]]]]:
    """Return the slices that parameters may come from: whole ones, and others with their good parameters.

    Slices that were saved under another strategy file give nothing.
    """
    usable = {rank: slice_ for rank, slice_ in sound.items() if facts.stages.covers(slice_.file)}
    salvaged: dict[int, tuple[SliceFacts, frozenset[str]]] = {}
    for slice_ in facts.counted_at(judgement.step):
        judged = judgement.slices.get(slice_.path)
        if slice_.rank not in usable and judged is not None and judged.good and facts.stages.covers(slice_.file):
            salvaged[slice_.rank] = (slice_, judged.good)
    return usable, salvaged


class ParameterIndex:
    """Answers what the slices of a step list and contain; `sound` are the sound ones by rank."""

    def __init__(self, facts: Facts, judgement: StepJudgement, sound: Mapping[int, SliceFacts]) -> None:
        self.facts = facts
        self.judgement = judgement
        usable, salvaged = usable_slices(facts, judgement, sound)
        self.slices = {**{rank: slice_ for rank, (slice_, _) in salvaged.items()}, **usable}
        self._good = {rank: names for rank, (_, names) in salvaged.items()}
        self._ways: dict[tuple[int, Layout], Way] = {}
        self._way_of: dict[tuple[int, str], Way | None] = {}
        self._elsewhere: dict[tuple[int, str], bool] = {}
        self._near: dict[tuple[int, ...], list[tuple[int, ...]]] = {}

    @property
    def stages(self) -> Stages:
        """Pipeline stages and how their parameters are cut."""
        return self.facts.stages

    @cached_property
    def by_stage(self) -> dict[int, list[int]]:
        """Ranks that have a usable slice, by stage, ascending."""
        stages: dict[int, list[int]] = defaultdict(list)
        for rank in sorted(self.slices):
            stages[self.stages.of(rank)].append(rank)
        return dict(stages)

    @cached_property
    def kinds(self) -> dict[int, list[list[int]]]:
        """Ranks of each stage whose slices give the very same parameters, the largest kind first."""
        of_stages: dict[int, list[list[int]]] = {}
        for stage, ranks in self.by_stage.items():
            kinds: dict[_Kind, list[int]] = defaultdict(list)
            for rank in ranks:
                kinds[self._kind(rank)].append(rank)
            of_stages[stage] = sorted(kinds.values(), key=lambda kind: (-len(kind), kind[0]))
        return of_stages

    @cached_property
    def runs(self) -> frozenset[str]:
        """The runs that the manifests of the slices name."""
        return frozenset(one.manifest.run_id for one in self.slices.values() if one.manifest is not None)

    @cached_property
    def prefixes(self) -> frozenset[str]:
        """The prefixes of the slices."""
        return frozenset(one.file.prefix for one in self.slices.values())

    def _kind(self, rank: int) -> _Kind:
        return self.slices[rank].listed, self._good.get(rank)

    def is_sound(self, rank: int) -> bool:
        """Whether a rank's slice is sound as a whole."""
        return rank in self.slices and rank not in self._good

    def find(self, rank: int, name: str) -> Parameter | None:
        """Return a parameter as a rank's slice lists it, None when that slice does not give it."""
        slice_ = self.slices.get(rank)
        place = slice_.listed.index.get(name) if slice_ is not None else None
        if slice_ is None or place is None or (rank in self._good and name not in self._good[rank]):
            return None
        return slice_.listed[place]

    def digest(self, rank: int, name: str) -> str | None:
        """Return the digest of a parameter's contents in a rank's slice, None when it is not known."""
        return self.slices[rank].digest_of(name)

    @cached_property
    def rank_local(self) -> Mapping[int, frozenset[str]]:
        """Ranks whose manifests call parameters rank-local, and these."""
        return {rank: names for rank, one in self.slices.items() if (names := one.rank_local)}

    def is_rank_local(self, name: str, ranks: Iterable[int]) -> bool:
        """Whether the manifest of one of some ranks calls a parameter rank-local."""
        known = self.rank_local
        return bool(known) and any(name in known.get(rank, ()) for rank in ranks)

    def may_differ(self, name: str, ranks: Iterable[int]) -> bool:
        """Whether a parameter may differ among some ranks."""
        return self.is_rank_local(name, ranks) or self.facts.tolerance.covers(name)

    def way(self, stage: int, name: str) -> Way | None:
        """Return how a parameter is cut, None when the strategy file has no layout that fits the slices."""
        key = (stage, name)
        if key not in self._way_of:
            layout = self.stages.layouts.get(stage, {}).get(name)
            likes = (self.find(kind[0], name) for kind in self.kinds.get(stage, ()))
            like = next((parameter for parameter in likes if parameter is not None), None)
            fitting = fit(layout, like) if layout is not None and like is not None else layout
            self._way_of[key] = self._way(stage, cut_alike(fitting)) if fitting is not None else None
        return self._way_of[key]

    def _way(self, stage: int, layout: Layout) -> Way:
        if (stage, layout) not in self._ways:
            cells = cells_of(layout, self.stages.ranks(stage))
            holders: dict[tuple[int, ...], list[int]] = defaultdict(list)
            for rank in self.by_stage.get(stage, ()):
                holders[cells[rank % len(cells)].index].append(rank)
            self._ways[stage, layout] = Way(number=len(self._ways), layout=layout, cells=cells, holders=dict(holders))
        return self._ways[stage, layout]

    def region(self, rank: int, parameter: Parameter) -> Box | None:
        """Return the region that a rank's slice holds of a parameter, None without a layout."""
        way = self.way(self.stages.of(rank), parameter.name)
        if way is None or len(way.layout.tensor_map) != len(parameter.shape):
            return None
        return region_of(way.layout, way.cell(rank), parameter.shape)

    def block(self, rank: int, name: str) -> tuple[int, ...] | None:
        """Return the key of the block of a parameter that a rank holds, or of a cut-out around it if it is large.

        Ranks with one key have the same sources of the parameter. None without a layout.
        """
        way = self.way(self.stages.of(rank), name)
        if way is None:
            return None
        part = way.cell(rank).index
        return (way.number, _first_near(rank, way.holders.get(part, ())), *part)

    def sources(self, rank: int, parameter: Parameter) -> tuple[int, ...]:
        """Return the ranks whose slices list what a rank's slice should hold, whether they agree or not.

        Nothing that is cut, and nothing that is large, comes from another pipeline stage: MindSpore leaves parameters
        there at their initial values. Only counters without layout that a whole stage lost are taken from others.
        """
        stage = self.stages.of(rank)
        way = self.way(stage, parameter.name)
        if way is not None:
            part = way.cell(rank).index
            return self._able(rank, (way.number, *part), way.holders.get(part, ()), parameter)
        able = self._able(rank, (-2 - stage,), self.by_stage.get(stage, ()), parameter)
        if not able and self.is_counter(parameter):
            able = self._able(rank, (-1,), sorted(self.slices), parameter)
        return able

    def is_shown_whole(self, name: str, ranks: Sequence[int], rank: int | None = None) -> bool:
        """Whether ranks of one stage that hold the same of a parameter without layout show that it is not cut.

        It could be cut like some other parameter of the stage; so ranks that hold different parts of each of these must
        have it, or one with the part that `rank` has. Or it is cut between rank lists; so ranks of one do not suffice,
        unless that has the whole stage. Contents that are not known yet are read before a plan rests on them, unless it
        is a quick one.
        """
        quick = self.facts.options.quick
        known = [rank for rank in ranks if not quick or self.digest(rank, name) is not None]
        groups = {self.facts.groups.of(rank) for rank in known}
        if len(groups) == 1 and not self.stages.devices <= len(*groups):
            return False
        if known and self._differs_elsewhere(self.stages.of(known[0]), name):
            return False
        return len(known) > 1 and not any(
            len(parts := {cut.parts[rank % self.stages.devices] for rank in known}) == 1
            and not parts.issuperset(cut.parts if rank is None else (cut.parts[rank % self.stages.devices],))
            for cut in self.stages.cuts.get(self.stages.of(known[0]), ())
        )

    def _differs_elsewhere(self, stage: int, name: str) -> bool:
        """Whether slices of another step hold different contents of a parameter, which are no damage of one of them.

        Their manifests prove them, or there are two slices or more on each of two sides.
        """
        key = (stage, name)
        if key not in self._elsewhere:
            step = self.judgement.step
            others = (
                (other for other in self.facts.steps if other != step) if not self.facts.tolerance.covers(name) else ()
            )
            self._elsewhere[key] = any(self._differs_at(other, stage, name) for other in others)
        return self._elsewhere[key]

    def _differs_at(self, step: Step, stage: int, name: str) -> bool:
        proven: set[str] = set()
        bare: Counter[str] = Counter()
        for rank in self.stages.ranks(stage):
            for mine in self.facts.at(step, rank):
                digest = mine.digest_of(name)
                sound = mine.file.problem is None and mine.manifest_problem is None and mine.content_problem is None
                if digest is None or not sound or rank in self.facts.lost or name in mine.rank_local:
                    continue
                if self.judgement.run.why_foreign(mine.file) is None:
                    bare[digest] += 1
                    proven.update([digest] if mine.manifest is not None else [])
        return len(proven) > 1 or sum(count > 1 for count in bare.values()) > 1

    def is_counter(self, parameter: Parameter) -> bool:
        """Whether a parameter is a counter without layout, which all stages have alike."""
        cut = any(parameter.name in layouts for layouts in self.stages.layouts.values())
        return not cut and parameter.is_counter

    def whole_tensors(self, rank: int, parameter: Parameter) -> list[tuple[Box, tuple[int, ...]]]:
        """Return the ranks of a stage whose slices hold the whole tensor of which a rank holds a part."""
        stage = self.stages.of(rank)
        listed = [(kind, self.find(kind[0], parameter.name)) for kind in self.kinds.get(stage, ())]
        other = [(kind, theirs) for kind, theirs in listed if theirs is not None and theirs.shape != parameter.shape]
        full = self.full_shape(stage, parameter) if other else None
        if full is None:
            return []
        ranks: list[int] = []
        for kind, theirs in other:
            if (theirs.dtype, theirs.shape) == (parameter.dtype, full):
                ranks += kind
        return [(tuple((0, size) for size in full), tuple(sorted(ranks)[:MOST_COMPARED]))] if ranks else []

    def full_shape(self, stage: int, parameter: Parameter) -> tuple[int, ...] | None:
        """Return the shape of the whole tensor of which a slice of a stage lists a part, None without a layout."""
        way = self.way(stage, parameter.name)
        if way is None or way.layout.field or len(way.layout.tensor_map) != len(parameter.shape):
            return None
        layout, count = way.layout, way.cells[0].count
        rows = sum(layout.split_shape) if layout.split_shape else 0
        shape = tuple(local * parts for local, parts in zip(parameter.shape, count, strict=True))
        return (rows, *shape[1:]) if rows and shape else shape

    def _able(self, rank: int, key: tuple[int, ...], ranks: Sequence[int], parameter: Parameter) -> tuple[int, ...]:
        """Return those of the ranks with one part that list the parameter just so; of many a cut-out around `rank`."""
        start = _first_near(rank, ranks)
        key = (start, *key)
        near = self._near.get(key)
        if near is None:
            kinds: dict[_Kind, list[int]] = defaultdict(list)
            for other in ranks[start : start + MOST_COMPARED]:
                kinds[self._kind(other)].append(other)
            near = self._near[key] = [tuple(ranks) for ranks in kinds.values()]
        listing = [ranks for ranks in near if self.find(ranks[0], parameter.name) == parameter]
        return listing[0] if len(listing) == 1 else tuple(sorted(other for ranks in listing for other in ranks))

    @cached_property
    def are_read(self) -> bool:
        """Whether anything is known of the contents of the slices."""
        return any(one.digests is not None for one in self.slices.values())


def _first_near(rank: int, ranks: Sequence[int]) -> int:
    """Return where the cut-out of the ranks around a rank begins; 0 where all are compared."""
    return max(0, min(bisect(ranks, rank) - MOST_COMPARED // 2, len(ranks) - MOST_COMPARED))
