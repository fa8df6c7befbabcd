"""Busy times, outages and repeated chunks, from a splitter's spans and events (pure)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import inf
from typing import NamedTuple

from ms_recover.splitting.events import Event, Rows, Span


class Outage(NamedTuple):
    """The loss of a device, or that it was taken out, and the event that ended it; None while it lasts."""

    loss: Event
    end: Event | None


class BusyTimes(NamedTuple):
    """The computing seconds of each device, and those between the begin of the first span and the end of the last."""

    by_device: dict[int, float]
    window: float

    def share(self, device: int) -> str:
        """Return a device's share of the window as a percentage; ``-`` when the window is empty."""
        return f"{self.by_device.get(device, 0.0) / self.window:.0%}" if self.window > 0 else "-"


def in_turn(spans: Iterable[Span]) -> tuple[Span, ...]:
    """Return spans, in order of their begin, in which no device computes two chunks at once.

    A device computes one chunk after the other. The end of a span is the moment at which this process has taken the
    answer, which may be late: so it is no later than the begin of the device's next one.
    """
    by_device: dict[int, list[Span]] = defaultdict(list)
    for span in spans:
        by_device[span.device].append(span)
    found = []
    for own in by_device.values():
        begin = inf
        for span in sorted(own, key=lambda one: one.ended, reverse=True):
            late = max(span.ended - begin, 0.0)
            found.append(replace(span, began=span.began - late, ended=span.ended - late) if late else span)
            begin = found[-1].began
    return tuple(sorted(found, key=lambda span: (span.began, span.device)))


def busy_times(spans: Sequence[Span]) -> BusyTimes:
    """Return how long each device computed; spans that were lost with a device do not count."""
    found: dict[int, float] = defaultdict(float)
    for span in spans:
        if span.outcome != "lost":  # the moment at which a frozen device stopped is unknown
            found[span.device] += span.ended - span.began
    began = min((span.began for span in spans), default=0.0)
    ended = max((span.ended for span in spans), default=0.0)
    return BusyTimes(found, ended - began)


def outages(events: Iterable[Event]) -> dict[int, list[Outage]]:
    """Return the outages of each device, from events in order of time.

    An outage ends with ``recovered`` or ``ready``, or with the next loss: a fresh process that was never ready.
    """
    found: dict[int, list[Outage]] = defaultdict(list)
    for event in events:
        if event.device is None:
            continue
        own = found[event.device]
        if event.kind in ("lost", "removed", "recovered", "ready") and own and own[-1].end is None:
            own[-1] = Outage(own[-1].loss, event)
        if event.kind in ("lost", "removed"):
            own.append(Outage(event, None))
    return found


def redone_spans(spans: Sequence[Span], events: Iterable[Event]) -> set[int]:
    """Return the indexes of the spans that repeat a chunk: after each event ``redone`` the first of its chunk and part.

    The spans are in order of their begin.
    """
    of_chunk: dict[tuple[int | None, Rows | None], list[int]] = defaultdict(list)
    for index, span in enumerate(spans):
        of_chunk[span.part, span.rows].append(index)
    redone = [(event.at, of_chunk[event.part, event.rows]) for event in events if event.kind == "redone"]
    firsts = (next((index for index in own if spans[index].began >= at), None) for at, own in redone)
    return {index for index in firsts if index is not None}


def group_events(events: Iterable[Event], near: float) -> list[list[Event]]:
    """Return events, in order of time, grouped by kind and moment: those less than `near` seconds apart together."""
    groups: list[list[Event]] = []
    for event in events:
        same = [group for group in groups[-8:] if group[0].kind == event.kind and event.at - group[0].at < near]
        if same:
            same[-1].append(event)
        else:
            groups.append([event])
    return groups


def forward_extents(spans: Iterable[Span]) -> dict[int, tuple[float, float]]:
    """Return for each forward the begin of its first span and the end of its last."""
    found: dict[int, tuple[float, float]] = {}
    for span in spans:
        began, ended = found.get(span.call, (span.began, span.ended))
        found[span.call] = min(began, span.began), max(ended, span.ended)
    return found


def chunk_positions(spans: Iterable[Span]) -> dict[tuple[int, Rows], tuple[int, int]]:
    """Return for each forward and chunk the chunk's position, from 0, and the number of chunks."""
    of_call: dict[int, set[Rows]] = defaultdict(set)
    for span in spans:
        of_call[span.call].add(span.rows)
    return {
        (call, rows): (position, len(chunks))
        for call, chunks in of_call.items()
        for position, rows in enumerate(sorted(chunks))
    }
