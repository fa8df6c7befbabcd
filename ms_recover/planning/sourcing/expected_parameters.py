"""The parameter list that a lost slice must have had."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import combinations

from ms_recover.model.inventory import OrphanManifest, SliceFile
from ms_recover.model.slices import Parameter
from ms_recover.planning.judging.structure import is_misread
from ms_recover.planning.redundancy.layouts import shape_at
from ms_recover.planning.sourcing.parameters import ParameterIndex

_MAP = "MapTensor"
_MOST_LISTS = 64


class NotComposableError(Exception):
    """A slice cannot be composed from others; the text says why.

    It is `disputed` where slices contradict the layouts by which it would be composed.
    """

    def __init__(self, why: str, *, disputed: bool = False) -> None:
        super().__init__(why)
        self.disputed = disputed


def expected_parameters(index: ParameterIndex, rank: int, *, complete: bool = False) -> tuple[Parameter, ...]:
    """Return the parameters of a rank's slice, by its stage, its manifest and its own other slices.

    Where documents that agree with the slices state the list, it is that.
    All ranks of a stage run the same network, so they list the same parameters in the same order, unless
    ``remove_redundancy=True`` dealt them out; a `complete` slice has every parameter of the stage all the same.

    Raises
    ------
    NotComposableError
        When nothing states it.
    """
    stage, step = index.stages.of(rank), index.judgement.step
    documented = index.facts.expected(step, rank)
    if documented is not None and not complete:
        return _composable(documented)
    everything = [index.facts.expected(step, other) for other in index.stages.ranks(stage)] if complete else []
    if any(everything):
        listed = dict.fromkeys(one for one in everything if one is not None)
        known = {parameter.name: parameter for one in listed for parameter in one}
        order = merge_orders([tuple(parameter.name for parameter in one) for one in listed])
        return _composable(_here(index, rank, known[name]) for name in order)
    lists = [index.slices[kind[0]].file for kind in index.kinds.get(stage, ())]
    lists = [file for file in lists if file.encryption is None]
    if not lists:
        if stage in index.by_stage:
            raise NotComposableError("encrypted slices are copied whole or not at all")
        stated = stated_parameters(index, rank)
        if stated is None:
            raise NotComposableError("no rank of its stage has a sound slice, so its parameters are unknown")
        return _composable(stated)
    orders = {tuple(parameter.name for parameter in file.parameters): file for file in lists}
    if len({frozenset(order) for order in orders}) == 1 and (complete or not _is_dealt(index)):
        return _composable(_here(index, rank, parameter) for parameter in lists[0].parameters)
    for one, other in combinations(list(orders.values())[:_MOST_LISTS], 2) if not complete else ():
        if is_misread(one.parameters, other.parameters):
            raise NotComposableError(
                f"{one.path} and {other.path} list the same but for one name, which may be damaged"
            )
    known = {parameter.name: parameter for file in lists for parameter in file.parameters}
    order = merge_orders(orders)
    if complete:
        return _composable(_here(index, rank, known[name]) for name in order)
    stated = stated_parameters(index, rank)
    if stated is not None:
        known = {**{parameter.name: parameter for parameter in stated}, **known}
        order = [parameter.name for parameter in stated]
    else:
        order = _dealt(index, rank, order)
    return _composable(_here(index, rank, known[name]) for name in order)


def _is_dealt(index: ParameterIndex) -> bool:
    return index.judgement.step in index.judgement.structure.deduplicated


def _composable(parameters: Iterable[Parameter]) -> tuple[Parameter, ...]:
    listed = tuple(parameters)
    for parameter in listed:
        if parameter.dtype.startswith(_MAP):
            raise NotComposableError(f"{parameter.name!r} is a map parameter: such slices are copied whole")
    return listed


def _here(index: ParameterIndex, rank: int, parameter: Parameter) -> Parameter:
    way = index.way(index.stages.of(rank), parameter.name)
    return parameter if way is None else shape_at(way.layout, way.cell(rank), parameter)


def stated_parameters(index: ParameterIndex, rank: int) -> tuple[Parameter, ...] | None:
    """Return the list in the manifest of the rank's slice, gone or not, or in its own slice of the nearest step."""
    facts, step = index.facts, index.judgement.step
    if rank in facts.lost:
        return None
    runs = {one.manifest.run_id for one in index.slices.values() if one.manifest is not None}
    described: list[SliceFile | OrphanManifest] = [one.file for one in facts.at(step, rank)]
    for held in (*described, *facts.orphans.get((rank, step), ())):
        manifest = held.manifest
        if manifest is None or index.judgement.run.why_foreign(held) is not None:
            continue
        if (manifest.rank, manifest.step) == (rank, step) and (not runs or manifest.run_id in runs):
            return manifest.parameters
    prefixes = {one.file.prefix for one in index.slices.values()}
    others = [
        one.file
        for other in facts.steps
        for one in facts.at(other, rank)
        if other != step and one.file.problem is None and one.file.encryption is None and one.file.prefix in prefixes
        if one.manifest is None or not runs or one.manifest.run_id in runs
    ]
    nearest = max(others, key=lambda file: (file.step < step, file.step), default=None)
    return nearest.parameters if nearest is not None else None


def _dealt(index: ParameterIndex, rank: int, order: Sequence[str]) -> list[str]:
    """Return the parameters that ``remove_redundancy=True`` left to a rank, where nothing of its own states them.

    Those that every other holder of the same part has (nothing is dealt out where there is one holder only), and those
    that none of them has. One without a layout is not dealt out: it is the rank's when at least half of the stage has
    it, because a slice that lacks it is damaged.
    """
    stage = index.stages.of(rank)
    mine = []
    for name in order:
        way = index.way(stage, name)
        there = index.by_stage[stage] if way is None else way.holders.get(way.cell(rank).index, [])
        others = [other for other in there if other != rank]
        having = sum(index.find(other, name) is not None for other in others)
        if having in (0, len(others)) or (way is None and 2 * having >= len(others)):
            mine.append(name)
    return mine


def merge_orders(orders: Iterable[Sequence[str]]) -> list[str]:
    """Merge lists without doubles that are parts of one order into that order, as far as they state it.

    Where they leave it open, the list that comes first goes first.
    """
    lists = [list(order) for order in orders]
    merged: list[str] = []
    done: set[str] = set()
    behind: Counter[str] = Counter(name for order in lists for name in order[1:])
    heads = [0] * len(lists)
    while True:
        open_lists = [index for index, order in enumerate(lists) if heads[index] < len(order)]
        if not open_lists:
            return merged
        chosen = next((index for index in open_lists if not behind[lists[index][heads[index]]]), open_lists[0])
        name = lists[chosen][heads[chosen]]
        if name not in done:
            merged.append(name)
            done.add(name)
        for index in open_lists:
            order = lists[index]
            while heads[index] < len(order) and order[heads[index]] in done:
                heads[index] += 1
                if heads[index] < len(order):
                    behind[order[heads[index]]] -= 1
