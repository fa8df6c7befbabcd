"""All that the source of a reshard gives: its slices by number, and the regions of each parameter that they hold."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

from ms_recover.model.compose import MissingRegion
from ms_recover.model.reshard import HeldRegion, ReshardSource
from ms_recover.model.slices import Parameter
from ms_recover.model.steps import Step
from ms_recover.planning.judging.judgement import Comparison
from ms_recover.planning.supply.parameters import replica_of
from ms_recover.planning.supply.supply import Supply, supply_of
from ms_recover.planning.supply.whole import WholeParameter, WholeParameters, lost_parameter
from ms_recover.planning.tree.runs import Run


@dataclass(frozen=True, kw_only=True)
class Source:
    """All that the source gives: its slices by number, and its parameters by name, in the order of the network.

    `lost` says of which stages nothing is known, so that any parameter may have been there.
    """

    slices: tuple[ReshardSource, ...]
    parameters: dict[str, WholeParameter]
    disagreements: tuple[str, ...] = ()
    lost: tuple[MissingRegion, ...] = ()
    stage_names: tuple[frozenset[str], ...] = field(default=())
    """By stage, the parameters that its strategy file names."""
    alive: frozenset[int] = frozenset()
    """Stages that have a slice."""


def find_source(parts: Sequence[Comparison], step: Step, run: Run) -> Source:
    """Find the regions that the slices of a step give, as slices of one run, from the parts of the tree with the step.

    Raises
    ------
    MissingInputError
        When nothing states how the parameters are cut.
    """
    slices: list[ReshardSource] = []
    parameters: dict[str, WholeParameter] = {}
    wholes = [WholeParameters(supply_of(compared, step, run)) for compared in parts]
    for whole in wholes:
        numbers = _number_slices(whole.supply, slices)
        numbered = _Numbered(numbers)
        for name, parameter in whole.parameters().items():
            parameters[name] = numbered.of(replace(parameter, kind=whole.facts.kind))
    disputes = [text for whole in wholes for _, text in sorted(whole.supply.judgement.disagreements.items())]
    disputes += [text for whole in wholes for text in whole.disputes]
    stages: dict[int, set[str]] = defaultdict(set)
    for whole in wholes:
        for stage, layouts in whole.facts.stages.layouts.items():
            stages[stage].update(layouts)
    return Source(
        slices=tuple(slices),
        parameters=parameters,
        disagreements=tuple(dict.fromkeys(disputes)),
        lost=tuple(dict.fromkeys(gone for whole in wholes for gone in whole.lost_stages())),
        alive=frozenset(stage for whole in wholes for stage in whole.index.by_stage),
        stage_names=tuple(frozenset(stages[stage]) for stage in range(max(stages, default=-1) + 1)),
    )


def _number_slices(supply: Supply, slices: list[ReshardSource]) -> dict[int, int]:
    """Give numbers to the slices that may give something, behind those of other parts; return them by rank."""
    numbers: dict[int, int] = {}
    for rank, slice_ in sorted(supply.index.slices.items()):
        if slice_.file.encryption is None:
            numbers[rank] = len(slices)
            digests = slice_.digests.parameters if slice_.digests is not None else ()
            slices.append(ReshardSource(replica_of(slice_), slice_.listed, digests, slice_.proven))
    return numbers


class _Numbered:
    """Regions with numbers of slices in place of ranks; those of equal ones stay one object."""

    def __init__(self, numbers: Mapping[int, int]) -> None:
        self._numbers = numbers
        self._known: dict[int, tuple[tuple[HeldRegion, ...], tuple[HeldRegion, ...]]] = {}

    def of(self, whole: WholeParameter) -> WholeParameter:
        """Return a parameter whose regions have numbers."""
        if id(whole.regions) not in self._known:
            self._known[id(whole.regions)] = whole.regions, tuple(map(self._region, whole.regions))
        overlaps = tuple(
            replace(pair, one=self._region(pair.one), other=self._region(pair.other)) for pair in whole.overlaps
        )
        return replace(whole, regions=self._known[id(whole.regions)][1], overlaps=overlaps)

    def _region(self, region: HeldRegion) -> HeldRegion:
        return HeldRegion(region.box, tuple(self._numbers[rank] for rank in region.holders))


def disputed(source: Source, names: Collection[str]) -> Source:
    """Return a source without some parameters, of which stages hold different contents."""
    why = "pipeline stages hold different contents of it where they overlap, and nothing settles which is right"
    gone = {
        name: lost_parameter(name, why, Parameter(name, whole.dtype, whole.shape, prod(whole.shape) * whole.item_size))
        for name, whole in source.parameters.items()
        if name in names
    }
    return replace(
        source,
        parameters=source.parameters | gone,
        disagreements=(*source.disagreements, *(f"{name!r}: {why}" for name in gone)),
    )
