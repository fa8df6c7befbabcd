"""Parameters that stopped changing, and those that never changed."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from ms_recover.model.history import Stopped
from ms_recover.model.steps import Step
from ms_recover.planning.history.witnesses import Moment, Witness

LEAST_STEPS = 3
"""A parameter stopped changing when so many of the newest steps have one value."""

_STATE = re.compile(
    r"(?:moments?\d?|m|v|vhat|accum\w*|adam_[mv]|exp_avg\w*|moving_\w+|stat|state|master_params?)\.(?P<weight>.+)\Z"
)
"""Names of optimizer states: a word, and behind a dot the name of the weight that is trained."""


@dataclass(frozen=True, kw_only=True)
class Changes:
    """See `ms_recover.model.history.History`."""

    stopped: tuple[Stopped, ...]
    frozen: tuple[str, ...]


def find_changes(moments: Sequence[Moment]) -> Changes:
    """Compare the values of each rank with those of its step before, from the newest step backwards.

    A parameter with one value at all steps is frozen, unless the optimizer has a state for it or it changes on other
    ranks: frozen weights have no state. With fewer than `LEAST_STEPS` steps nothing is said.
    """
    since: dict[str, dict[Step, list[int]]] = defaultdict(lambda: defaultdict(list))
    constant: dict[str, list[int]] = defaultdict(list)
    changing: dict[str, list[int]] = defaultdict(list)
    elements: dict[str, int] = {}
    courses: dict[int, list[tuple[Step, Witness]]] = defaultdict(list)
    for moment in moments:
        for rank, slice_ in moment.witnesses.items():
            courses[rank].append((moment.step, slice_))
    places = {moment.step: place for place, moment in enumerate(moments)}
    for rank, course in courses.items():
        if len(course) < LEAST_STEPS:
            continue
        newest = course[-1][1]  # whose list counts: a parameter that is gone does not stop
        for parameter, place in zip(newest.listed, _kept(course), strict=True):
            elements[parameter.name] = prod(parameter.shape)
            if place == 0:
                constant[parameter.name].append(rank)
            elif len(course) - place >= LEAST_STEPS:
                since[parameter.name][course[place][0]].append(rank)
            else:
                changing[parameter.name].append(rank)
    # A weight with a state of the optimizer is trained: with one value at all steps it stopped, and is not frozen.
    trained = {match["weight"] for name in elements if (match := _STATE.match(name)) is not None}
    frozen = []
    for name, ranks in constant.items():
        if name in changing or name in since or name in trained:
            for rank in ranks:
                since[name][courses[rank][0][0]].append(rank)
        else:
            frozen.append(name)
    stopped = [
        Stopped(
            parameter=name,
            since=step,
            steps=len(moments) - places[step],
            ranks=tuple(sorted(ranks)),
            elements=elements[name],
            everywhere=name not in changing,
        )
        for name, by_step in since.items()
        for step, ranks in by_step.items()
    ]
    stopped.sort(key=lambda change: (places[change.since], change.parameter))
    return Changes(stopped=tuple(stopped), frozen=tuple(sorted(frozen)))


def _kept(course: Sequence[tuple[Step, Witness]]) -> list[int]:
    """Return for each parameter of the newest step the place of the first step from which it kept its value."""
    newest = course[-1][1]
    kept = [len(course) - 1] * len(newest.listed)
    left = list(range(len(newest.listed)))
    for place in range(len(course) - 2, -1, -1):
        earlier = course[place][1]
        if earlier.listed is newest.listed:
            left = [index for index in left if earlier.digests[index] == newest.digests[index]]
        else:
            where = earlier.listed.index
            names = newest.listed
            left = [
                index
                for index in left
                if (at := where.get(names[index].name)) is not None and earlier.digests[at] == newest.digests[index]
            ]
        for index in left:
            kept[index] = place
    return kept
