"""Rank groups: the contents of ``group_info.pb``."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from functools import cached_property

from ms_recover.model.units import Rank

_FEW = 64
"""Ranks up to which the hash of a plain tuple costs nothing worth keeping."""


class RankList(tuple[int, ...]):
    """Ranks as the key of a group; equal to a tuple of the same ranks.

    Its hash is worked out once, and membership looked up: a tree of many ranks in one group asks for both with each
    rank, so that a plain tuple would take time that grows with the square of their number.
    """

    def __hash__(self) -> int:
        """Return that of a tuple."""
        found: int | None = self.__dict__.get("hash")
        if found is None:
            found = self.__dict__["hash"] = super().__hash__()
        return found

    def __eq__(self, other: object) -> bool:
        """Compare as tuples do, unless it is the same."""
        return self is other or super().__eq__(other)

    def __ne__(self, other: object) -> bool:
        """Compare as tuples do, unless it is the same."""
        return self is not other and super().__ne__(other)

    def __contains__(self, rank: object) -> bool:
        """Whether it has a rank."""
        return isinstance(rank, Hashable) and rank in self.set

    def __reduce__(self) -> tuple[type[RankList], tuple[tuple[int, ...]]]:
        return type(self), (tuple(self),)

    @property
    def set(self) -> frozenset[int]:
        """The ranks."""
        found: frozenset[int] | None = self.__dict__.get("set")
        if found is None:
            found = self.__dict__["set"] = frozenset(self)
        return found

    @property
    def ascending(self) -> RankList:
        """The same ranks, ascending."""
        found: RankList | None = self.__dict__.get("ascending")
        if found is None:
            ordered = RankList(sorted(self))
            found = self.__dict__["ascending"] = self if ordered == self else ordered
        return found


def rank_list(ranks: Iterable[int]) -> tuple[int, ...]:
    """Return ranks as the key of a group: a `RankList` where they are many."""
    if isinstance(ranks, RankList):
        return ranks
    found = tuple(ranks)
    return found if len(found) <= _FEW else RankList(found)


def ascending(ranks: tuple[int, ...]) -> tuple[int, ...]:
    """Return ranks, ascending."""
    return ranks.ascending if isinstance(ranks, RankList) else tuple(sorted(ranks))


def each_once(ranks: tuple[int, ...]) -> tuple[int, ...]:
    """Return ranks, ascending and without repetition."""
    if isinstance(ranks, RankList) and len(ranks.set) == len(ranks):
        return ranks.ascending
    return tuple(sorted(set(ranks)))


class KnownLists:
    """Lists of many ranks that were met, each of which there is once; threads may share them, as they only grow."""

    def __init__(self) -> None:
        self._lists: dict[tuple[int, ...], tuple[int, ...]] = {}

    def share(self, ranks: tuple[int, ...]) -> tuple[int, ...]:
        """Return a list, the one that is there where it is known."""
        ranks = rank_list(ranks)
        return self._lists.setdefault(ranks, ranks) if isinstance(ranks, RankList) else ranks


@dataclass(frozen=True, slots=True)
class RankGroup:
    """A named communication group of a ``group_info.pb``."""

    name: str
    ranks: tuple[Rank, ...]


@dataclass(frozen=True)
class GroupInfo:
    """The contents of one ``group_info.pb``."""

    restore_ranks: tuple[Rank, ...]
    """Global ranks whose slices hold the same contents, the owner among them."""
    groups: tuple[RankGroup, ...] = ()
    """The communication groups the compiler made on the owner."""

    @cached_property
    def sorted_ranks(self) -> tuple[int, ...]:
        """The restore ranks, ascending."""
        return ascending(rank_list(self.restore_ranks))

    @cached_property
    def highest(self) -> int:
        """The highest rank that it names, -1 for none."""
        return max((*self.restore_ranks, *(rank for group in self.groups for rank in group.ranks)), default=-1)
