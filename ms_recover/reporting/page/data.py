"""The data that a report's script draws: columns by rank, with one text for many ranks, so that large worlds fit.

A text that differs from rank to rank only in the numbers of the rank and of its source is stored once: the characters
U+0000 and U+0001 stand for them.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from ms_recover.model.inventory import Inventory
from ms_recover.model.plan import RankVerdict
from ms_recover.model.report import JudgedStep, Report
from ms_recover.model.steps import Step
from ms_recover.model.topology import UNKNOWN, Topology
from ms_recover.reporting.tables import one_line

STATES = ("ok", "missing", "damaged", "unreadable", "lost")
VERDICTS = ("keep", "copy", "compose", "unrecoverable")
SEEN = ("none", "sound", "damaged", "unreadable")
"""What a scan saw of a rank's slice of a step: nothing; a sound structure; a damaged one; no permission to look."""
_LETTERS = "abcdefghijklmnopqrst"
_NUMBER = re.compile(r"(?<![0-9])(?:0|[1-9][0-9]*)(?![0-9])")


def report_data(report: Report) -> dict[str, Any]:
    """Return the data, which JSON can hold.

    ``steps[i].cells[rank]`` is a letter for state and verdict, ``seen[rank]`` a digit for what the scan saw; both are
    as for `cell` and `SEEN`. Of the columns in ``ranks``, ``why``, ``path`` and ``from`` are indexes into ``texts``.
    """
    plan = report.plan
    texts = _Texts()
    columns: dict[str, list[int]] = {"why": [], "path": [], "source": [], "from": [], "evidence": []}
    for one in plan.ranks:
        columns["why"].append(texts.add(one.reason, one))
        columns["path"].append(texts.add(_paths(one), one))
        columns["source"].append(-1 if one.source_rank is None else one.source_rank)
        columns["from"].append(texts.add(one.source or "", one))
        columns["evidence"].append(texts.add(one.evidence or "", one))
    considered = plan.step or plan.considered
    seen = _seen(report.inventory)
    steps = [_step(one, seen[one.step], plan.ranks if one.step == considered else None) for one in report.steps]
    return {
        "world": plan.world_size,
        "shown": next((at for at, one in enumerate(report.steps) if one.step == considered), 0),
        "planned": str(plan.step) if plan.step is not None else None,
        "steps": steps,
        "groups": list(report.groups),
        "levels": _levels(report.topology, plan.world_size),
        "ranks": columns,
        "texts": texts.found,
        "states": STATES,
        "verdicts": VERDICTS,
        "seen": SEEN,
    }


def cell(one: RankVerdict) -> str:
    """Return the letter of a state and a verdict."""
    return _LETTERS[STATES.index(one.state) * len(VERDICTS) + VERDICTS.index(one.verdict)]


class _Texts:
    """Texts by their numbers."""

    def __init__(self) -> None:
        self.found: list[str] = []
        self._numbers: dict[str, int] = {}

    def add(self, text: str, one: RankVerdict) -> int:
        """Return the number of a text about a rank."""
        marks = {str(one.rank): "\0"} | ({str(one.source_rank): "\1"} if one.source_rank is not None else {})
        text = _NUMBER.sub(lambda number: marks.get(number[0], number[0]), one_line(text))
        if text not in self._numbers:
            self._numbers[text] = len(self.found)
            self.found.append(text)
        return self._numbers[text]


def _paths(one: RankVerdict) -> str:
    return " and ".join(part.path for part in one.files if part.path)


def _step(judged: JudgedStep, seen: Mapping[int, int], planned: tuple[RankVerdict, ...] | None) -> dict[str, Any]:
    ranks = planned if planned is not None else judged.ranks
    return {
        "step": str(judged.step),
        "recoverable": judged.recoverable,
        "cells": "".join(map(cell, ranks)),
        "seen": "".join(str(seen.get(rank, 0)) for rank in range(len(ranks))),
    }


def _seen(inventory: Inventory) -> Mapping[Step, Mapping[int, int]]:
    """Return indexes into `SEEN` by step and rank: of several files of one rank the worst counts."""
    denied = {rank: 3 for rank, _ in inventory.denied}
    found: defaultdict[Step, dict[int, int]] = defaultdict(denied.copy)
    for file in inventory.slices:
        of_step = found[file.step]
        of_step[file.rank] = max(of_step.get(file.rank, 0), 3 if file.denied else 2 if file.problem else 1)
    return found


def _levels(topology: Topology | None, world: int) -> list[dict[str, Any]]:
    """Return each level with the names of its domains, and the number of each rank's; -1 where it has no place."""
    levels = []
    for name, domains in zip(topology.levels, topology.domains, strict=True) if topology is not None else ():
        names = [domain for domain in dict.fromkeys(domains[:world]) if domain != UNKNOWN]
        numbers = {domain: at for at, domain in enumerate(names)}
        placed = [numbers.get(domain, -1) for domain in domains[:world]]
        levels.append(
            {
                "name": one_line(name),
                "names": [one_line(domain) for domain in names],
                "of": placed + [-1] * (world - len(placed)),
            }
        )
    return levels
