"""The order of sends and receives in collective calls (pure)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise


def chunks(count: int, size: int) -> list[tuple[int, int]]:
    """Cut `count` elements into `size` ranges that differ by one element at most."""
    small, more = divmod(count, size)
    starts = [index * small + min(index, more) for index in range(size + 1)]
    return list(pairwise(starts))


def segments(start: int, stop: int, longest: int) -> list[tuple[int, int]]:
    """Cut a range into segments of at most `longest`; an empty range is one empty segment."""
    return [(at, min(at + longest, stop)) for at in range(start, stop, longest)] or [(start, stop)]


def ring(rank: int, size: int, first: int) -> Iterator[tuple[int, int]]:
    """Yield for each step the chunk to send to the right and the chunk to receive from the left.

    With `first` 0, and reducing into what is received, every rank ends with the result of chunk ``rank + 1``; with
    `first` 1 these results then reach all ranks.
    """
    for step in range(size - 1):
        yield (rank + first - step) % size, (rank + first - step - 1) % size


def parent(rank: int, size: int, root: int) -> int | None:
    """Return the parent in the binomial tree below `root`; None for the root."""
    place = (rank - root) % size
    return None if place == 0 else ((place & (place - 1)) + root) % size


def children(rank: int, size: int, root: int) -> list[int]:
    """Return the children in the binomial tree below `root`, largest subtree first."""
    place = (rank - root) % size
    bit = 1
    ranks = []
    while place + bit < size and not place & bit:
        ranks.append((place + bit + root) % size)
        bit <<= 1
    return ranks[::-1]


def others(rank: int, size: int) -> list[int]:
    """Return the other ranks, beginning with the next, so that not all ranks send to the same rank first."""
    return [(rank + step) % size for step in range(1, size)]


def barrier(rank: int, size: int) -> Iterator[tuple[int, int]]:
    """Yield for each round the rank to send to and the rank to receive from; afterwards all ranks have arrived."""
    step = 1
    while step < size:
        yield (rank + step) % size, (rank - step) % size
        step *= 2
