"""The tensor-parallel groups of a job, which stay on one host."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from ms_recover.model.strategy import Layout
from ms_recover.planning.facts import Facts
from ms_recover.planning.redundancy.axes import tensor_groups


def find_tensor_groups(facts: Facts) -> tuple[frozenset[int], ...]:
    """Return the groups of ranks that hold the parts of one copy of most weights; empty where nothing says it.

    By the operator's axes; else by the layouts of each stage: of the ways in which parameters are cut, optimizer shards
    aside, that of most of them.
    """
    options, stages = facts.options, facts.stages
    if options.axes is not None:
        return tuple(map(frozenset, tensor_groups(options.axes, options.order, facts.world.ranks)))
    found: list[frozenset[int]] = []
    for stage, cuts in stages.cuts.items():
        cut = [one for one in cuts if max(one.layout.counts, default=1) > 1]
        if cut:
            layout = max(cut, key=lambda one: (len(one.names), sorted(one.names))).layout
            found += _groups(layout, stages.ranks(stage))
    return tuple(found)


def _groups(layout: Layout, ranks: range) -> Iterator[frozenset[int]]:
    """Return groups of ranks that differ in the axes only that a parameter is cut over."""
    used = {axis for axes in layout.tensor_map for axis in axes}
    groups: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for rank in ranks:
        place, key = rank - ranks.start, []
        for axis, size in enumerate(reversed(layout.device_matrix)):
            if axis not in used:
                key.append(place % size)
            place //= size
        groups[tuple(key)].append(rank)
    return map(frozenset, groups.values())
