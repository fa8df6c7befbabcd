"""Boxes of a tensor: what two of them share, what is left of one, which bytes that is, and which of many lie near.

A box is ``((start, stop), ...)``, one pair of element indices for each dimension of the global tensor; a scalar's is
``()``.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import product
from math import prod

from ms_recover.model.compose import Runs

Box = tuple[tuple[int, int], ...]


def volume(box: Box) -> int:
    """Return the number of elements in a box."""
    return prod(stop - start for start, stop in box)


def intersect(one: Box, other: Box) -> Box | None:
    """Return what two boxes of one tensor share, None when that is nothing."""
    shared = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(one, other, strict=True))
    return shared if all(start < stop for start, stop in shared) else None


def subtract(box: Box, hole: Box) -> list[Box]:
    """Return boxes that together are `box` without `hole`, which lies within it; they do not overlap."""
    rest = []
    for axis, ((start, stop), (first, last)) in enumerate(zip(box, hole, strict=True)):
        ahead, behind = hole[:axis], box[axis + 1 :]
        if start < first:
            rest.append((*ahead, (start, first), *behind))
        if last < stop:
            rest.append((*ahead, (last, stop), *behind))
    return rest


def cover(target: Box, boxes: Iterable[Box]) -> tuple[list[tuple[int, Box]], list[Box]]:
    """Cover a box with others, the first ones first; they may overlap each other and reach beyond the target.

    Returns
    -------
    pieces : list of (int, Box)
        Which of `boxes` gives which part of the target; the parts do not overlap.
    uncovered : list of Box
        What none of them gives.
    """
    pieces: list[tuple[int, Box]] = []
    left = [target] if volume(target) else []
    for index, box in enumerate(boxes):
        rest: list[Box] = []
        for part in left:
            shared = intersect(part, box)
            if shared is None:
                rest.append(part)
            else:
                pieces.append((index, shared))
                rest += subtract(part, shared)
        left = rest
    return pieces, left


def runs_of(part: Box, source: Box, target: Box, item_size: int) -> Runs:
    """Return the byte runs that move a part of a tensor from one slice's contents to another's.

    The part lies within both regions that the slices hold. Contents are in C order, the last dimension fastest, with
    `item_size` bytes per element. Trailing dimensions that lie whole in both go in one run.
    """
    source_strides, target_strides = _strides(source, item_size), _strides(target, item_size)
    loops = []
    length = item_size
    for axis in reversed(range(len(part))):
        count = part[axis][1] - part[axis][0]
        if source_strides[axis] == length == target_strides[axis]:
            length *= count  # this dimension continues the run
        elif count > 1:  # from here on strides are longer than the run
            loops.append((count, source_strides[axis], target_strides[axis]))
    return Runs(
        _offset(part, source, source_strides), _offset(part, target, target_strides), length, tuple(loops[::-1])
    )


def _strides(box: Box, item_size: int) -> list[int]:
    strides = [item_size] * len(box)
    for axis in reversed(range(len(box) - 1)):
        start, stop = box[axis + 1]
        strides[axis] = strides[axis + 1] * (stop - start)
    return strides


def _offset(part: Box, box: Box, strides: list[int]) -> int:
    return sum((p[0] - b[0]) * stride for p, b, stride in zip(part, box, strides, strict=True))


class Grid:
    """Boxes of one tensor, by number.

    Boxes that are cut as a grid, as all layouts cut, are found by bisection; others are all looked at.
    """

    def __init__(self, boxes: Sequence[Box]) -> None:
        self.boxes = boxes
        dimensions = len(boxes[0]) if boxes else 0
        self._starts = [sorted({box[axis][0] for box in boxes}) for axis in range(dimensions)]
        self._places: dict[tuple[int, ...], int] = {}
        self._is_grid = True
        for number, box in enumerate(boxes):
            place = tuple(bisect_left(starts, start) for starts, (start, _) in zip(self._starts, box, strict=True))
            ends = (
                at + 1 == len(starts) or stop <= starts[at + 1]
                for at, starts, (_, stop) in zip(place, self._starts, box, strict=True)
            )
            if place in self._places or not all(ends):
                self._is_grid = False
                break
            self._places[place] = number

    def near(self, box: Box) -> Sequence[int]:
        """Return the numbers of the boxes that may share something with a box, ascending; others share nothing."""
        if not self._is_grid or not self.boxes:
            return range(len(self.boxes))
        ranges = [
            range(max(bisect_right(starts, start) - 1, 0), bisect_left(starts, stop))
            for starts, (start, stop) in zip(self._starts, box, strict=True)
        ]
        if prod(map(len, ranges)) > len(self.boxes):
            return range(len(self.boxes))
        numbers = (self._places.get(place) for place in product(*ranges))
        return sorted(number for number in numbers if number is not None)
