"""The timeline as trace events, for https://ui.perfetto.dev and chrome://tracing.

The format is the JSON object format of Chrome's "Trace Event Format": times are microseconds; ``X`` is a complete event
with a duration, ``i`` an instant, ``b`` and ``e`` begin and end of an asynchronous one, ``M`` the name of a thread.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ms_recover.splitting.activity import forward_extents, outages, redone_spans
from ms_recover.splitting.events import Event, ForwardReport, Span
from ms_recover.splitting.summary import rows_text
from ms_recover.storage.local import write_text

_FORWARDS = 0
"""The thread of forwards and of events that concern no single device; device n is thread n + 1."""


def trace_path(page: str | os.PathLike[str]) -> str:
    """Return the path of the trace beside a page: ``timeline.trace.json`` beside ``timeline.html``."""
    return str(Path(page).with_suffix(".trace.json"))


def write_trace(
    path: str | os.PathLike[str], spans: Sequence[Span], events: Sequence[Event], reports: Sequence[ForwardReport]
) -> None:
    """Write the trace events whole or not at all; an existing file is replaced.

    Raises
    ------
    StorageError
        When it cannot be written.
    """
    trace = {"displayTimeUnit": "ms", "traceEvents": trace_events(spans, events, reports)}
    write_text(os.fspath(path), json.dumps(trace, separators=(",", ":")) + "\n")


def trace_events(
    spans: Sequence[Span], events: Sequence[Event], reports: Sequence[ForwardReport]
) -> list[dict[str, Any]]:
    """Return the trace events: threads, forwards, chunks, outages and events, all of them."""
    spans = sorted(spans, key=lambda span: (span.began, span.device))
    events = sorted(events, key=lambda event: event.at)
    return [
        *_threads(spans, events),
        *_forwards(spans, reports),
        *_chunks(spans, events),
        *_outages(events),
        *map(_instant, events),
    ]


def _threads(spans: Sequence[Span], events: Sequence[Event]) -> Iterator[dict[str, Any]]:
    devices = {span.device for span in spans} | {event.device for event in events if event.device is not None}
    names = {_FORWARDS: "forwards", **{_thread(device): f"device {device}" for device in sorted(devices)}}
    yield {"ph": "M", "name": "process_name", "pid": 0, "args": {"name": "split model"}}
    for thread, name in names.items():
        yield {"ph": "M", "name": "thread_name", "pid": 0, "tid": thread, "args": {"name": name}}
        yield {"ph": "M", "name": "thread_sort_index", "pid": 0, "tid": thread, "args": {"sort_index": thread}}


def _forwards(spans: Sequence[Span], reports: Sequence[ForwardReport]) -> Iterator[dict[str, Any]]:
    known = {report.call: report for report in reports}
    for call, (began, ended) in sorted(forward_extents(spans).items()):
        args = asdict(known[call]) if call in known else {"call": call}
        yield _complete(f"forward {call}", "forward", _FORWARDS, began, ended, args)


def _chunks(spans: Sequence[Span], events: Sequence[Event]) -> Iterator[dict[str, Any]]:
    redone = redone_spans(spans, events)
    for index, span in enumerate(spans):
        args = {"part": span.part, "call": span.call, "outcome": span.outcome, "redone": index in redone}
        name = f"rows {rows_text(span.rows)}"
        yield _complete(name, span.outcome, _thread(span.device), span.began, span.ended, args)


def _outages(events: Sequence[Event]) -> Iterator[dict[str, Any]]:
    for device, of_device in outages(events).items():
        for number, (loss, end) in enumerate(of_device):
            event = {"name": "down", "cat": "outage", "id": f"{device}.{number}", "pid": 0, "tid": _thread(device)}
            yield {"ph": "b", "ts": _microseconds(loss.at), "args": {"cause": loss.cause, "words": loss.words}, **event}
            if end is not None:
                yield {"ph": "e", "ts": _microseconds(end.at), **event}


def _instant(event: Event) -> dict[str, Any]:
    scope = {"s": "g", "tid": _FORWARDS} if event.device is None else {"s": "t", "tid": _thread(event.device)}
    args = {key: value for key, value in asdict(event).items() if key not in ("at", "kind") and value not in (None, "")}
    return {
        "ph": "i",
        "name": event.kind,
        "cat": "event",
        "ts": _microseconds(event.at),
        "pid": 0,
        "args": args,
        **scope,
    }


def _complete(
    name: str, category: str, thread: int, began: float, ended: float, args: dict[str, Any]
) -> dict[str, Any]:
    times = {"ts": _microseconds(began), "dur": _microseconds(ended - began)}
    return {"ph": "X", "name": name, "cat": category, "pid": 0, "tid": thread, "args": args, **times}


def _thread(device: int) -> int:
    return device + 1


def _microseconds(seconds: float) -> float:
    return round(seconds * 1e6, 3)
