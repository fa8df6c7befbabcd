"""What a splitter's devices did, in words (pure)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil, floor
from statistics import median

from ms_recover.reporting.tables import one_line, ranks_text, render_table
from ms_recover.splitting.events import Event, ForwardReport, Span

EVENTS = 20
"""Events shown, the last ones."""
WORDS = 160
"""Characters of an event shown: what an exception says can be long, and is whole in the log."""
STEPS = [float(f"{m}e{e}") for e in range(-6, 2) for m in (1, 2, 5)]
STEPS += [60.0 * m for m in (1, 2, 5, 10, 30, 60, 120, 360, 720, 1440, 10080)]
"""Seconds between ticks of an axis: 1 us to 50 s, then 1 min to a week."""
_COLUMNS = ("device", "state", "parts", "process", "chunks", "rows", "busy s", "busy", "lost", "restarts")
_NUMBERS = ("process", "chunks", "rows", "busy s", "busy", "lost", "restarts")


@dataclass(frozen=True)
class DeviceRow:
    """One device as it is now.

    Parameters
    ----------
    device : int
    alive : bool
        It can work.
    retired : bool
        It failed too often and gets no process any more.
    parts : tuple of int
        That it holds.
    process : int or None
        Number of the process that serves it, if any.
    restarts : int
        Fresh processes that it was given.
    """

    device: int
    alive: bool
    retired: bool
    parts: tuple[int, ...]
    process: int | None
    restarts: int


def summary(
    devices: Sequence[DeviceRow], spans: Sequence[Span], events: Sequence[Event], reports: Sequence[ForwardReport]
) -> str:
    """Return what the devices did: a table of devices, a line of totals, the last events.

    Parameters
    ----------
    devices : sequence of DeviceRow
    spans : sequence of Span
        Chunks and rows are those of spans that are done; a device is busy in these and in those that raised, and its
        share is of the time between the begin of the first span and the end of the last, of all devices.
    events : sequence of Event
        In order of time.
    reports : sequence of ForwardReport
    """
    seconds, window = busy(spans)
    chunks: Counter[int] = Counter()
    rows: Counter[int] = Counter()
    for span in spans:
        if span.outcome == "done":
            chunks[span.device] += 1
            rows[span.device] += span.rows[1] - span.rows[0]
    lost = Counter(event.device for event in events if event.kind == "lost")
    table = [
        (
            str(row.device),
            "retired" if row.retired else "ok" if row.alive else "lost",
            ranks_text(row.parts) or "-",
            "-" if row.process is None else str(row.process),
            str(chunks[row.device]),
            str(rows[row.device]),
            f"{seconds.get(row.device, 0.0):.2f}",
            f"{seconds.get(row.device, 0.0) / window:.0%}" if window > 0 else "-",
            str(lost[row.device]),
            str(row.restarts),
        )
        for row in devices
    ]
    blocks = [render_table(_COLUMNS, table, None, right=_NUMBERS) if table else "no devices", totals(reports)]
    if events:
        shown = events[-EVENTS:]
        heading = f"last {len(shown)} of {len(events)} events" if len(shown) < len(events) else "events"
        blocks.append("\n".join([f"{heading}:", *(_event_line(event) for event in shown)]))
    return "\n\n".join(blocks)


def totals(reports: Sequence[ForwardReport]) -> str:
    """Return what all forwards together came to, in one line."""
    if not reports:
        return "no forwards yet"
    seconds = [report.seconds for report in reports]
    missing = sum(gap.stop - gap.start for report in reports for gap in report.missing)
    return ", ".join(
        [
            counted(len(reports), "forward"),
            counted(sum(report.rows for report in reports), "row"),
            f"{missing} missing",
            f"{counted(sum(report.redone for report in reports), 'chunk')} redone",
            f"median {seconds_text(median(seconds))}",
            f"worst {seconds_text(max(seconds))}",
        ]
    )


def outages(events: Iterable[Event]) -> dict[int, list[tuple[Event, Event | None]]]:
    """Return for each device its losses, each with what ended it; None when it lasts to this day.

    What ends a loss is ``recovered`` or ``ready``, or the next ``lost``: its fresh process failed before it was ready.

    Parameters
    ----------
    events : iterable of Event
        In order of time.
    """
    found: dict[int, list[tuple[Event, Event | None]]] = {}
    for event in events:
        if event.device is None:
            continue
        own = found.setdefault(event.device, [])
        if event.kind in ("lost", "recovered", "ready") and own and own[-1][1] is None:
            own[-1] = (own[-1][0], event)
        if event.kind == "lost":
            own.append((event, None))
    return found


def losses(events: Sequence[Event]) -> list[tuple[Event, str]]:
    """Return every loss of a device, by time, with when, why, until when it was away and how many chunks ran again."""
    pairs = [pair for found in outages(events).values() for pair in found]
    told = []
    for loss, end in sorted(pairs, key=lambda pair: pair[0].at):
        why = ": ".join(word for word in (loss.cause, loss.words) if word)
        words = [f"at {loss.at:.3f} s{f' ({one_line(why)})' if why else ''}"]
        own = [event for event in events if event.device == loss.device and event.at >= loss.at]
        if end is None:
            words.append("retired" if any(event.kind == "retired" for event in own) else "not back since")
        else:
            own = [event for event in own if event.at <= end.at]
            back = "failed again" if end.kind == "lost" else "back"
            words.append(f"{back} after {seconds_text(end.at - loss.at)}")
        for kind in ("redone", "dropped"):
            count = sum(event.kind == kind for event in own)
            words += [f"{counted(count, 'chunk')} {kind}"] if count else []
        told.append((loss, ", ".join(words)))
    return told


def redone_spans(spans: Sequence[Span], events: Iterable[Event]) -> set[int]:
    """Return which spans did a chunk again: the first of this chunk and part that began after each such event.

    Parameters
    ----------
    spans : sequence of Span
        In order of their begin.
    events : iterable of Event
    """
    of_chunk: dict[tuple[int | None, tuple[int, int] | None], list[int]] = {}
    for index, span in enumerate(spans):
        of_chunk.setdefault((span.part, span.rows), []).append(index)
    found: set[int] = set()
    for event in events:
        if event.kind == "redone":
            candidates = of_chunk.get((event.part, event.rows), [])
            first = next((index for index in candidates if spans[index].began >= event.at), None)
            found |= set() if first is None else {first}
    return found


def busy(spans: Sequence[Span]) -> tuple[dict[int, float], float]:
    """Return how long each device computed, and how long it was from the begin of the first span to the last's end."""
    found: dict[int, float] = {}
    for span in spans:
        if span.outcome != "lost":  # when a frozen device stopped computing, nobody knows
            found[span.device] = found.get(span.device, 0.0) + span.ended - span.began
    ended, began = max((span.ended for span in spans), default=0.0), min((span.began for span in spans), default=0.0)
    return found, ended - began


