"""Where the rank stands in the names of slices, by comparing the names of all ranks (pure).

``rank_{rank}`` in a name is the rank, and `ms_recover.scanning.naming` finds it. Other numbers are the rank where they
follow it from rank to rank: the prefix of ``ckpt_0/0-1_100.ckpt`` and ``ckpt_1/1-1_100.ckpt``, or both numbers of
``x_rank_3_rank_3-1_100.ckpt``. A number that is the same for all ranks stays, such as that of ``lora_rank_8``.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

from ms_recover.model.inventory import RankPath
from ms_recover.scanning.naming import SliceName

_TAIL = re.compile(r"-\d+_\d+\.[a-z]+\Z", re.ASCII)
_NUMBER = re.compile(r"\d+", re.ASCII)
_IN_PREFIX = re.compile(r"(?:(?:^|_)rank_)?\0")
_SAYS_RANK = re.compile(r"(?:^|[^a-z])(?:rank|device|card|worker)[_-]?\Z", re.ASCII | re.IGNORECASE)
_MARK = "\0"  # the place of the rank


def settle_rank_places(slices: Iterable[SliceName]) -> tuple[list[SliceName], list[tuple[SliceName, str]]]:
    """Return slices with the rank at all its places in their names, and those that carry another rank's number there.

    The latter come with the number. A number is the rank's where it is that of more than half of the ranks whose names
    are the same but for their numbers, and of two at least. Where one rank is left, a number that is its whole prefix
    or that a word such as ``rank`` or ``device`` precedes.
    """
    settled: list[SliceName] = []
    wrong: list[tuple[SliceName, str]] = []
    families: dict[tuple[str, str], list[tuple[SliceName, str]]] = defaultdict(list)
    for name in slices:
        folder, stem, _ = _split(name)
        if _NUMBER.search(stem):
            families[folder, _NUMBER.sub("#", stem)].append((name, stem))
        else:
            settled.append(name)
    for family in families.values():
        spots = _rank_spots(family)
        for name, stem in family:
            numbers = list(_NUMBER.finditer(stem))
            other = next((numbers[spot][0] for spot in spots if numbers[spot][0] != str(name.rank)), None)
            if other is not None:
                wrong.append((name, other))
            else:
                settled.append(_with_places(name, [numbers[spot].span() for spot in spots]) if spots else name)
    return settled, wrong


def _split(name: SliceName) -> tuple[str, str, str]:
    """Return the directory of a slice, its name before epoch and step, and the rest, all with marks for the rank."""
    folder, _, file = _MARK.join(name.place.parts).rpartition("/")
    tail = _TAIL.search(file)
    cut = tail.start() if tail is not None else 0
    return folder, file[:cut], file[cut:]


def _rank_spots(family: Sequence[tuple[SliceName, str]]) -> list[int]:
    """Return which of the numbers in names that are the same but for their numbers are the rank's."""
    count = len(_NUMBER.findall(family[0][1]))
    ranks = {name.rank for name, _ in family}
    matching = [set(ranks) for _ in range(count)]
    for name, stem in family:
        for spot, number in enumerate(_NUMBER.findall(stem)):
            if number != str(name.rank):
                matching[spot].discard(name.rank)
    stem = family[0][1]
    return [spot for spot, found in enumerate(matching) if _follows_rank(found, ranks, stem, spot)]


def _follows_rank(found: set[int], ranks: set[int], stem: str, spot: int) -> bool:
    number = list(_NUMBER.finditer(stem))[spot]
    if len(ranks) == 1:
        whole = number[0] == stem or _SAYS_RANK.search(stem[: number.start()]) is not None
        return bool(found) and _MARK not in stem and whole
    rerun = number.end() == len(stem) and stem[number.start() - 1 : number.start()] == "_"
    least = 3 if rerun and 0 not in found else 2  # ranks 1 and 2 may have been started again once and twice
    return len(found) >= least and 2 * len(found) > len(ranks)


def _with_places(name: SliceName, spans: Sequence[tuple[int, int]]) -> SliceName:
    folder, stem, tail = _split(name)
    for start, end in reversed(spans):
        stem = f"{stem[:start]}{_MARK}{stem[end:]}"
    place = RankPath(tuple(f"{folder}/{stem}{tail}".split(_MARK)))
    return replace(name, place=place, prefix=_IN_PREFIX.sub("", stem))
