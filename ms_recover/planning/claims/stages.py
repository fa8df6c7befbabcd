"""Pipeline stages: which ranks they are, and how their parameters are cut."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod

from ms_recover.model.groups import rank_list
from ms_recover.model.inventory import SliceFile, StrategyFile
from ms_recover.model.slices import Parameter
from ms_recover.model.strategy import Layout
from ms_recover.planning.claims.layouts import Cut, find_cuts


@dataclass(frozen=True)
class Stages:
    """What the strategy files say together.

    A stage has so many `devices`; none when no strategy file can be used, for the reason in `problem`. By stage there
    are the layouts of its parameters, the path of the strategy file that was used, and the digests of all that say the
    same. `contradicts` is the strategy file that the rank lists contradict, which is why none can be used.
    """

    devices: int = 0
    layouts: dict[int, dict[str, Layout]] = field(default_factory=dict)
    paths: dict[int, str] = field(default_factory=dict)
    problem: str | None = None
    digests: dict[int, frozenset[str]] = field(default_factory=dict)
    contradicts: str | None = None

    def of(self, rank: int) -> int:
        """Return the stage of a rank; 0 when stages are not known."""
        return rank // self.devices if self.devices else 0

    def ranks(self, stage: int) -> range:
        """Return the ranks of a stage."""
        return range(stage * self.devices, (stage + 1) * self.devices)

    def covers(self, file: SliceFile) -> bool:
        """Whether a slice was saved under the strategy file that is used, as far as its manifest states it."""
        digest = file.manifest.strategy_digest if file.manifest is not None else None
        known = self.digests.get(self.of(file.rank))
        return digest is None or not known or digest in known

    def is_named_by(self, file: SliceFile) -> bool:
        """Whether training says that it saved a slice under the strategy file that is used.

        Sealing takes the file that lies there.
        """
        manifest, known = file.manifest, self.digests.get(self.of(file.rank), frozenset())
        return manifest is not None and manifest.provenance.kind == "saved" and manifest.strategy_digest in known

    @cached_property
    def cuts(self) -> dict[int, tuple[Cut, ...]]:
        """The ways in which the parameters of each stage are cut."""
        return {stage: find_cuts(layouts, self.devices) for stage, layouts in self.layouts.items()}

    def cuts_between(self, one: int, other: int) -> list[Cut]:
        """Return the ways of cutting of the first rank's stage in which the second has another part.

        Of another stage it is none of these parts, so that they are all.
        """
        cuts, devices = self.cuts.get(self.of(one), ()), self.devices
        apart = self.of(one) != self.of(other)
        return [cut for cut in cuts if apart or cut.parts[one % devices] != cut.parts[other % devices]]

    def alike(self, one: int, other: int) -> bool:
        """Whether two ranks hold the same part of every parameter that has a layout."""
        return one in self.families and self.families.get(other) == self.families[one]

    @cached_property
    def families(self) -> dict[int, tuple[int, ...]]:
        """For each rank of a stage with layouts the ranks that hold the same part of every parameter, ascending."""
        of_ranks: dict[int, tuple[int, ...]] = {}
        for stage, cuts in self.cuts.items():
            if not cuts:
                continue
            by_parts: dict[tuple[tuple[int, ...], ...], list[int]] = defaultdict(list)
            for rank, *parts in zip(self.ranks(stage), *(cut.parts for cut in cuts), strict=True):
                by_parts[tuple(parts)].append(rank)
            families = map(rank_list, by_parts.values())
            of_ranks |= {rank: family for family in families for rank in family}
        return of_ranks

    @cached_property
    def replicated(self) -> frozenset[int]:
        """Ranks that share their part of every parameter that has a layout with another rank."""
        return frozenset(rank for rank, family in self.families.items() if len(family) > 1)

    @cached_property
    def sharing(self) -> frozenset[int]:
        """Ranks that share their part of some parameter with another rank."""
        ranks: set[int] = set()
        for stage, cuts in self.cuts.items():
            for cut in cuts:
                count = Counter(cut.parts)
                ranks.update(rank for rank, part in zip(self.ranks(stage), cut.parts, strict=False) if count[part] > 1)
        return frozenset(ranks)

    def names_all(self, stage: int, slices: Iterable[SliceFile]) -> bool:
        """Whether layouts name every parameter of a stage's slices but scalars, as far as these can be read.

        A list that more slices of another stage have is that of a slice in a wrong place.
        """
        named = self.layouts[stage]
        counts = Counter((self.of(file.rank), file.parameters) for file in slices if file.parameters)
        most: dict[Sequence[Parameter], int] = defaultdict(int)
        for (_, parameters), count in counts.items():
            most[parameters] = max(most[parameters], count)
        lists = [listed for (of, listed), count in counts.items() if of == stage and count == most[listed]]
        return bool(lists) and all(
            parameter.name in named or prod(parameter.shape) == 1 for parameters in lists for parameter in parameters
        )

    def why_unknown(self, rank: int) -> str | None:
        """Return why it is not known how the parameters of a rank are cut, None when it is."""
        if self.problem is not None:
            return self.problem
        stage = self.of(rank)
        first, last = self.ranks(stage)[0], self.ranks(stage)[-1]
        if stage not in self.layouts:
            return f"no strategy file of its stage (ranks {first} to {last}) survived"
        return None


def find_stages(files: Iterable[StrategyFile], world_size: int, saved_under: Mapping[int, Collection[str]]) -> Stages:
    """Put strategy files together; MindSpore writes the same for all ranks of a stage.

    Where one in three of a stage's files or more say otherwise than the others, none is used. Nor are those used that
    no manifest names, where manifests of their stage, or of half of the ranks, name any: `saved_under` has the digests
    by rank.
    """
    usable = _named_files([file for file in files if file.devices_per_stage], world_size, saved_under)
    if not usable:
        return Stages(problem="no strategy file states how parameters are cut")
    sizes = Counter(file.devices_per_stage for file in usable)
    (devices, most), *others = sizes.most_common()
    if 2 * sum(count for _, count in others) > most or world_size % devices:
        what = " and ".join(str(size) for size in sorted(sizes))
        return Stages(problem=f"strategy files state {what} ranks in a stage, which does not fit {world_size} ranks")
    by_stage: dict[int, list[StrategyFile]] = defaultdict(list)
    misfits: dict[int, list[StrategyFile]] = defaultdict(list)
    for file in usable:
        stage = file.rank // devices
        if file.devices_per_stage != devices:
            continue  # of another world: most are of this one
        fits = not file.stages or stage in file.stages
        (by_stage if fits else misfits)[stage].append(file)
    layouts, paths, digests = {}, {}, {}
    for stage, named in sorted(by_stage.items()):
        kinds: list[list[StrategyFile]] = []  # scans share equal strategies, so that comparing is cheap
        for file in named:
            same = next((kind for kind in kinds if _cut_the_same(kind[0], file)), None)
            if same is None:
                kinds.append([file])
            else:
                same.append(file)
        kinds.sort(key=len, reverse=True)
        against = [file for kind in kinds[1:] for file in kind] + misfits[stage]
        if 2 * len(against) >= len(kinds[0]):
            first, odd = kinds[0][0].path, against[0].path
            if against[0] in misfits[stage]:
                return Stages(problem=f"{first} makes ranks of one stage of {devices}, {odd} is of another stage")
            return Stages(problem=f"{first} and {odd} are of one stage and cut parameters differently")
        plain = min(kinds[0], key=lambda file: file.strategy.names_shapes)
        layouts[stage] = _with_split_states({layout.parameter: layout for layout in plain.strategy.layouts})
        paths[stage] = kinds[0][0].path
        digests[stage] = frozenset(file.digest for file in kinds[0] if file.digest)
    return Stages(devices, layouts, paths, digests=digests)


def _named_files(
    files: Iterable[StrategyFile], world_size: int, saved_under: Mapping[int, Collection[str]]
) -> list[StrategyFile]:
    """Return the strategy files that manifests name; where few ranks have such, also those of stages without any."""
    stating = {rank: digests for rank, digests in saved_under.items() if digests}
    most = 2 * len(stating) >= world_size
    strategies: list[StrategyFile] = []
    by_size: dict[int, dict[int, set[str]]] = {}
    for file in files:
        size = world_size if most else file.devices_per_stage
        if size not in by_size:
            by_size[size] = defaultdict(set)
            for rank, digests in stating.items():
                by_size[size][rank // size].update(digests)
        named = by_size[size].get(file.rank // size)
        if not named or not file.digest or file.digest in named:
            strategies.append(file)
    return strategies


def _with_split_states(layouts: dict[str, Layout]) -> dict[str, Layout]:
    """Give optimizer states the rows of their weight's parts, where an embedding is cut by hand or by field.

    MindSpore writes these for the weight alone; a state is named by a word and a dot before the weight's name.
    """
    completed = dict(layouts)
    for name, layout in layouts.items():
        weight = layouts.get(name.partition(".")[2])
        if weight is None or not (weight.split_shape or weight.field) or layout.split_shape or layout.field:
            continue
        if (layout.device_matrix, layout.tensor_map) == (weight.device_matrix, weight.tensor_map):
            completed[name] = replace(
                layout, split_shape=weight.split_shape, indices_offset=weight.indices_offset, field=weight.field
            )
    return completed


def _cut_the_same(one: StrategyFile, other: StrategyFile) -> bool:
    """Whether two strategy files say the same, also where one is in the JSON form, which flattens nested dimensions."""
    if one.strategy.layouts == other.strategy.layouts:
        return True
    forms = [file.strategy.names_shapes for file in (one, other)]
    return forms[0] != forms[1] and _flat(one) == _flat(other)


def _flat(file: StrategyFile) -> list[Layout]:
    layouts = []
    for layout in file.strategy.layouts:
        axes = tuple(
            ((axis,) if axis is not None else ()) for axes_of in layout.tensor_map for axis in axes_of or (None,)
        )
        layouts.append(replace(layout, tensor_map=axes, tensor_shape=()))
    return layouts
