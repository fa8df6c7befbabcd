"""Rank groups: what ``group_info.pb`` says."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RankGroup:
    """A named communication group of a ``group_info.pb``."""

    name: str
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class GroupInfo:
    """The contents of one ``group_info.pb``.

    Parameters
    ----------
    restore_ranks : tuple of int
        Global ranks whose slices hold the same contents, the owner among them.
    groups : tuple of RankGroup
        The communication groups the compiler made on the owner.
    """

    restore_ranks: tuple[int, ...]
    groups: tuple[RankGroup, ...] = ()
