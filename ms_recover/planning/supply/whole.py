"""Whole parameters of a step: who gives which region of them, over all pipeline stages, or why nobody does."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from ms_recover.file_names import WeightKind
from ms_recover.model.compose import MissingRegion
from ms_recover.model.reshard import Box, HeldRegion, Overlap
from ms_recover.model.slices import Parameter
from ms_recover.planning.claims.layouts import NOT_SHARDED, shape_at
from ms_recover.planning.claims.regions import Grid, cover, intersect, volume
from ms_recover.planning.supply.expected_parameters import lost_lists, merge_orders
from ms_recover.planning.supply.parameters import Way
from ms_recover.planning.supply.settle import Settled, why_perhaps_cut
from ms_recover.planning.supply.supply import Supply

_MOST_HOLDERS = 4
EVERY_PARAMETER = "every parameter of stage"
"""What stands for the names of parameters that nothing knows any more, with the number of their stage."""

_NOBODY = "no sound slice has it"


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeParameter:
    """One parameter of a step: its whole shape, and the regions of it that slices give.

    Parameters
    ----------
    regions : tuple of HeldRegion
        Each with the ranks that give it; equal ones are one object. Without a layout it is one region, the whole.
    missing : tuple of MissingRegion
        What nobody holds.
    cut : bool
        Whether a layout states how it is cut.
    stages : frozenset of int
        Pipeline stages whose slices list it.
    own : bool
        Each rank has its own values.
    known : bool
        Whether the shape is that of the whole tensor.
    kind : WeightKind or None
        In a tree of MindFormers' format, whether model files or optimizer files hold it.
    overlaps : tuple of Overlap
        Regions that several stages hold and cut differently.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    item_size: int
    regions: tuple[HeldRegion, ...]
    missing: tuple[MissingRegion, ...] = ()
    cut: bool = True
    stages: frozenset[int] = frozenset()
    own: bool = False
    known: bool = True
    kind: WeightKind | None = None
    overlaps: tuple[Overlap, ...] = ()


