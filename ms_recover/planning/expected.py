"""What a slice that is gone must have listed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import combinations

from ms_recover.model.slices import Parameter
from ms_recover.model.steps import Step
from ms_recover.planning.parts import Parts
from ms_recover.planning.redundancy.layouts import cell_of, shape_at
from ms_recover.planning.redundancy.structure import is_misread

_MAP = "MapTensor"
_MOST_LISTS = 64


class NotComposableError(Exception):
    """A slice cannot be put together from others; the text says why."""


def expected_parameters(parts: Parts, rank: int, step: Step, *, complete: bool = False) -> tuple[Parameter, ...]:
    """Return what the slice of a rank lists, by its peers, its manifest and its own other slices.

    All ranks of a stage run the same network, so they list the same parameters in the same order, unless
    ``remove_redundancy=True`` dealt them out.

    Parameters
    ----------
    parts : Parts
        The slices that are there.
    rank : int
        Whose slice.
    step : Step
        Of which step.
    complete : bool
        List every parameter of the stage, as a slice that was saved without ``remove_redundancy`` does.

    Raises
    ------
    NotComposableError
        When nothing tells.
    """
    stage = parts.stages.of(rank)
    lists = [parts.files[kind[0]] for kind in parts.kinds.get(stage, ())]
    lists = [file for file in lists if file.encryption is None]
    if not lists:
        if stage in parts.by_stage:
            raise NotComposableError("encrypted slices are copied whole or not at all")
        told = _told(parts, rank, step)
        if told is None:
            raise NotComposableError("no rank of its stage has a sound slice, so nothing tells what its own listed")
        return _composable(told)
    orders = {tuple(parameter.name for parameter in file.parameters): file for file in lists}
    if len({frozenset(order) for order in orders}) == 1:
        return _composable(_here(parts, rank, parameter) for parameter in lists[0].parameters)
    for one, other in combinations(list(orders.values())[:_MOST_LISTS], 2) if not complete else ():
        if is_misread(one.parameters, other.parameters):
            raise NotComposableError(
                f"{one.path} and {other.path} list the same but for one name, which may be damaged"
            )
    known = {parameter.name: parameter for file in lists for parameter in file.parameters}
    order = merge_orders(orders)
    wanted = order if complete else _dealt(parts, rank, step, order, known)
    return _composable(_here(parts, rank, known[name]) for name in wanted)


def _composable(parameters: Iterable[Parameter]) -> tuple[Parameter, ...]:
    listed = tuple(parameters)
    for parameter in listed:
        if parameter.dtype.startswith(_MAP):
            raise NotComposableError(f"{parameter.name!r} is a map parameter: such slices are copied whole")
    return listed


def _here(parts: Parts, rank: int, parameter: Parameter) -> Parameter:
    layout = parts.layout(parts.stages.of(rank), parameter.name)
    return parameter if layout is None else shape_at(layout, cell_of(layout, rank), parameter)


def _told(parts: Parts, rank: int, step: Step) -> tuple[Parameter, ...] | None:
    """Return what the rank's slice listed by its manifest, or what its own slice of the nearest other step lists."""
    if rank in parts.situation.lost:
        return None
    runs = {file.manifest.run_id for file in parts.files.values() if file.manifest is not None}
    for file in parts.situation.files.get(step, {}).get(rank, ()):
        told = file.manifest
        if told is not None and (told.rank, told.step) == (rank, step) and (not runs or told.run_id in runs):
            return told.parameters
    prefixes = {file.prefix for file in parts.files.values()}
    others = [
        file
        for other, ranks in parts.situation.files.items()
        for file in ranks.get(rank, ())
        if other != step and file.problem is None and file.encryption is None and file.prefix in prefixes
        if file.manifest is None or not runs or file.manifest.run_id in runs
    ]
    nearest = max(others, key=lambda file: (file.step < step, file.step), default=None)
    return nearest.parameters if nearest is not None else None


def _dealt(parts: Parts, rank: int, step: Step, order: Sequence[str], known: dict[str, Parameter]) -> list[str]:
    """Return which parameters ``remove_redundancy=True`` left to a rank.

    Its manifest or its own other slices tell. Without one: what every other holder of the same part has (nothing is
    dealt out where there is one holder only, or no layout), and what none of them has.
    """
    told = _told(parts, rank, step)
    if told is not None:
        for parameter in told:
            known.setdefault(parameter.name, parameter)
        return [parameter.name for parameter in told]
    stage = parts.stages.of(rank)
    mine = []
    for name in order:
        layout = parts.layout(stage, name)
        there = parts.by_stage[stage] if layout is None else parts.in_cell(stage, layout, cell_of(layout, rank))
        having = sum(other != rank and parts.find(other, name) is not None for other in there)
        if having in (0, sum(other != rank for other in there)):
            mine.append(name)
    return mine


def merge_orders(orders: Iterable[Sequence[str]]) -> list[str]:
    """Merge lists that are parts of one order into that order, as far as they tell.

    Where they leave it open, the list that comes first goes first.

    Parameters
    ----------
    orders : iterable of sequence of str
        Each without a name twice.
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
