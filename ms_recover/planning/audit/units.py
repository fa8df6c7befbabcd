"""Ranks that move together from host to host, and a search for hosts that keep holders apart."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from itertools import islice

from ms_recover.model.topology import Topology

_MOST_TRIALS = 60_000
"""Exchanges that a search looks at; it takes seconds then."""


def make_units(topology: Topology, size: int, keep: Collection[frozenset[int]]) -> list[tuple[int, ...]]:
    """Return the ranks that move together: `size` neighbours on one host, joined by the groups that one host holds."""
    parts: dict[tuple[str, int], list[int]] = defaultdict(list)
    for rank, host in enumerate(topology.hosts):
        parts[host, rank // size].append(rank)
    leader = list(range(topology.world_size))

    def find(rank: int) -> int:
        while leader[rank] != rank:
            leader[rank] = leader[leader[rank]]
            rank = leader[rank]
        return rank

    for ranks in [*parts.values(), *(group for group in keep if len({topology.hosts[rank] for rank in group}) == 1)]:
        first, *others = sorted(ranks)
        for rank in others:
            leader[find(rank)] = find(first)
    units: dict[int, list[int]] = defaultdict(list)
    for rank in range(topology.world_size):
        units[find(rank)].append(rank)
    return [tuple(unit) for unit in units.values()]


class Arrangement:
    """Units on hosts, and the sets of holders that lie in one domain.

    Parameters
    ----------
    units : sequence of tuple of int
        The ranks of each unit.
    hosts : sequence of int
        The host of each unit, by number.
    domains : sequence of sequence of int
        For each level that counts the domain of each host.
    sets : sequence of tuple of int
        Units that hold the same, of each set of holders.
    """

    def __init__(
        self,
        units: Sequence[tuple[int, ...]],
        hosts: Sequence[int],
        domains: Sequence[Sequence[int]],
        sets: Sequence[tuple[int, ...]],
    ) -> None:
        self.units, self.hosts, self.domains, self.sets = units, list(hosts), domains, sets
        self.sets_of: list[list[int]] = [[] for _ in units]
        for number, members in enumerate(sets):
            for unit in members:
                self.sets_of[unit].append(number)
        self._counts: list[list[Counter[int]]] = []
        self.fatal: dict[int, int] = {}
        self._count()

    def _count(self) -> None:
        self._counts = [
            [Counter(level[self.hosts[unit]] for unit in members) for level in self.domains] for members in self.sets
        ]
        self.fatal = {}
        for number in range(len(self.sets)):
            self._note(number)

    def _note(self, number: int) -> None:
        together = sum(len(count) == 1 for count in self._counts[number])
        if together:
            self.fatal[number] = together
        else:
            self.fatal.pop(number, None)

    def _move(self, unit: int, host: int) -> None:
        before, self.hosts[unit] = self.hosts[unit], host
        for number in self.sets_of[unit]:
            for count, level in zip(self._counts[number], self.domains, strict=True):
                count[level[before]] -= 1
                if not count[level[before]]:
                    del count[level[before]]
                count[level[host]] += 1
            self._note(number)

    def _exchange(self, unit: int, other: int) -> int:
        """Exchange the places of two units; returns by how much fewer sets lie together."""
        touched = {*self.sets_of[unit], *self.sets_of[other]}
        before = sum(self.fatal.get(number, 0) for number in touched)
        host, host_of_other = self.hosts[unit], self.hosts[other]
        self._move(unit, host_of_other)
        self._move(other, host)
        return before - sum(self.fatal.get(number, 0) for number in touched)

    def improve(self) -> bool:
        """Exchange units of one size, as long as fewer sets lie in one domain; returns whether none does any more."""
        alike: dict[int, list[int]] = defaultdict(list)
        for unit, ranks in enumerate(self.units):
            alike[len(ranks)].append(unit)
        trials, stuck = 0, set[int]()
        while trials < _MOST_TRIALS:
            number = next((number for number in self.fatal if number not in stuck), None)
            if number is None:
                break
            for unit, other in islice(self._partners(number, alike), _MOST_TRIALS - trials):
                trials += 1
                if self._exchange(unit, other) > 0:
                    stuck.clear()
                    break
                self._exchange(unit, other)
            else:
                stuck.add(number)
        return not self.fatal

    def _partners(self, number: int, alike: dict[int, list[int]]) -> Iterator[tuple[int, int]]:
        """Pairs of units that might be exchanged for a set: first with units of other sets that lie together."""
        level = next(
            level
            for level, count in zip(reversed(self.domains), reversed(self._counts[number]), strict=True)
            if len(count) == 1
        )
        here = level[self.hosts[self.sets[number][0]]]
        for wanted in (True, False):
            for unit in reversed(self.sets[number]):
                for other in _outwards(alike[len(self.units[unit])], unit):
                    in_trouble = any(number in self.fatal for number in self.sets_of[other])
                    if level[self.hosts[other]] != here and in_trouble is wanted:
                        yield unit, other

    def deal(self) -> None:
        """Deal units to places host by host in turn, those that hold the same one after another."""
        first = [min(numbers, default=len(self.sets)) for numbers in self.sets_of]
        by_size: dict[int, list[int]] = defaultdict(list)
        for unit in sorted(range(len(self.units)), key=lambda unit: (first[unit], unit)):
            by_size[len(self.units[unit])].append(unit)
        order = self._spread_hosts()
        for units in by_size.values():
            free = Counter(self.hosts[unit] for unit in units)
            turns = [host for turn in range(max(free.values())) for host in order if free[host] > turn]
            for unit, host in zip(units, turns, strict=True):
                self.hosts[unit] = host
        self._count()

    def _spread_hosts(self) -> list[int]:
        """Return hosts so that neighbours are in different domains of the coarsest level."""
        groups: dict[int, list[int]] = defaultdict(list)
        for host in sorted(set(self.hosts)):
            groups[self.domains[-1][host]].append(host)
        turns = max(map(len, groups.values()))
        return [group[turn] for turn in range(turns) for group in groups.values() if len(group) > turn]


def _outwards(units: list[int], one: int) -> Iterator[int]:
    """Return the other units of an ascending list, the nearest first."""
    at = bisect_left(units, one)
    for distance in range(1, len(units)):
        for other in (at + distance, at - distance):
            if 0 <= other < len(units):
                yield units[other]


def exists(
    units: Sequence[tuple[int, ...]],
    places: Sequence[int],
    levels: Sequence[Sequence[int]],
    sets: Sequence[tuple[int, ...]],
) -> list[int] | bool | None:
    """Return hosts for few units by trying all, None when there are none, and False when that takes too long.

    `places` has the number of ranks that each host takes; other parameters are those of `Arrangement`.
    """
    free, hosts, tries = list(places), [-1] * len(units), 0
    # The largest units first: of them the fewest ways to place them are left when others have theirs.
    order = sorted(range(len(units)), key=lambda unit: (-len(units[unit]), unit))
    last = {unit: at for at, unit in enumerate(order)}
    ends: dict[int, list[tuple[int, ...]]] = defaultdict(list)
    for members in sets:
        ends[max(last[unit] for unit in members)].append(members)

    def try_from(at: int) -> bool:
        nonlocal tries
        if at == len(order):
            return True
        unit = order[at]
        # Of hosts that are empty yet, take as many ranks and lie alike, the first one stands for all.
        seen = set[tuple[int, ...]]()
        for host in range(len(free)):
            key = (free[host], *(level[host] for level in levels[1:])) if free[host] == places[host] else (-1, host)
            if free[host] < len(units[unit]) or key in seen:
                continue
            seen.add(key)
            tries += 1
            if tries > _MOST_TRIALS:
                return False
            hosts[unit], free[host] = host, free[host] - len(units[unit])
            apart = all(
                len({level[hosts[member]] for member in members}) > 1 for members in ends[at] for level in levels
            )
            if apart and try_from(at + 1):
                return True
            free[host] += len(units[unit])
        return False

    if try_from(0):
        return hosts
    return False if tries > _MOST_TRIALS else None
