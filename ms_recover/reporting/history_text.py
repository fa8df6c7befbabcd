"""The history of a run as text for an operator."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from ms_recover.model.history import Disagreement, History, HistoryRun, HistoryStep, OddValues, Stopped
from ms_recover.model.texts import list_some, many, name_some, ranks_text
from ms_recover.reporting.tables import first_rows, page, section, size_text

_MOST = 20
"""So many rows of a table, or names, are shown; JSON has all."""


def history_text(found: History, width: int | None) -> str:
    """Return a history: the answer first, then who disagreed, what stopped or is not finite, and the steps."""
    lines = [found.root, *_headline(found)]
    lines += section(
        "Ranks that hold the same and differed, by the first step",
        ("first step", "parameter", "rank", "what"),
        first_rows(
            [(str(one.first), one.parameter, _odd_rank(one), _how(one)) for one in found.disagreements], _MOST, -1
        ),
        width,
        right=(),
    )
    weights = [one for one in found.stopped if one.elements > 1]
    lines += section(
        "Parameters that stopped changing",
        ("since", "parameter", "rank", "what"),
        first_rows(
            [(str(one.since), one.parameter, ranks_text(one.ranks), _stopped(one)) for one in weights], _MOST, -1
        ),
        width,
        right=(),
    )
    lines += section(
        "Values that were read",
        ("first step", "parameter", "rank", "what"),
        first_rows(
            [(str(one.first), one.parameter, ranks_text(one.ranks), _value(one)) for one in found.values], _MOST, -1
        ),
        width,
        right=(),
    )
    lines += section(
        "Steps passed over after the last clean one" if found.clean is not None else "Steps, none of them clean",
        ("step", "state", "why"),
        first_rows(_step_rows(found.passed_over), _MOST, -1),
        width,
        right=(),
    )
    lines += section("Runs", ("run", "steps", "what"), [_run_row(one) for one in found.runs], width, right=())
    remarks = _remarks(found)
    return page([*lines, *(["", *remarks] if remarks else [])])


def _headline(found: History) -> list[str]:
    steps = many(len(found.steps), "step")
    run = f" of run {found.run_id}" if found.run_id else ""
    read = f"; {size_text(found.read_bytes)} read" if found.read else ""
    clean = f"last clean step {found.clean}" if found.clean is not None else f"no clean step: {found.clean_reason}"
    if found.disagreements:
        first = found.disagreements[0]
        head = f"WRONG: {_what(first)} from step {first.first}; {clean}"
    elif not found.ok:
        head = f"WRONG: {_value(found.values[0])} in {found.values[0].parameter!r}; {clean}"
    elif found.clean is None:
        head = f"NOT COMPARED: {found.clean_reason}"
    elif found.clean != found.newest:
        head = f"SOUND where compared; {clean}, the newest is {found.newest}"
    else:
        head = f"SOUND: all ranks that hold the same agree at the newest step, {found.clean}"
    return [head, f"{steps}{run}, {many(found.world_size, 'rank')}{read}"]


def _what(one: Disagreement) -> str:
    if one.outvoted:
        return f"rank {ranks_text(one.outvoted)} differs in {one.parameter!r}"
    return f"ranks {_sides(one.sides)} differ in {one.parameter!r}"


def _sides(sides: Sequence[Sequence[int]]) -> str:
    return list_some((ranks_text(side) for side in sides), separator=" against ")


def _odd_rank(one: Disagreement) -> str:
    return ranks_text(one.outvoted) if one.outvoted else f"tie: {_sides(one.sides)}"


def _how(one: Disagreement) -> str:
    texts = []
    if one.outvoted:
        texts.append(f"outvoted by {ranks_text(one.sides[0])}")
    else:
        texts.append("a tie: nothing says which side is right")
    if one.suspects:
        texts.append(f"rank {ranks_text(one.suspects)} was outvoted in other parameters by then")
    texts.append(f"agreed at step {one.agreed_until}" if one.agreed_until is not None else "never seen to agree")
    texts.append(
        f"differ at {many(one.steps, 'step')}, until {one.last}"
        if one.last != one.first
        else "differ at this step alone"
    )
    if one.later:
        texts.append(f"later rank {ranks_text(one.later)} as well")
    if one.recorded:
        texts.append("training noticed it and recorded the parameter as rank-local")
    if one.kind is not None:
        texts.append(f"in the {one.kind} file")
    return f"{'; '.join(texts)} (by {one.source})"


def _step_rows(steps: Sequence[HistoryStep]) -> list[tuple[str, ...]]:
    """Return a row for all neighbouring steps of which the same is to be said."""
    rows: list[tuple[str, ...]] = []
    for (state, reason), held in groupby(steps, key=lambda one: (one.state, one.reason)):
        alike = list(held)
        name = str(alike[0].step) if len(alike) == 1 else f"{alike[-1].step} to {alike[0].step}"
        rows.append((name, state, reason))
    return rows


def _stopped(one: Stopped) -> str:
    where = "" if one.everywhere else "; it still changes on other ranks"
    return f"one value at the {one.steps:,} newest steps, {one.elements:,} elements{where}"


def _value(one: OddValues) -> str:
    when = f"at {one.steps:,} steps, until {one.last}" if one.steps > 1 else "at this step alone"
    if one.kind == "zero":
        return f"became all zero, {when}"
    if one.kind == "damaged":
        return f"the bytes on the disk are not those that were saved, {when}: see recover-ckpt verify"
    name = {"nan": "NaN", "inf": "Inf"}[one.kind]
    return f"{one.count:,} x {name}, {when}"


def _run_row(one: HistoryRun) -> tuple[str, str, str]:
    steps = f"{one.first} to {one.last}" if one.last is not None else "set aside"
    texts = ["followed" if one.followed else "not followed: --run follows it"]
    if one.resumed_from is not None:
        texts.append(f"goes on from step {one.resumed_from.step} of run {one.resumed_from.run_id or 'without a name'}")
    if one.until is not None and one.last is not None and one.until < one.last:
        texts.append(f"its steps after {one.until} are no part of it: another run went on from there")
    return one.run_id or "without a name", steps, "; ".join(texts)


def _remarks(found: History) -> list[str]:
    lines = []
    scalars = sorted({one.parameter for one in found.stopped if one.elements == 1})
    if scalars:
        lines.append(f"Single values that no longer change, as counters and rates may: {name_some(scalars)}")
    if found.frozen:
        lines.append(f"Never changed, and without an optimizer state: frozen or constant: {name_some(found.frozen)}")
    if found.own:
        lines.append(f"Own values of each rank, which may differ: {name_some([one.parameter for one in found.own])}")
    noticed = [one.parameter for one in found.own if one.recorded]
    if noticed:
        lines.append(
            f"  of these no step here shows {name_some(noticed)} equal: if they are no rank's own, a device is faulty"
        )
    if found.zeros:
        lines.append(f"All zero at every step: {name_some(found.zeros)}")
    if found.alone:
        lines.append(f"Ranks with parameters that no other rank here holds: {ranks_text(found.alone)}")
    lines += [f"Not judged: {text}" for text in found.unread[:_MOST]]
    if len(found.unread) > _MOST:
        lines.append(f"Not judged: {len(found.unread) - _MOST:,} more slices: see --json")
    lines += [f"Note: {text}" for text in found.notes]
    return lines