def together(events: Iterable[Event], near: float) -> list[list[Event]]:
    """Return events, in order of time, with those of one kind that are less than `near` seconds apart as one group."""
    groups: list[list[Event]] = []
    for event in events:
        same = [group for group in groups[-8:] if group[0].kind == event.kind and event.at - group[0].at < near]
        if same:
            same[-1].append(event)
        else:
            groups.append([event])
    return groups


def extents(spans: Iterable[Span]) -> dict[int, tuple[float, float]]:
    """Return for each forward the begin of its first span and the end of its last."""
    found: dict[int, tuple[float, float]] = {}
    for span in spans:
        began, ended = found.get(span.call, (span.began, span.ended))
        found[span.call] = min(began, span.began), max(ended, span.ended)
    return found


def forward_words(report: ForwardReport) -> str:
    """Return what came of a forward, in some lines."""
    missing = sum(gap.stop - gap.start for gap in report.missing)
    lines = [
        f"forward {report.call}: {seconds_text(report.seconds)}",
        f"{counted(report.rows, 'row')} in {counted(report.chunks, 'chunk')}",
        f"{counted(missing, 'row')} missing" if missing else "whole",
    ]
    lines += [f"{counted(report.redone, 'chunk')} redone"] if report.redone else []
    lines += [f"lost: device {ranks_text(set(report.lost))}"] if report.lost else []
    return "\n".join(lines)


def span_words(span: Span, again: bool) -> str:
    """Return what is known of a span, in some lines; `again` when its chunk was redone."""
    lines = [
        f"rows {rows_text(span.rows)} · part {span.part} · device {span.device} · forward {span.call}",
        f"began {span.began:.4f} s, took {seconds_text(span.ended - span.began)}",
        f"{span.outcome}{', a chunk redone' if again else ''}",
    ]
    return "\n".join(lines)


def chunk_places(spans: Iterable[Span]) -> dict[tuple[int, tuple[int, int]], tuple[int, int]]:
    """Return for each forward and chunk which of how many it is."""
    of_call: dict[int, set[tuple[int, int]]] = {}
    for span in spans:
        of_call.setdefault(span.call, set()).add(span.rows)
    return {
        (call, rows): (place, len(chunks))
        for call, chunks in of_call.items()
        for place, rows in enumerate(sorted(chunks))
    }


def event_cells(event: Event) -> list[str]:
    """Return an event as cells of a table: at, device, part, rows, how long it took, cause, words."""
    numbers = ["" if number is None else str(number) for number in (event.device, event.part)]
    rows = "" if event.rows is None else rows_text(event.rows)
    took = "" if event.seconds is None else seconds_text(event.seconds)
    return [f"{event.at:.3f} s", *numbers, rows, took, event.cause, event.words]


def rows_text(rows: tuple[int, int]) -> str:
    """Return the rows of a chunk as Python cuts them, such as ``0:7``."""
    return f"{rows[0]}:{rows[1]}"


def ticks(start: float, end: float, most: int) -> list[tuple[float, str]]:
    """Return at most about so many round moments with their names, for an axis of seconds."""
    step = next((step for step in STEPS if (end - start) / step <= most), STEPS[-1])
    decimals = next((places for places in range(7) if step * 10**places >= 0.999), 6)
    found = []
    for number in range(ceil(start / step), min(floor(end / step), ceil(start / step) + 4 * most) + 1):
        moment = number * step
        if step >= 60:
            name = f"{moment / 60:.0f} min"
        else:
            name = f"{moment * 1e3:.{max(decimals - 3, 0)}f} ms" if end < 1 else f"{moment:.{decimals}f} s"
        found.append((moment, name))
    return found


def counted(count: int, noun: str) -> str:
    """Return a number with its noun, such as ``1 row`` or ``2 rows``."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def seconds_text(seconds: float) -> str:
    """Return a time as people read it, such as ``850 us``, ``12.3 ms``, ``2.30 s`` or ``3 min 20 s``."""
    # The bounds are where rounding would reach the next unit: 999.96 ms is 1.00 s, not 1000.0 ms.
    if abs(seconds) < 0.0009995:
        return f"{seconds * 1e6:.0f} us"
    if abs(seconds) < 0.99995:
        return f"{seconds * 1e3:.1f} ms"
    if abs(seconds) < 119.995:
        return f"{seconds:.2f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s"


def _event_line(event: Event) -> str:
    words = one_line(str(event).strip())
    return f"{event.at:10.3f} s  {words if len(words) <= WORDS else words[: WORDS - 3] + '...'}"
