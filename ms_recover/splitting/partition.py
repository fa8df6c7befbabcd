"""Contiguous parts of a row of stages, as even as possible, and their devices (pure)."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from fractions import Fraction
from itertools import accumulate, pairwise
from typing import Any

from ms_recover.arguments import is_whole
from ms_recover.errors import UsageError


def partition(costs: Sequence[float], parts: int) -> tuple[range, ...]:
    """Cut a row of stages, by their costs, into contiguous nonempty parts so that the costliest part costs least.

    Ties go to the least sum of the parts' squared costs, then to the least sum of their squared numbers of stages, then
    to the shortest parts from the front. Sums are exact, so that the order of additions has no influence. Raises
    UsageError when there are no stages, a cost is negative or not finite, or the number of parts is out of range.
    """
    prefix = [0, *accumulate(_whole(costs))]
    stages = len(costs)
    if not 1 <= parts <= stages:
        raise UsageError(f"invalid number of parts {parts}: {stages} stages can be cut into 1 to {stages} parts")
    bound = _bottleneck(prefix, parts)
    # the fewest and the most stages that the first k parts can have together
    most, least = [0], [stages]
    for k in range(parts):
        most.append(min(bisect_right(prefix, prefix[most[-1]] + bound) - 1, stages - (parts - k - 1)))
        least.append(max(bisect_left(prefix, prefix[least[-1]] - bound), parts - k - 1))
    least.reverse()

    # Evenness of the first k parts, by their end. Squares obey the quadrangle inequality: the best start of the last
    # part never moves back when its end moves on, so that halving the range of ends halves that of starts.
    unit = stages * stages + 1  # above every sum of squared lengths, so that one number compares like the pair
    best, starts = {0: 0}, list[dict[int, int]]()
    for k in range(1, parts + 1):
        found: dict[int, int] = {}
        chosen: dict[int, int] = {}
        todo = [(least[k], most[k], least[k - 1], most[k - 1])]
        while todo:
            low, high, first, last = todo.pop()
            end = (low + high) // 2
            begin = max(first, bisect_left(prefix, prefix[end] - bound))
            found[end], chosen[end] = min(
                (best[start] + (prefix[end] - prefix[start]) ** 2 * unit + (end - start) ** 2, start)
                for start in range(begin, min(last, end - 1) + 1)
            )
            if low < end:
                todo.append((low, end - 1, first, chosen[end]))
            if end < high:
                todo.append((end + 1, high, chosen[end], last))
        best = found
        starts.append(chosen)

    cuts = [stages]
    for chosen in reversed(starts):
        cuts.append(chosen[cuts[-1]])
    cuts.reverse()
    return tuple(range(start, stop) for start, stop in pairwise(cuts))


def cut_before(names: Sequence[str], cuts: object) -> tuple[range, ...]:
    """Cut a row of stages before those of these names or numbers, in any order.

    Raises UsageError when a stage is not there, is named twice, or a name belongs to several stages.
    """
    given = [cuts] if isinstance(cuts, str | int) else cuts
    if not isinstance(given, list | tuple) or not given:
        raise UsageError(f"invalid cut_at {cuts!r:.60}: expected a list of names or numbers of stages")
    starts = sorted(_stage_number(names, cut) for cut in given)
    if len(set(starts)) < len(starts):
        raise UsageError(f"invalid cut_at {cuts!r:.60}: a stage is there twice")
    return tuple(range(start, stop) for start, stop in pairwise([0, *starts, len(names)]))


def _stage_number(names: Sequence[str], cut: Any) -> int:
    listed = ", ".join(names[:12]) + (", ..." if len(names) > 12 else "")
    if isinstance(cut, str):
        found = [number for number, name in enumerate(names) if name == cut or name.startswith(f"{cut}.")]
        several = len(found) > 1 and any(names[number] == cut for number in found)
        if not found or several:
            what = f"belongs to {len(found)} stages: give a number" if found else "is no stage"
            raise UsageError(f"invalid cut_at: {cut!r} {what}; the stages are {listed}")
        cut = found[0]
    if not is_whole(cut, 1, int) or cut >= len(names):
        raise UsageError(
            f"invalid cut_at: a part cannot begin at {cut!r:.60}; give stages behind the first, by name or number: "
            f"{listed}"
        )
    return int(cut)


def assign(costs: Sequence[float], parts: Sequence[range], devices: int) -> tuple[tuple[int, ...], ...]:
    """Return for each device its parts; `costs` are those of the stages.

    The first devices hold the parts in order, a part each. Each further one holds the part with the greatest cost per
    holder; ties go to the part with fewer holders, then to the first. Fewer devices than parts hold neighbouring ones,
    as even as possible. Raises UsageError when there is no device or no part, or a cost is invalid.
    """
    if not parts or devices < 1:
        raise UsageError(f"{devices} devices cannot hold {len(parts)} parts: there has to be one at least of each")
    whole = _whole(costs)
    if devices < len(parts):
        groups = partition([sum(whole[part.start : part.stop]) for part in parts], devices)
        return tuple(map(tuple, groups))
    weights = [Fraction(sum(whole[part.start : part.stop])) for part in parts]
    held = list(range(len(parts)))
    holders = [1] * len(parts)
    while len(held) < devices:
        part = min(range(len(parts)), key=lambda index: (-weights[index] / holders[index], holders[index], index))
        holders[part] += 1
        held.append(part)
    return tuple((part,) for part in held)


def _whole(costs: Sequence[float]) -> list[int]:
    """Return the costs as whole numbers of a common unit; every float is a multiple of some power of two."""
    if not len(costs):
        raise UsageError("there are no stages to cut into parts")
    pairs = []
    for index, cost in enumerate(costs):
        value = cost if isinstance(cost, int) else float(cost)
        if not 0 <= value < math.inf:  # NaN fails as well
            raise UsageError(f"stage {index} costs {value}: costs have to be finite and not negative")
        pairs.append(value.as_integer_ratio())
    unit = max(denominator for _, denominator in pairs)
    return [numerator * (unit // denominator) for numerator, denominator in pairs]


def _bottleneck(prefix: Sequence[int], parts: int) -> int:
    """Return the least possible cost of the costliest part."""
    largest = max(after - before for before, after in pairwise(prefix))
    low = max(largest, -(-prefix[-1] // parts))
    high = low + largest
    while low < high:
        middle = (low + high) // 2
        end = used = 0
        while end < len(prefix) - 1 and used < parts:
            end = bisect_right(prefix, prefix[end] + middle) - 1
            used += 1
        low, high = (low, middle) if end == len(prefix) - 1 else (middle + 1, high)
    return low
