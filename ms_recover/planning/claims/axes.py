"""The ranks that hold the same slice, by the parallel axes of a job."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from itertools import accumulate
from math import prod
from operator import mul

from ms_recover.errors import UsageError
from ms_recover.model.axes import Axes
from ms_recover.model.texts import list_some

_Place = dict[str, int]


def count_ranks(axes: Axes) -> tuple[int, ...]:
    """Return the numbers of ranks that axes may mean, the usual one first.

    Expert parallel ranks are taken from the data-parallel ones in MindFormers' and Megatron's settings, so that ep does
    not multiply the ranks; it is an axis of its own in Megatron's ``RankGenerator``.
    """
    within = prod(axes.size(axis) for axis in ("tp", "cp", "dp", "pp"))
    return (within,) if axes.size("ep") == 1 else (within, within * axes.size("ep"))


def product_text(axes: Axes) -> str:
    """Return the multiplication that gives the number of ranks, as ``dp 2 x mp 4 = 8``."""
    counts = " or ".join(map(str, count_ranks(axes)))
    return f"{' x '.join(f'{name} {size}' for name, size in axes.sizes)} = {counts}"


def same_by_axes(axes: Axes, order: Sequence[str], shards: int, world_size: int) -> tuple[tuple[int, ...], ...]:
    """Return the groups of ranks that hold the same whole slice for certain; every rank is in one.

    These differ in their data-parallel place only, and in their context-parallel one. Of expert-parallel ranks only
    those with the same experts are grouped, and of those only with one context-parallel place, because Megatron's
    folding deals experts out over both. Optimizer shards leave those whose place among their replicas is the same
    modulo the number of shards, for every kind of parameter: cut over tensor-parallel ranks, over experts, or not at
    all (see `ms_recover.planning.claims.layouts`). A number that does not divide the replicas leaves none for
    certain: MindSpore shards such parameters otherwise or not at all, by version.

    Parameters
    ----------
    axes : Axes
        Sizes of the axes; their product is the world size.
    order : sequence of str
        Axes, that of neighbouring ranks first; axes of size 1 may be left out.
    shards : int
        Optimizer shards: 0 or 1 for none, -1 for as many as there are replicas.
    world_size : int
        Number of ranks.

    Raises
    ------
    UsageError
        When the order lacks an axis, or the data-parallel ranks cannot be divided among the experts.
    """
    places = _places(axes, order, world_size)
    experts = axes.size("ep") > 1
    apart = ("tp", "pp", "ep", "cp") if experts else ("tp", "pp")
    if shards in (0, 1):
        return _alike(_cells(places, apart))
    if experts and axes.size("cp") > 1:
        return _alike(range(world_size))
    of_kinds = (_shard_places(places, kind, shards) for kind in (("tp", "pp"), apart, ("pp",)))
    return _alike(zip(_cells(places, apart), *of_kinds, strict=True))


def kinds_by_axes(
    axes: Axes, order: Sequence[str], shards: int, world_size: int
) -> dict[str, tuple[tuple[int, ...], ...]]:
    """Return for each kind of parameter the groups of ranks that hold the same part of it.

    The weights, the experts where there are several, and with optimizer shards the optimizer's states of each kind:
    those of weights that are cut over tensor-parallel ranks, of experts, and of weights that are not cut. Arguments and
    errors are those of `same_by_axes`.
    """
    places = _places(axes, order, world_size)
    experts = axes.size("ep") > 1
    apart = ("tp", "pp", "ep", "cp") if experts else ("tp", "pp")
    cut = {"weights": ("tp", "pp"), "experts": apart, "weights that are not cut": ("pp",)}
    if not experts:
        del cut["experts"]
    if axes.size("tp") == 1:
        del cut["weights that are not cut"]
    groups = {}
    for name, kind in cut.items():
        cells = _cells(places, kind)
        groups[name] = _alike(cells)
        if shards not in (0, 1):
            sharded = zip(cells, _shard_places(places, kind, shards), strict=True)
            groups[f"optimizer states of {name}"] = _alike(sharded)
    return groups


def tensor_groups(axes: Axes, order: Sequence[str], world_size: int) -> tuple[tuple[int, ...], ...]:
    """Return the groups of ranks that differ in their tensor-parallel place only; arguments as for `same_by_axes`."""
    places = _places(axes, order, world_size)
    return _alike(tuple((place | {"tp": 0}).values()) for place in places)


def _places(axes: Axes, order: Sequence[str], world_size: int) -> list[_Place]:
    """Return the place of each rank on each axis."""
    sizes = {axis: axes.size(axis) for axis in ("tp", "cp", "ep", "dp", "pp")}
    if world_size == count_ranks(axes)[0]:
        if sizes["dp"] % sizes["ep"]:
            raise UsageError(
                f"expert parallel {sizes['ep']} does not divide data parallel {sizes['dp']}: the data-parallel ranks "
                "are divided among the experts"
            )
        sizes["dp"] //= sizes["ep"]
    missing = [axis for axis, size in sizes.items() if size > 1 and axis not in order]
    if missing:
        raise UsageError(f"the order {','.join(order)} lacks {list_some(missing)}, which --axes names")
    strides = accumulate((sizes[axis] for axis in order), mul, initial=1)
    steps = list(zip(order, strides, strict=False))
    whole = dict.fromkeys(sizes, 0)
    return [whole | {axis: rank // stride % sizes[axis] for axis, stride in steps} for rank in range(world_size)]


def _shard_places(places: Sequence[_Place], kind: Sequence[str], shards: int) -> list[Hashable]:
    """Return for each rank which optimizer shard it holds of parameters that are cut over the axes of `kind`."""
    shard_of: list[Hashable] = [None] * len(places)
    for ranks in _alike(_cells(places, kind)):
        fits = shards > 0 and len(ranks) % shards == 0
        for position, rank in enumerate(ranks):
            shard_of[rank] = position % shards if fits else rank
    return shard_of


def _cells(places: Sequence[_Place], kind: Sequence[str]) -> list[tuple[int, ...]]:
    """Return the places on some axes alone."""
    return [tuple(place[axis] for axis in kind) for place in places]


def _alike(keys: Iterable[Hashable]) -> tuple[tuple[int, ...], ...]:
    groups: dict[Hashable, list[int]] = defaultdict(list)
    for rank, key in enumerate(keys):
        groups[key].append(rank)
    return tuple(map(tuple, groups.values()))
