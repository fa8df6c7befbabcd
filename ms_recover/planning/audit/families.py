"""Families of fatal sets: their smallest members, what several have in common, and how many losses they make fatal.

A family is a set of sets of places, such as hosts; a loss is fatal when it contains one of them. Counting is exact:
parts of a family that share no place are counted apart and multiplied, and within a part it branches over one place
after the other, equal parts once.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from math import comb

Places = frozenset[int]
Family = tuple[Places, ...]

NEVER: Family = ()
"""Nothing is fatal."""
ALWAYS: Family = (frozenset(),)
"""Even losing nothing is."""

_MOST_SETS = 20_000
_MOST_WORK = 30_000
"""Sets that are looked at while counting: some seconds."""


class TooManyError(Exception):
    """It cannot be counted or listed within bounds."""


def minimal(sets: Iterable[Places]) -> Family:
    """Return the sets of which no part is among them, the smallest first, then by their places."""
    ordered = sorted(set(sets), key=lambda members: (len(members), sorted(members)))
    often = Counter(place for members in ordered for place in members)
    kept: list[Places] = []
    by_rarest: dict[int, list[Places]] = defaultdict(list)
    for members in ordered:
        if not members:
            return ALWAYS
        if any(smaller <= members for place in members for smaller in by_rarest.get(place, ())):
            continue
        kept.append(members)
        by_rarest[min(members, key=often.__getitem__)].append(members)
    return tuple(kept)


def fatal_in_all(families: Sequence[Family]) -> Family:
    """Return the family of what is fatal in each of some families: the smallest unions of one set of each.

    Raises
    ------
    TooManyError
        When there are more unions than can be listed.
    """
    unions: Family = ALWAYS
    for family in dict.fromkeys(families):
        if _covers(family, unions):
            continue
        if _covers(unions, family):
            unions = family
            continue
        if len(unions) * len(family) > _MOST_SETS:
            raise TooManyError
        unions = minimal(left | right for left in unions for right in family)
    return unions


def _covers(looser: Family, stricter: Family) -> bool:
    """Whether everything that is fatal by the second family is by the first, so that both together are the second."""
    index = FamilyIndex(looser)
    return all(index.find(one) is not None for one in stricter)


class FamilyIndex:
    """Finds a set of a family within a loss."""

    def __init__(self, family: Iterable[Places]) -> None:
        self._by_first: dict[int, list[Places]] = defaultdict(list)
        self._always: Places | None = None
        for members in family:
            if members:
                self._by_first[min(members)].append(members)
            else:
                self._always = members

    def find(self, loss: Places) -> Places | None:
        """Return a set of the family that is lost whole, None when there is none."""
        if self._always is not None:
            return self._always
        for place in sorted(loss):
            for members in self._by_first.get(place, ()):
                if members <= loss:
                    return members
        return None


def count_fatal(places: int, family: Family, lost: int) -> int:
    """Return how many losses of `lost` out of so many places are fatal by a family of `minimal` sets.

    Raises
    ------
    TooManyError
        When the sets overlap in too many ways to count within bounds.
    """
    return comb(places, lost) - _Counting().safe(places, family, lost)[lost]


class _Counting:
    """Counts losses that are safe, by their sizes."""

    def __init__(self) -> None:
        self._work = 0
        self._known: dict[tuple[frozenset[Places], int], list[int]] = {}

    def safe(self, places: int, family: Iterable[Places], most: int) -> list[int]:
        """Return how many sets of 0, 1, ... `most` places contain no set of a family of minimal sets."""
        sets = [members for members in family if len(members) <= most]
        if not all(sets):
            return [0] * (most + 1)
        single = {place for members in sets if len(members) == 1 for place in members}
        sets = [members for members in sets if len(members) > 1]
        free = places - len(single)
        if most <= 2:
            return [1, free, comb(free, 2) - len(sets)][: most + 1]
        total = [1] + [0] * most
        for part in _parts(sets):
            free -= len(frozenset().union(*part))
            total = _product(total, self._part(part, most), most)
        return _product(total, [comb(free, size) for size in range(most + 1)], most)

    def _part(self, sets: frozenset[Places], most: int) -> list[int]:
        """Return the same for sets that hang together, over their own places."""
        places = frozenset().union(*sets)
        if len(sets) == 1:
            return [comb(len(places), size) - (size == len(places)) for size in range(most + 1)]
        key = (sets, most)
        if key not in self._known:
            self._work += len(sets)
            if self._work > _MOST_WORK:
                raise TooManyError
            often = Counter(place for members in sets for place in members)
            chosen = max(sorted(often), key=lambda place: often[place])
            without = self.safe(len(places) - 1, [members for members in sets if chosen not in members], most)
            shrunk = minimal(members - {chosen} for members in sets)
            taken = self.safe(len(places) - 1, shrunk, most - 1)
            self._known[key] = [left + right for left, right in zip(without, [0, *taken], strict=True)]
        return self._known[key]


def _parts(sets: Sequence[Places]) -> list[frozenset[Places]]:
    """Return the sets by what hangs together: sets of different parts share no place."""
    parent: dict[int, int] = {}

    def top(place: int) -> int:
        while parent.setdefault(place, place) != place:
            parent[place] = place = parent[parent[place]]
        return place

    for members in sets:
        first, *others = members
        for place in others:
            parent[top(place)] = top(first)
    parts: dict[int, list[Places]] = defaultdict(list)
    for members in sets:
        parts[top(next(iter(members)))].append(members)
    return [frozenset(part) for part in parts.values()]


def _product(first: Sequence[int], other: Sequence[int], most: int) -> list[int]:
    product = [0] * (most + 1)
    for left, many in enumerate(first):
        for right in range(most - left + 1):
            product[left + right] += many * other[right]
    return product
