"""Rank groups: the contents of ``group_info.pb``."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True, slots=True)
class RankGroup:
    """A named communication group of a ``group_info.pb``."""

    name: str
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class GroupInfo:
    """The contents of one ``group_info.pb``."""

    restore_ranks: tuple[int, ...]
    """Global ranks whose slices hold the same contents, the owner among them."""
    groups: tuple[RankGroup, ...] = ()
    """The communication groups the compiler made on the owner."""

    @cached_property
    def sorted_ranks(self) -> tuple[int, ...]:
        """The restore ranks, ascending."""
        return tuple(sorted(self.restore_ranks))

    @cached_property
    def highest(self) -> int:
        """The highest rank that it names, -1 for none."""
        return max((*self.restore_ranks, *(rank for group in self.groups for rank in group.ranks)), default=-1)
