"""The calls of training of a random program, as their processes wrote them down, and what they show side by side."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tests.support.program_causes import TOUCHED, Seen
from tests.support.random_programs import Program

_KIND = re.compile(r"\('(\w+)'")
"""The kind of the event that a difference names."""
HEADLINE = re.compile(r"resumed from")
"""What the line of a resume that is well has in it."""


@dataclass(frozen=True)
class Leg:
    """One call of training."""

    events: tuple[tuple[str, int, str], ...] = ()
    """Samples, losses and values by step, begins and ends of epochs, in order."""
    ended: bool = False
    """Whether the training went to its end."""
    final: str = ""
    error: tuple[str, str] | None = None
    """The kind of the error, ``refused`` for those of the library, and its text."""
    warnings: tuple[str, ...] = ()
    printed: tuple[str, ...] = ()
    """The lines in which a resume says that it is well."""
    committed: int = 0
    """The newest step that the program had a slice of when the call began."""

    @property
    def trained(self) -> bool:
        """Whether a step was trained."""
        return self.first > 0

    @property
    def first(self) -> int:
        """The first step that was trained; 0 for none."""
        return next((step for kind, step, _ in self.events if kind == "loss"), 0)

    @property
    def whole(self) -> bool:
        """Whether it began at the beginning of an epoch, or trained nothing."""
        return not self.events or self.events[0][0] == "begin"


def read_leg(report: Path, output: Path) -> Leg:
    """Return what a leg wrote down."""
    events, warnings, final, error, committed = [], [], "", None, 0
    for line in report.read_text().splitlines() if report.exists() else ():
        kind, *words = json.loads(line)
        if kind == "warning":
            warnings.append(words[0])
        elif kind == "final":
            final = words[0]
        elif kind == "committed":
            committed = words[0]
        elif kind == "error":
            error = (words[0] if not words[2] else "refused", words[1])
        elif kind != "trace":
            events.append((kind, *words))
    printed = output.read_text(errors="replace").splitlines() if output.exists() else []
    lines = tuple(line for line in printed if HEADLINE.search(line))
    return Leg(tuple(events), bool(final), final, error, tuple(warnings), lines, committed)


def without_stop(leg: Leg) -> Leg:
    """Return a leg that was asked to stop without the end of its epoch, which comes early."""
    last = max((place for place, event in enumerate(leg.events) if event[0] == "loss"), default=-1)
    return replace(leg, events=leg.events[: last + 1], ended=False)


def first_difference(leg: Leg, alone: Leg) -> str | None:
    """Return the first event of a leg that is none of the undisturbed training."""
    if not leg.events:
        return None
    names = [event[:2] for event in alone.events]
    if leg.events[0][:2] not in names:
        return f"begins with {leg.events[0]}"
    begin = names.index(leg.events[0][:2])
    for mine, theirs in zip(leg.events, alone.events[begin:], strict=False):
        if mine != theirs:
            return f"{mine} instead of {theirs}"
    if leg.ended and begin + len(leg.events) != len(alone.events):
        return f"{len(leg.events)} events instead of {len(alone.events) - begin}"
    return None


def see(program: Program, alone: Leg, legs: Sequence[Leg], touched: str | None) -> tuple[Seen, list[str | None]]:
    """Return what came of a program, and where each leg differs from the undisturbed training first.

    `touched` names slices of another training that were changed.
    """
    touched = touched or (_went_ahead(program, legs) if program.neighbour != "none" else None)
    last, resumed = legs[-1], legs[1:]
    stopped = [kind == "stop" for kind, _ in program.crashes]
    cut = [without_stop(leg) if stop else leg for leg, stop in zip(legs, [*stopped, False], strict=False)]
    differences = [first_difference(leg, alone) for leg in cut]
    error = last.error
    if legs[0].error is not None and legs[0].error[0] == "refused":
        error = legs[0].error  # it did not even begin
    refused = error is not None and error[0] == "refused"
    failure = None if error is None or refused else ": ".join(error)
    if error is None and not last.final:
        failure = "the process died"
    return Seen(
        equal=not any(differences) and last.final == alone.final,
        refusal=error[1] if error is not None and refused else None,
        failure=failure,
        warnings=tuple(dict.fromkeys(line for leg in legs for line in leg.warnings)),
        headlines=tuple(line for leg in legs for line in leg.printed),
        trained=last.trained,
        first=next((_KIND.findall(one)[0] for one in differences if one is not None and _KIND.search(one)), None),
        repeatable=differences[0] is None,
        earlier=any(differences[:-1]),
        resumed=len(legs) > 1,
        whole=all(leg.whole for leg in resumed),
        lost=touched or _went_back(resumed[:-1] if program.change == "newest flipped" else resumed),
        sound=last.committed > 0,
    ), differences


def _went_back(resumed: Sequence[Leg]) -> str | None:
    """Return which slices were passed over."""
    for leg in resumed:
        if leg.trained and leg.first <= leg.committed:
            return f"went back: trained step {leg.first} with a slice of step {leg.committed}"
    return None


def _went_ahead(program: Program, legs: Sequence[Leg]) -> str | None:
    """Return where a leg went on behind a step that no slice of its own is of.

    A slice may still be written when the same process begins again.
    """
    being_written = 0
    for leg in legs:
        own = max(leg.committed, being_written, program.initial_epoch * program.epoch_steps)
        if program.asynchronous and program.retry != "process":
            being_written = max((step for kind, step, _ in leg.events if kind == "loss"), default=0)
        begun = leg.first - 1 if leg.trained else program.steps
        if begun > own and (leg.trained or (leg.ended and "EarlyStopping" not in program.callbacks)):
            return f"{TOUCHED}: resumed from one of step {begun}, its own end at {own}"
    return None


def has_ended(program: Program, legs: Sequence[Leg]) -> bool:
    """Whether the training went to its end before it crashed or resumed."""
    last = len(legs) - 1
    return legs[last].ended and (last >= len(program.crashes) or program.crashes[last][0] != "stop")
