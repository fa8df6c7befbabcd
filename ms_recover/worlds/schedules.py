"""Who sends what to whom, when, in a collective call (pure)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise


def chunks(count: int, size: int) -> list[tuple[int, int]]:
    """Cut `count` elements into `size` ranges that differ by one element at most."""
    small, more = divmod(count, size)
    starts = [index * small + min(index, more) for index in range(size + 1)]
    return list(pairwise(starts))


def segments(start: int, stop: int, longest: int) -> list[tuple[int, int]]:
    """Cut a range into pieces; an empty one is one empty piece."""
    return [(at, min(at + longest, stop)) for at in range(start, stop, longest)] or [(start, stop)]


def reduce_ring(rank: int, size: int) -> Iterator[tuple[int, int]]:
    """Give the chunk to send to the right and the one to take from the left and add to, step by step.

    Afterwards every rank holds the whole of chunk ``rank + 1``.
    """
    for step in range(size - 1):
        yield (rank - step) % size, (rank - step - 1) % size


def gather_ring(rank: int, size: int) -> Iterator[tuple[int, int]]:
    """Give the chunk to send to the right and the one to take from the left, after `reduce_ring`."""
    for step in range(size - 1):
        yield (rank + 1 - step) % size, (rank - step) % size


def parent(rank: int, size: int, root: int) -> int | None:
    """Return the parent in the binomial tree below `root`."""
    place = (rank - root) % size
    return None if place == 0 else ((place & (place - 1)) + root) % size


def children(rank: int, size: int, root: int) -> list[int]:
    """Return the children in the binomial tree below `root`, the one with the largest subtree first."""
    place = (rank - root) % size
    bit, found = 1, []
    while place + bit < size and not place & bit:
        found.append((place + bit + root) % size)
        bit <<= 1
    return found[::-1]


def others(rank: int, size: int) -> list[int]:
    """Return the other ranks, beginning with the next, so that not all send to the same one first."""
    return [(rank + step) % size for step in range(1, size)]


def barrier(rank: int, size: int) -> Iterator[tuple[int, int]]:
    """Give the rank to tell and the rank to hear from, round by round; after the last all have been heard of."""
    step = 1
    while step < size:
        yield (rank + step) % size, (rank - step) % size
        step *= 2