class WholeParameters:
    """Answers who gives which region of the whole parameters of a part of a tree, or why nobody does.

    Attributes
    ----------
    disputes : list of str
        Sources that differ, with nothing to settle who is right; found by `parameters`.
    """

    def __init__(self, supply: Supply) -> None:
        self.supply, self.facts = supply, supply.facts
        self.index, self.settlement = supply.index, supply.settlement
        self.disputes: list[str] = []
        self._lists = lost_lists(supply.index)
        self._shared: dict[tuple[object, ...], tuple[HeldRegion, ...]] = {}
        self._parts: dict[int, list[int]] = {}
        self._refusals: dict[int, str | None] = {}

    def parameters(self) -> dict[str, WholeParameter]:
        """Return every parameter, by name, in the order of the network."""
        stages, index = self.index.stages, self.index
        named = {name for layouts in stages.layouts.values() for name in layouts}
        orders = []
        for stage in sorted(index.kinds):
            for kind in index.kinds[stage]:
                given = [item for item in index.slices[kind[0]].listed if index.find(kind[0], item.name) is not None]
                orders.append(tuple(item.name for item in given))
        gone: dict[str, dict[int, Parameter]] = defaultdict(dict)
        for rank, listed in self._lists.listed.items():
            orders.append(tuple(item.name for item in listed))
            for item in listed:
                gone[item.name].setdefault(stages.of(rank), item)
        wholes: dict[str, WholeParameter] = {}
        for name in merge_orders(dict.fromkeys(orders)):
            if name in named:
                wholes[name] = self._cut(name, gone[name])
            else:
                wholes[name] = self._uncut(name, gone[name])
        for stage, rank in sorted(self._lists.unknown.items()):
            for name, why in self._unlisted(stage, rank):
                wholes.setdefault(name, lost_parameter(name, why))
        return wholes

    def _unlisted(self, stage: int, rank: int) -> Iterator[tuple[str, str]]:
        """Yield the parameters that a rank's lost slice may have listed alone, by layouts, each with the reason."""
        dealt = self.supply.judgement.step in self.supply.judgement.structure.deduplicated
        if dealt and stage in self.index.by_stage and stage in self.index.stages.layouts:
            yield from ((gone.parameter, gone.reason) for gone in self.supply.unlisted(rank))
            return
        for name in sorted(self.index.stages.layouts.get(stage, ())):
            if not name.startswith(NOT_SHARDED):
                yield name, self._nothing_states(rank)

    def _nothing_states(self, rank: int) -> str:
        if rank in self.index.slices and self.index.slices[rank].file.encryption is not None:
            return f"the slice of rank {rank} is encrypted, and such slices are not cut anew"
        return f"nothing states what the lost slice of rank {rank} held"

    def lost_stages(self) -> list[MissingRegion]:
        """Return the stages of which neither a slice nor a strategy file is left, or not all lists and no layouts."""
        stages, world = self.index.stages, self.facts.world.ranks
        named = self.facts.inventory.part.expected.get(self.supply.judgement.step)
        gone = [
            MissingRegion(f"{EVERY_PARAMETER} {stage}", (), 0, self._nothing_states(rank))
            for stage, rank in self._lists.unknown.items()
            if stage not in stages.layouts and (stage in self.index.by_stage or not stages.devices)
        ]
        if not stages.devices:
            return gone
        for stage in range(world // stages.devices):
            if named is not None and not named.keys() & set(stages.ranks(stage)):
                continue  # no file of this part is of it
            if stage not in stages.layouts and stage not in self.index.by_stage:
                first, last = stages.ranks(stage)[0], stages.ranks(stage)[-1]
                ranks = f"ranks {first} to {last}"
                why = f"no sound slice of {ranks} is left, nor a strategy file that is known to be theirs"
                gone.append(MissingRegion(f"{EVERY_PARAMETER} {stage}", (), 0, why))
        return gone

    # parameters with a layout

    def _cut(self, name: str, stated: Mapping[int, Parameter]) -> WholeParameter:
        """Return a parameter that strategy files name; stages that name it and hold the same go together."""
        index = self.index
        owners = [stage for stage, layouts in sorted(index.stages.layouts.items()) if name in layouts]
        stages = [stage for stage in owners if any(index.find(kind[0], name) for kind in index.kinds.get(stage, ()))]
        if not stages:
            like = next(iter(stated.values()), None)
            if like is None:  # slices of other stages alone list it
                return self._uncut(name, stated)
            return self._lost(name, owners[0], like)
        wholes = [self._cut_in(stage, name) for stage in stages]
        first, *others = wholes
        for other in others:
            first = self._joined(first, other)
        return replace(first, stages=frozenset(stages))

    def _lost(self, name: str, stage: int, like: Parameter) -> WholeParameter:
        shape = self.index.full_shape(stage, like)
        item = like.item_size
        if shape is None:
            return lost_parameter(name, _NOBODY, like)
        box = tuple((0, size) for size in shape)
        gone = MissingRegion(name, box, prod(shape) * item, _NOBODY)
        return WholeParameter(
            name=name, dtype=like.dtype, shape=shape, item_size=item, regions=(), missing=(gone,), stages=frozenset()
        )

    def _cut_in(self, stage: int, name: str) -> WholeParameter:
        index = self.index
        like = next(given for kind in index.kinds[stage] if (given := index.find(kind[0], name)) is not None)
        item = like.item_size
        way, shape = index.way(stage, name), index.full_shape(stage, like)
        refusal = self._why_refused(stage)
        if way is None or shape is None or refusal is not None:
            why = refusal or f"its layout in {index.stages.paths[stage]} does not fit the slices"
            return lost_parameter(name, why, like)
        distrusted = self.settlement.distrusted(stage, name)
        if distrusted is not None and distrusted.problem is not None:
            self.disputes += [f"{name!r}: {distrusted.problem}"] if distrusted.disputed else []
            return lost_parameter(name, distrusted.problem, like)
        regions: list[HeldRegion] = []
        missing: list[MissingRegion] = []
        own = False
        for rank in self._parts_of(way, stage):
            settled = self.settlement.settle_region(rank, shape_at(way.layout, way.cell(rank), like))
            own = own or (settled.tolerated and len(self._digests(settled.ranks, name)) > 1)
            regions += self._held(settled)
            missing += settled.missing
            if settled.disputed:
                self.disputes.append(f"{name!r}: {settled.problem}")
        # Parameters that are cut and held alike share one tuple of regions, so that they are transferred together.
        shared = self._shared.setdefault((stage, way.number, *regions), tuple(regions))
        return WholeParameter(
            name=name,
            dtype=like.dtype,
            shape=shape,
            item_size=item,
            regions=shared,
            missing=tuple(missing),
            own=own,
        )

    def _parts_of(self, way: Way, stage: int) -> list[int]:
        """Return the first rank that holds each part of a way of cutting, in the order of the parts."""
        if way.number not in self._parts:
            first: dict[tuple[int, ...], int] = {}
            for rank, cell in zip(self.index.stages.ranks(stage), way.cells, strict=True):
                first.setdefault(cell.index, rank)
            self._parts[way.number] = [first[part] for part in sorted(first)]
        return self._parts[way.number]

    def _digests(self, ranks: Iterable[int], name: str) -> set[str | None]:
        """Return the contents of a parameter that are known of some ranks."""
        return {self.index.digest(rank, name) for rank in ranks} - {None}

    def _held(self, settled: Settled) -> Iterator[HeldRegion]:
        if settled.region is not None and settled.ranks:
            yield HeldRegion(settled.region, self._best(settled.ranks))
        for _, whole, ranks in settled.parts:
            yield HeldRegion(whole, self._best(ranks))

    def _best(self, ranks: Sequence[int]) -> tuple[int, ...]:
        """Return the best holders: sound slices first, then the lowest rank."""
        return tuple(sorted(ranks, key=lambda rank: (not self.index.is_sound(rank), rank))[:_MOST_HOLDERS])

    def _joined(self, whole: WholeParameter, other: WholeParameter) -> WholeParameter:
        """Join what two stages hold of one parameter; where they hold the same region, it must be equal."""
        if not whole.known or not other.known:
            return whole if whole.known else other
        if (whole.shape, whole.dtype) != (other.shape, other.dtype):
            why = f"pipeline stages list it as {whole.dtype} {list(whole.shape)} and {other.dtype} {list(other.shape)}"
            return replace(whole, regions=(), missing=(MissingRegion(whole.name, (), 0, why),))
        known = {region.box: region for region in whole.regions}
        for region in other.regions:
            mine = known.get(region.box)
            if mine is None:
                continue
            firsts = (mine.holders[0], region.holders[0])
            if len(self._digests(firsts, whole.name)) > 1:
                why = "pipeline stages hold different contents of it, and nothing settles which is right"
                self.disputes.append(f"{whole.name!r}: {why}")
                size = prod(whole.shape) * whole.item_size
                return lost_parameter(whole.name, why, Parameter(whole.name, whole.dtype, whole.shape, size))
        whole = replace(whole, overlaps=(*whole.overlaps, *_overlaps(whole, other)))
        if not whole.missing:  # what the other stage has is then only compared
            return whole
        more = tuple(region for region in other.regions if region.box not in known)
        boxes = [region.box for region in more]
        missing = tuple(
            replace(gone, region=box, bytes=volume(box) * whole.item_size)
            for gone in whole.missing
            for box in cover(gone.region, boxes)[1]
        )
        return replace(whole, regions=(*whole.regions, *more), missing=missing)

    # parameters without a layout

    def _uncut(self, name: str, stated: Mapping[int, Parameter]) -> WholeParameter:
        """Return a parameter that no strategy file names: the same on all ranks that list it, or each rank's own.

        `stated` are the stages that listed it in slices of which nothing sound is left.
        """
        index = self.index
        lists: dict[Parameter, list[int]] = defaultdict(list)
        stages = set(stated)
        refused: list[str] = []
        for stage, kinds in sorted(index.kinds.items()):
            for kind in kinds:
                listed = index.find(kind[0], name)
                if listed is not None:
                    lists[listed] += kind
                    stages.add(stage)
                    refused += [why] if (why := self._why_unknown(stage)) is not None else []
        if not lists:
            like = next(iter(stated.values()))
            return replace(lost_parameter(name, _NOBODY, like), cut=False, stages=frozenset(stages))
        like = next(iter(lists))
        ranks = sorted(rank for ranks_of in lists.values() for rank in ranks_of)
        own = index.may_differ(name, ranks)
        digests = self._digests(ranks, name)
        why = None
        # Without a layout it is whole only if nothing speaks for a cut: each reason that does refuses it.
        if len(lists) > 1:
            shapes = sorted({f"{parameter.dtype} {list(parameter.shape)}" for parameter in lists})
            why = f"no layout states how it is cut, and slices list it as {' and '.join(shapes)}"
        elif len(digests) > 1 and not own:
            why = "no layout states how it is cut, and it differs from rank to rank"
        elif not like.is_counter and refused:
            why = refused[0]
        elif not (own or like.is_counter) and self._may_be_cut(name, ranks):
            why = why_perhaps_cut(ranks)
        elif (against := self.settlement.contradicted(ranks[0], like, ranks)) is not None:
            why = against.problem
        if why is not None:
            return replace(lost_parameter(name, why, like), cut=False, stages=frozenset(stages))
        box = tuple((0, size) for size in like.shape)
        differs = own and len(digests) > 1
        return WholeParameter(
            name=name,
            dtype=like.dtype,
            shape=like.shape,
            item_size=like.item_size,
            regions=(HeldRegion(box, tuple(ranks) if differs else self._best(ranks)),),
            cut=False,
            stages=frozenset(stages),
            own=differs,
        )

    def _may_be_cut(self, name: str, ranks: Sequence[int]) -> bool:
        """Whether a parameter may be cut between the ranks that list it and others."""
        index = self.index
        stages = dict.fromkeys(map(index.stages.of, ranks))
        by_stage = ([rank for rank in ranks if index.stages.of(rank) == stage] for stage in stages)
        return self.facts.world.ranks > 1 and not any(index.is_shown_whole(name, same) for same in by_stage)

    def _why_unknown(self, stage: int) -> str | None:
        """Return why a stage's whole parameters cannot be known; None with layouts, or where all hold the same."""
        index = self.index
        if stage in index.stages.layouts:
            return self._why_refused(stage)
        ranks = index.stages.ranks(stage) if index.stages.devices else range(self.facts.world.ranks)
        if set(ranks) <= set(self.facts.groups.of(ranks[0])):
            return None
        return index.stages.why_unknown(ranks[0])

    def _why_refused(self, stage: int) -> str | None:
        """Return why the strategy file of a stage cannot be that of its slices."""
        if stage not in self._refusals:
            index = self.index
            path = index.stages.paths[stage]
            refuted = index.judgement.refuted.get(path)
            if refuted is not None:
                self.disputes.append(refuted)
            if refuted is None and self.supply.names_too_few(stage):
                refuted = f"{path} names too few of the parameters of its slices to be of the same network"
            self._refusals[stage] = refuted
        return self._refusals[stage]


def _overlaps(whole: WholeParameter, other: WholeParameter) -> Iterator[Overlap]:
    """Yield the pairs of regions that are not the same and share something."""
    grid = Grid([region.box for region in other.regions])
    for mine in whole.regions:
        for number in grid.near(mine.box):
            region = other.regions[number]
            if mine.box != region.box and intersect(mine.box, region.box):
                yield Overlap(whole.name, whole.dtype, whole.item_size, mine, region)


def lost_parameter(name: str, why: str, like: Parameter | None = None) -> WholeParameter:
    """Return a parameter of which nothing can be had; a slice listed it as `like`, if anything is known of it."""
    box: Box = tuple((0, size) for size in like.shape) if like is not None else ()
    gone = MissingRegion(name, box, like.nbytes if like is not None else 0, why)
    return WholeParameter(
        name=name,
        dtype=like.dtype if like is not None else "",
        shape=like.shape if like is not None else (),
        item_size=like.item_size if like is not None else 1,
        regions=(),
        missing=(gone,),
        known=False,
    )
