"""Compare ranks that hold the same, step by step: where they first differ, and which of them is outvoted."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter

from ms_recover.file_names import WeightKind
from ms_recover.model.grouped import grouped
from ms_recover.model.history import Disagreement, HistoryStep, OwnValues
from ms_recover.model.slices import ParameterList
from ms_recover.model.steps import Step
from ms_recover.model.texts import list_some, name_some
from ms_recover.planning.claims.tolerance import Tolerance
from ms_recover.planning.history.shared import Shared
from ms_recover.planning.history.witnesses import Moment, Witness

Sides = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, kw_only=True)
class Compared:
    """The steps, and what was found over all of them."""

    steps: tuple[HistoryStep, ...]
    disagreements: tuple[Disagreement, ...]
    own: tuple[OwnValues, ...]


@dataclass
class _Course:
    """How a parameter went on among the ranks that share it, once they differed."""

    shared: Shared
    name: str
    first: Step
    agreed_until: Step | None
    sides: Sides
    own: bool
    recorded: bool
    last: Step
    steps: int = 1
    later: set[int] = field(default_factory=set)


def compare_moments(
    moments: Sequence[Moment],
    shared: Sequence[Shared],
    tolerance: Tolerance,
    kind: WeightKind | None = None,
) -> Compared:
    """Compare what ranks share at each step, oldest first.

    A parameter that may differ by its name has values of its own; so has one that manifests record as rank-local,
    unless it was equal before or most ranks have one value: that is a disagreement which training noticed.
    """
    recorded = _recorded(moments, shared)
    agreed: dict[int, Step] = {}
    courses: dict[tuple[int, str], _Course] = {}
    columns = [_Columns(block) for block in shared]
    expected = {rank for block in shared for rank in block.ranks}
    steps = []
    for moment in moments:
        differ: set[str] = set()
        compared = 0
        digests = {rank: (*witness.digests, None) for rank, witness in moment.own.items()}
        for number, block in enumerate(shared):
            witnesses = [moment.own[rank] for rank in block.ranks if rank in moment.own]
            if len(witnesses) < 2:
                continue
            compared += 1
            values = [columns[number].of(witness, digests[witness.rank]) for witness in witnesses]
            if values.count(values[0]) < len(values):
                for name, column in zip(block.names, zip(*values, strict=True), strict=False):
                    if column.count(column[0]) == len(column):
                        continue
                    sides = _sides(witnesses, column)
                    course = courses.get((number, name))
                    if course is None:  # equal before, or one value at most ranks: then differing is a fault
                        since, noticed = agreed.get(number), name in recorded[number]
                        own = tolerance.covers(name) or (noticed and since is None and not _outvoted(sides))
                        course = courses[number, name] = _Course(
                            block, name, moment.step, since, sides, own, noticed, moment.step
                        )
                    else:
                        course.last, course.steps = moment.step, course.steps + 1
                        course.later.update(_outvoted(sides))
                    if not course.own:
                        differ.add(name)
            agreed[number] = moment.step
        steps.append(_step(moment, differ, expected - moment.own.keys(), compared))
    disagreements = [_disagreement(course, kind) for course in courses.values() if not course.own]
    places = {moment.step: place for place, moment in enumerate(moments)}
    disagreements.sort(key=lambda differing: (places[differing.first], differing.parameter, differing.sides))
    return Compared(
        steps=tuple(steps),
        disagreements=_with_suspects(disagreements, places),
        own=_own_values([course for course in courses.values() if course.own]),
    )


class _Columns:
    """Where the parameters of a block stand in the lists of slices, each found once."""

    def __init__(self, block: Shared) -> None:
        self._names = block.names
        self._pick: dict[int, Callable[[Sequence[str | None]], tuple[str | None, ...]]] = {}
        self._lists: list[ParameterList] = []

    def of(self, witness: Witness, digests: Sequence[str | None]) -> tuple[str | None, ...]:
        """Return the digests of a block's parameters and None, of a slice's digests and None.

        Also for a parameter that the slice does not list it is None.
        """
        pick = self._pick.get(id(witness.listed))
        if pick is None:
            places = [witness.listed.index.get(name, -1) for name in self._names]
            pick = self._pick[id(witness.listed)] = itemgetter(*places, -1)
            self._lists.append(witness.listed)  # whose id is of no other one as long as it is kept
        return pick(digests)


def _sides(held: Sequence[Witness], column: Sequence[str | None]) -> Sides:
    sides: dict[str | None, list[int]] = defaultdict(list)
    for one, value in zip(held, column, strict=True):
        sides[value].append(one.rank)
    return tuple(tuple(side) for side in sorted(sides.values(), key=lambda side: (-len(side), side)))


def _outvoted(sides: Sides) -> tuple[int, ...]:
    """Return the ranks against more than half of all; none where no value has that many."""
    first, *others = sides
    lost = [rank for side in others for rank in side]
    return tuple(sorted(lost)) if len(first) > len(lost) else ()


def _recorded(moments: Sequence[Moment], shared: Sequence[Shared]) -> list[frozenset[str]]:
    """Return for each block the parameters that manifests of its ranks record as rank-local, at any step."""
    by_rank: dict[int, set[str]] = defaultdict(set)
    for moment in moments:
        for rank, one in moment.own.items():
            by_rank[rank] |= one.rank_local
    return [frozenset[str]().union(*(by_rank[rank] for rank in block.ranks)) for block in shared]


def _step(moment: Moment, differ: set[str], missing: set[int], compared: int) -> HistoryStep:
    copied = sorted(missing & moment.witnesses.keys())
    reasons = []
    if differ:
        reasons.append(f"ranks that hold the same differ in {name_some(sorted(differ))}")
    elif not moment.witnesses:
        reasons.append("no slice has a manifest")
    elif not compared:
        reasons.append("no two ranks that hold the same have manifests")
    if copied:
        reasons.append(f"recovered from other ranks, and so no witness: the slice of rank {list_some(copied)}")
    gone = sorted(missing.difference(copied))
    if gone and (compared or copied):
        reasons.append(f"no manifest of rank {list_some(gone)}")
    return HistoryStep(
        step=moment.step,
        run_id=moment.run_id,
        state="disagreed" if differ else "uncompared" if reasons else "clean",
        ranks=len(moment.witnesses),
        missing=tuple(sorted(missing)),
        parameters=tuple(sorted(differ)),
        reason="; ".join(reasons),
    )


def _disagreement(course: _Course, kind: WeightKind | None) -> Disagreement:
    lost = _outvoted(course.sides)
    return Disagreement(
        parameter=course.name,
        first=course.first,
        last=course.last,
        steps=course.steps,
        agreed_until=course.agreed_until,
        sides=course.sides,
        outvoted=lost,
        later=tuple(sorted(course.later.difference(lost))),
        recorded=course.recorded,
        source=course.shared.source,
        kind=kind,
    )


def _with_suspects(disagreements: Sequence[Disagreement], places: Mapping[Step, int]) -> tuple[Disagreement, ...]:
    """Name in each tie the ranks of the one side of which some were outvoted in other parameters by then."""
    since: dict[int, int] = {}
    for disagreement in disagreements:
        place = places[disagreement.first]
        for rank in disagreement.outvoted:
            since.setdefault(rank, place)
    settled = []
    for disagreement in disagreements:
        place = places[disagreement.first]
        known = [[rank for rank in side if since.get(rank, len(places)) <= place] for side in disagreement.sides]
        named = [ranks for ranks in known if ranks]
        is_tie = not disagreement.outvoted
        settled.append(replace(disagreement, suspects=tuple(named[0])) if is_tie and len(named) == 1 else disagreement)
    return tuple(settled)


def _own_values(courses: Sequence[_Course]) -> tuple[OwnValues, ...]:
    own = []
    for name, of_name in sorted(grouped(courses, lambda course: course.name).items()):
        first = of_name[0].first
        ranks = {rank for course in of_name for side in course.sides for rank in side}
        recorded = any(course.recorded for course in of_name)
        own.append(OwnValues(parameter=name, first=first, ranks=tuple(sorted(ranks)), recorded=recorded))
    return tuple(own)
