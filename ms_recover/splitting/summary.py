"""The text of a splitter's report, and the texts of its timeline (pure)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import median

from ms_recover.model.texts import ranks_text
from ms_recover.reporting.tables import one_line, render_table
from ms_recover.splitting.activity import busy_times, outages
from ms_recover.splitting.events import Event, ForwardReport, Rows, Span
from ms_recover.splitting.progress import Device

EVENTS = 20
"""Number of events in the report, the last ones."""
WORDS = 160
"""Longest event in the report, in characters; the log has long exceptions in full."""
_COLUMNS = ("device", "state", "parts", "process", "chunks", "rows", "busy s", "busy", "lost", "restarts")
_NUMBERS = ("process", "chunks", "rows", "busy s", "busy", "lost", "restarts")


def summary(
    devices: Sequence[Device],
    processes: Sequence[int | None],
    spans: Sequence[Span],
    events: Sequence[Event],
    reports: Sequence[ForwardReport],
) -> str:
    """Return the report of a splitter: a table of devices with their processes, a line of totals, the last events.

    Chunks and rows count when they are done. A device is busy in spans that are done or raised; its share is of the
    time from the begin of the first span of all devices to the end of the last. Events are in order of time.
    """
    busy = busy_times(spans)
    chunks: Counter[int] = Counter()
    rows: Counter[int] = Counter()
    for span in spans:
        if span.outcome == "done":
            chunks[span.device] += 1
            rows[span.device] += span.rows[1] - span.rows[0]
    lost = Counter(event.device for event in events if event.kind == "lost")
    table = [
        (
            str(device.number),
            device.status if device.status in ("retired", "out", "closed") else "ok" if device.alive else "lost",
            ranks_text(device.parts) or "-",
            "-" if process is None else str(process),
            str(chunks[device.number]),
            str(rows[device.number]),
            f"{busy.by_device.get(device.number, 0.0):.2f}",
            busy.share(device.number),
            str(lost[device.number]),
            str(max(device.generation - 1, 0)),
        )
        for device, process in zip(devices, processes, strict=True)
    ]
    blocks = [render_table(_COLUMNS, table, None, right=_NUMBERS) if table else "no devices", totals(reports)]
    if events:
        shown = events[-EVENTS:]
        heading = f"last {len(shown)} of {len(events)} events" if len(shown) < len(events) else "events"
        blocks.append("\n".join([f"{heading}:", *(_event_line(event) for event in shown)]))
    return "\n\n".join(blocks)


def totals(reports: Sequence[ForwardReport]) -> str:
    """Return the totals of all forwards, in one line."""
    if not reports:
        return "no forwards yet"
    seconds = [report.seconds for report in reports]
    return ", ".join(
        [
            counted(len(reports), "forward"),
            counted(sum(report.rows for report in reports), "row"),
            f"{sum(map(missing_rows, reports))} missing",
            f"{counted(sum(report.redone for report in reports), 'chunk')} redone",
            f"median {seconds_text(median(seconds))}",
            f"worst {seconds_text(max(seconds))}",
        ]
    )


def missing_rows(report: ForwardReport) -> int:
    """Return the number of rows without output."""
    return sum(gap.stop - gap.start for gap in report.missing)


def loss_texts(events: Sequence[Event]) -> list[tuple[Event, str]]:
    """Return every loss of a device, by time, with its moment, cause and duration, and the chunks that ran again."""
    found = [outage for of_device in outages(events).values() for outage in of_device]
    texts = []
    for loss, end in sorted(found, key=lambda outage: outage.loss.at):
        why = ": ".join(word for word in (loss.cause, loss.words) if word)
        words = [f"at {loss.at:.3f} s{f' ({one_line(why)})' if why else ''}"]
        own = [event for event in events if event.device == loss.device and event.at >= loss.at]
        if end is None:
            words.append("retired" if any(event.kind == "retired" for event in own) else "not back since")
        else:
            own = [event for event in own if event.at <= end.at]
            back = {"lost": "failed again", "removed": "removed"}.get(end.kind, "back")
            words.append(f"{back} after {seconds_text(end.at - loss.at)}")
        for kind in ("redone", "dropped"):
            count = sum(event.kind == kind for event in own)
            words += [f"{counted(count, 'chunk')} {kind}"] if count else []
        texts.append((loss, ", ".join(words)))
    return texts


def forward_text(report: ForwardReport) -> str:
    """Return the outcome of a forward, in some lines."""
    missing = missing_rows(report)
    lines = [
        f"forward {report.call}: {seconds_text(report.seconds)}",
        f"{counted(report.rows, 'row')} in {counted(report.chunks, 'chunk')}",
        f"{counted(missing, 'row')} missing" if missing else "whole",
    ]
    lines += [f"{counted(report.redone, 'chunk')} redone"] if report.redone else []
    lines += [f"lost: device {ranks_text(set(report.lost))}"] if report.lost else []
    return "\n".join(lines)


def span_text(span: Span, again: bool) -> str:
    """Return the description of a span, in some lines; `again` when its chunk was redone."""
    lines = [
        f"rows {rows_text(span.rows)} · part {span.part} · device {span.device} · forward {span.call}",
        f"began {span.began:.4f} s, took {seconds_text(span.ended - span.began)}",
        f"{span.outcome}{', a chunk redone' if again else ''}",
    ]
    return "\n".join(lines)


def event_cells(event: Event) -> list[str]:
    """Return an event as cells of a table: at, device, part, rows, how long it took, cause, words."""
    numbers = ["" if number is None else str(number) for number in (event.device, event.part)]
    rows = "" if event.rows is None else rows_text(event.rows)
    took = "" if event.seconds is None else seconds_text(event.seconds)
    return [f"{event.at:.3f} s", *numbers, rows, took, event.cause, event.words]


def rows_text(rows: Rows) -> str:
    """Return the rows of a chunk as a Python slice, such as ``0:7``."""
    return f"{rows[0]}:{rows[1]}"


def counted(count: int, noun: str) -> str:
    """Return a number with its noun, such as ``1 row`` or ``2 rows``."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def seconds_text(seconds: float) -> str:
    """Return a duration with its unit, such as ``850 us``, ``12.3 ms``, ``2.30 s`` or ``3 min 20 s``."""
    # the bounds are the values that round to the next unit: 999.96 ms is 1.00 s, not 1000.0 ms
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
