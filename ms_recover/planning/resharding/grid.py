"""Boxes of one tensor by their place, so that those near another box are found without looking at all."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import product
from math import prod

from ms_recover.planning.redundancy.regions import Box


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
        found = (self._places.get(place) for place in product(*ranges))
        return sorted(number for number in found if number is not None)
