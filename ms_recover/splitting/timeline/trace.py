"""The timeline as trace events, for https://ui.perfetto.dev and chrome://tracing.

The format is the JSON object format of Chrome's "Trace Event Format": times are microseconds; ``X`` is a complete event
with a duration, ``i`` an instant, ``b`` and ``e`` begin and end of an asynchronous one, ``M`` the name of a thread.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ms_recover.splitting.activity import forward_extents, outages, redone_spans
from ms_recover.splitting.events import Event, ForwardReport, Span
from ms_recover.splitting.summary import rows_text
from ms_recover.stores.atomic import write_small


def write_trace(
    page: str | os.PathLike[str], spans: Sequence[Span], events: Sequence[Event], reports: Sequence[ForwardReport]
) -> None:
    """Write the trace events beside a page, ``timeline.trace.json`` beside ``timeline.html``, like `write_timeline`."""
    trace = {"displayTimeUnit": "ms", "traceEvents": trace_events(spans, events, reports)}
    write_small(Path(page).with_suffix(".trace.json"), (json.dumps(trace, separators=(",", ":")) + "\n").encode())


def trace_events(
    spans: Sequence[Span], events: Sequence[Event], reports: Sequence[ForwardReport]
) -> list[dict[str, Any]]:
    """Return the trace events: names of threads, forwards, chunks, outages, events."""
    spans = sorted(spans, key=lambda span: (span.began, span.device))
    events = sorted(events, key=lambda event: event.at)
    devices = {span.device for span in spans} | {event.device for event in events if event.device is not None}
    names: dict[int | None, str] = {None: "forwards", **{device: f"device {device}" for device in sorted(devices)}}
    found = [_entry("M", "thread_name", device, args={"name": name}) for device, name in names.items()]
    known = {report.call: asdict(report) for report in reports}
    for call, (began, ended) in sorted(forward_extents(spans).items()):
        args = known.get(call, {"call": call})
        found.append(_entry("X", f"forward {call}", None, began, dur=_microseconds(ended - began), args=args))
    redone = redone_spans(spans, events)
    for index, span in enumerate(spans):
        args = {"part": span.part, "call": span.call, "outcome": span.outcome, "redone": index in redone}
        took = _microseconds(span.ended - span.began)
        found.append(_entry("X", f"rows {rows_text(span.rows)}", span.device, span.began, dur=took, args=args))
    for device, of_device in outages(events).items():
        for number, outage in enumerate(of_device):
            for phase, event in (("b", outage.loss), ("e", outage.end)):
                if event is not None:
                    found.append(_entry(phase, "down", device, event.at, cat="outage", id=f"{device}.{number}"))
    for event in events:
        args = {key: value for key, value in asdict(event).items() if value not in (None, "", ())}
        found.append(_entry("i", event.kind, event.device, event.at, s="g" if event.device is None else "t", args=args))
    return found


def _entry(phase: str, name: str, device: int | None, at: float = 0.0, **others: Any) -> dict[str, Any]:
    """Return a trace event; thread 0 is that of forwards and of events of no device, n + 1 that of device n."""
    thread = 0 if device is None else device + 1
    return {"ph": phase, "name": name, "pid": 0, "tid": thread, "ts": _microseconds(at), **others}


def _microseconds(seconds: float) -> float:
    return round(seconds * 1e6, 3)
