"""What a splitter remembers and tells: events, who computed what when, what came of each forward."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Literal

from ms_recover.splitting.events import Event, ForwardReport, Missing, Span
from ms_recover.splitting.state import EmitEvent, FailForward, SplitterState

_log = logging.getLogger(__name__)
_LOUD = frozenset({"lost", "retired", "repaired"})
_MOST = 100_000
"""Events, spans and reports that are kept of each; a service runs for months."""
Rows = tuple[int, int]


class History:
    """The memory of a splitter.

    Parameters
    ----------
    on_event : callable, optional
        Told every event.
    """

    def __init__(self, on_event: Callable[[Event], None] | None) -> None:
        self._on_event = on_event
        self._began = time.perf_counter()
        self._lost_at: dict[int, float] = {}
        self.call = -1
        """Number of the forward that runs, or ran last."""
        self.events: list[Event] = []
        self.spans: list[Span] = []
        self.reports: list[ForwardReport] = []

    @property
    def now(self) -> float:
        """Seconds since the splitter was made."""
        return time.perf_counter() - self._began

    def computed(
        self, device: int, part: int, rows: Rows, began: float, outcome: Literal["done", "lost", "raised"]
    ) -> None:
        """Remember what a device did from then until now."""
        self.spans.append(
            Span(device=device, part=part, call=self.call, rows=rows, began=began, ended=self.now, outcome=outcome)
        )
        _shorten(self.spans)

    def happened(self, note: EmitEvent, rows: Rows | None, recovery: tuple[float, float] | None = None) -> None:
        """Remember and tell an event.

        Parameters
        ----------
        note : Note
        rows : tuple of int or None
            Of its chunk.
        recovery : tuple of float, optional
            When the process of a recovered device was ready, and how long proving its slices took.
        """
        now = self.now
        event = Event(
            at=now, kind=note.kind, device=note.device, part=note.part, rows=rows, cause=note.cause, words=note.words
        )
        if note.device is not None and note.kind == "lost":
            self._lost_at[note.device] = now
        if note.device is not None and recovery is not None:
            lost_at = self._lost_at.get(note.device, now)
            ready_at, proof = recovery
            phases = (("start", ready_at - lost_at), ("proof", proof), ("weights", now - ready_at - proof))
            event = replace(event, seconds=now - lost_at, phases=phases)
        self.events.append(event)
        _shorten(self.events)
        _log.log(logging.WARNING if note.kind in _LOUD else logging.INFO, "%s", event)
        if self._on_event is not None:
            try:
                self._on_event(event)
            except Exception:
                _log.exception("the callback on_event failed")

    def forward_over(
        self, chunks: Mapping[int, Rows], began: float, state: SplitterState, fault: FailForward | None
    ) -> None:
        """Remember what came of a forward; when it raises no row is there."""
        missing = []
        for number, (start, stop) in chunks.items():
            why = state.dropped.get(number) or fault
            if why is not None:
                missing.append(
                    Missing(start=start, stop=stop, device=why.device, part=why.part, cause=why.cause, words=why.words)
                )
        rows = max(stop for _, stop in chunks.values())
        lost = tuple(sorted(set(state.lost_now)))
        report = ForwardReport(
            call=self.call,
            rows=rows,
            chunks=len(chunks),
            missing=tuple(missing),
            redone=state.redone,
            lost=lost,
            seconds=self.now - began,
        )
        self.reports.append(report)
        _shorten(self.reports)


def _shorten(kept: list[Event] | list[Span] | list[ForwardReport]) -> None:
    if len(kept) > _MOST:
        del kept[: _MOST // 10]
