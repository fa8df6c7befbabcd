"""Which ranks hold the same of which parameters, over a whole history.

By the layouts of strategy files, in which norms and biases are mostly not cut, so that tensor-parallel ranks vote on
them; by rank lists; and, for parameters without a layout, by the values themselves: ranks that had equal digests at two
neighbouring steps, with a change in between, hold the same.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ms_recover.model.grouped import grouped
from ms_recover.planning.claims.blocks import Block, find_blocks
from ms_recover.planning.history.witnesses import Moment, Witness
from ms_recover.planning.tree.facts import Facts

_WINDOW = 4
"""So many steps at the beginning of a history, and at its end, show which ranks have equal values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """Parameters, the ranks that hold the same of them, ascending, and what states it."""

    ranks: tuple[int, ...]
    names: tuple[str, ...]
    source: str


def find_shared(facts: Facts, moments: Sequence[Moment]) -> tuple[tuple[Shared, ...], tuple[str, ...]]:
    """Return what ranks with values of their own share, and notes about strategy files that are not used."""
    lists: dict[int, set[str]] = defaultdict(set)
    strategies: dict[int, set[str | None]] = defaultdict(set)
    for moment in moments:
        for rank, witness in moment.own.items():
            strategies[rank].add(witness.manifest.strategy_digest)
            if not lists[rank].issuperset(witness.listed.index):
                lists[rank].update(witness.listed.index)
    # What layouts name they settle, unless the values contradict the file; rank lists have the rest.
    by_file = find_blocks(lists, facts.stages, facts.groups)
    of_lists = by_file.pop("", [])
    shared: list[Shared] = []
    notes: list[str] = []
    named: dict[int, set[str]] = defaultdict(set)
    for path, blocks in by_file.items():
        why = _why_wrong(facts, blocks, moments, strategies)
        if why is not None:
            notes.append(f"{path} is not used: {why}")
            continue
        for block in blocks:
            names = block.names or frozenset()
            for rank in block.ranks:
                named[rank] |= names & lists[rank]
            shared += _by_names(block.ranks, names, lists, block.source)
    # Ranks of several lists may hold the same of what no layout names: their values then changed alike.
    groups = {rank: block.ranks for block in of_lists for rank in block.ranks}
    equal = _equal_values(moments, lists, named, groups)
    for block in of_lists:
        names = frozenset().union(*(lists[rank] for rank in block.ranks))
        done = frozenset(set.intersection(*(named[rank] for rank in block.ranks)))
        wider = {name for name in names - done for ranks in equal.get(name, ()) if set(ranks).issuperset(block.ranks)}
        shared += _by_names(block.ranks, names - done - wider, lists, block.source or "manifests")
    by_ranks: dict[tuple[int, ...], list[str]] = defaultdict(list)
    for name, classes in equal.items():
        for ranks in classes:
            by_ranks[ranks].append(name)
    shared += [
        Shared(ranks=ranks, names=tuple(sorted(names)), source="equal values before")
        for ranks, names in by_ranks.items()
    ]
    return tuple(block for block in shared if len(block.ranks) > 1 and block.names), tuple(notes)


def _by_names(ranks: Sequence[int], names: frozenset[str], lists: Mapping[int, set[str]], source: str) -> list[Shared]:
    """Return what ranks share of some parameters: mostly one, more where not all list the same."""
    if all(lists[rank].issuperset(names) for rank in ranks):
        return [Shared(ranks=tuple(ranks), names=tuple(sorted(names)), source=source)]
    by_ranks = grouped(sorted(names), lambda name: tuple(rank for rank in ranks if name in lists[rank]))
    return [Shared(ranks=ranks, names=tuple(listed), source=source) for ranks, listed in by_ranks.items()]


def _why_wrong(
    facts: Facts, blocks: Sequence[Block], moments: Sequence[Moment], named: Mapping[int, set[str | None]]
) -> str | None:
    """Return why a strategy file is not that of these slices; None when manifests name it or most values fit it.

    `named` has for each rank the digests of strategy files that its manifests name.

    Only what ranks of different groups should share shows it.
    """
    for block in blocks:
        stage = facts.stages.of(block.ranks[0])
        digests = facts.stages.digests.get(stage, frozenset())
        if any(not digests.isdisjoint(named[rank]) for rank in block.ranks):
            return None
    for moment in moments:
        compared = differ = 0
        for block in blocks:
            witnesses = [moment.own[rank] for rank in block.ranks if rank in moment.own]
            if len({facts.groups.of(witness.rank) for witness in witnesses}) < 2:
                continue
            for name in block.names or ():
                values = [
                    witness.digests[witness.listed.index[name]] for witness in witnesses if name in witness.listed.index
                ]
                compared += len(values) > 1
                differ += len(set(values)) > 1
        if compared:
            if 2 * differ <= compared:
                return None
            return (
                f"at step {moment.step} {differ} of {compared} parameters differ among ranks that share them by it; it "
                "is of another run or layout"
            )
    return None


def _equal_values(
    moments: Sequence[Moment],
    lists: Mapping[int, set[str]],
    named: Mapping[int, set[str]],
    groups: Mapping[int, Sequence[int]],
) -> dict[str, list[tuple[int, ...]]]:
    """Return, for parameters without a layout, the ranks of several groups whose values change alike."""
    linked: dict[str, dict[int, int]] = defaultdict(dict)

    def root(name: str, rank: int) -> int:
        parents = linked[name]
        while parents.get(rank, rank) != rank:
            rank = parents[rank]
        return rank

    told = [moment for moment in moments if len(moment.own) > 1]
    windows = [told] if len(told) <= 2 * _WINDOW else [told[:_WINDOW], told[-_WINDOW:]]
    pairs = [pair for window in windows for pair in pairwise(window)]
    for before, after in pairs:
        same: dict[tuple[str, str, str], int] = {}
        seen: set[str] = set()
        for rank, witness in after.own.items():
            earlier = before.own.get(rank)
            if earlier is None or witness.file in seen:
                continue
            if len(groups[rank]) > 1:
                seen.add(witness.file)  # those of its group follow it
            for name, first, second in _changed(earlier, witness):
                if name in named[rank]:
                    continue
                other = same.setdefault((name, first, second), rank)
                if other != rank:
                    linked[name][root(name, rank)] = root(name, other)
    classes_of: dict[str, list[tuple[int, ...]]] = {}
    for name, parents in linked.items():
        classes: dict[int, set[int]] = defaultdict(set)
        for rank in {*parents, *parents.values()}:
            classes[root(name, rank)].update(peer for peer in groups[rank] if name in lists[peer])
        classes_of[name] = _joined(classes.values())
    return classes_of


def _joined(classes: Iterable[set[int]]) -> list[tuple[int, ...]]:
    """Return sets of ranks, those that share a rank as one."""
    joined: list[set[int]] = []
    for ranks in classes:
        apart = [one for one in joined if not one & ranks]
        joined = [*apart, ranks.union(*(one for one in joined if one & ranks))]
    return [tuple(sorted(ranks)) for ranks in joined]


def _changed(before: Witness, after: Witness) -> Iterable[tuple[str, str, str]]:
    """Yield the parameters that changed between two steps, with both digests."""
    if before.listed is after.listed:
        for parameter, first, second in zip(after.listed, before.digests, after.digests, strict=True):
            if first != second:
                yield parameter.name, first, second
        return
    index = before.listed.index
    for parameter, second in zip(after.listed, after.digests, strict=True):
        place = index.get(parameter.name)
        if place is not None and before.digests[place] != second:
            yield parameter.name, before.digests[place], second
