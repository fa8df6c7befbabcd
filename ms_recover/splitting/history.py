"""The history of a splitter: events, computed chunks and forward reports."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping

from ms_recover.splitting.activity import in_turn
from ms_recover.splitting.events import Event, ForwardReport, Missing, Outcome, Rows, Span
from ms_recover.splitting.instructions import EmitEvent, FailForward, FinishForward
from ms_recover.splitting.progress import Forward

_log = logging.getLogger(__name__)
_WARNINGS = frozenset({"lost", "retired", "repaired"})
_MOST = 100_000
"""Most events, spans and reports kept of each: a service runs for months."""


class History:
    """Keeps what happened, and calls `on_event` with every event."""

    def __init__(self, on_event: Callable[[Event], None] | None) -> None:
        self._on_event = on_event
        self._began = time.perf_counter()
        self._lost_at: dict[int, float] = {}
        self.call = -1
        """Number of the forward that runs, or ran last."""
        self.events: deque[Event] = deque(maxlen=_MOST)
        self.spans: deque[Span] = deque(maxlen=_MOST)
        self.reports: deque[ForwardReport] = deque(maxlen=_MOST)

    @property
    def last_report(self) -> ForwardReport | None:
        """The report of the last forward."""
        return self.reports[-1] if self.reports else None

    @property
    def happened(self) -> tuple[tuple[Span, ...], tuple[Event, ...], tuple[ForwardReport, ...]]:
        """The spans in turn, the events and the reports until now, oldest first."""
        return in_turn(self.spans), tuple(self.events), tuple(self.reports)

    @property
    def now(self) -> float:
        """Seconds since the splitter was made."""
        return time.perf_counter() - self._began

    def add_span(self, device: int, part: int, rows: Rows, began: float, outcome: Outcome) -> None:
        """Add a chunk that a device computed from `began` until now."""
        self.spans.append(
            Span(device=device, part=part, call=self.call, rows=rows, began=began, ended=self.now, outcome=outcome)
        )

    def add_event(self, event: EmitEvent, rows: Rows | None, ready_at: float | None = None, proof: float = 0.0) -> None:
        """Add an event, log it and report it.

        Of a device that is back: its process was connected at `ready_at`, `proof` seconds went into proving its slices.
        """
        now = self.now
        lost_at = now if event.device is None else self._lost_at.get(event.device, now)
        if event.device is not None and event.kind in ("lost", "removed"):
            self._lost_at[event.device] = now
        phases: tuple[tuple[str, float], ...] = ()
        if ready_at is not None:
            phases = (("start", ready_at - lost_at), ("proof", proof), ("weights", now - ready_at - proof))
        added = Event(
            at=now,
            kind=event.kind,
            device=event.device,
            part=event.part,
            rows=rows,
            cause=event.cause,
            words=event.words,
            seconds=now - lost_at if phases else None,
            phases=phases,
        )
        self.events.append(added)
        _log.log(logging.WARNING if event.kind in _WARNINGS else logging.INFO, "%s", added)
        if self._on_event is not None:
            try:
                self._on_event(added)
            except Exception:
                _log.exception("the callback on_event failed")

    def add_report(
        self, chunks: Mapping[int, Rows], began: float, forward: Forward, result: FinishForward | FailForward
    ) -> None:
        """Add the report of a forward; one that failed lacks all rows."""
        failure = result if isinstance(result, FailForward) else None
        missing = [
            Missing(start=start, stop=stop, device=why.device, part=why.part, cause=why.cause, words=why.words)
            for number, (start, stop) in chunks.items()
            if (why := forward.dropped.get(number) or failure) is not None
        ]
        self.reports.append(
            ForwardReport(
                call=self.call,
                rows=max(stop for _, stop in chunks.values()),
                chunks=len(chunks),
                missing=tuple(missing),
                redone=forward.redone,
                lost=tuple(sorted(set(forward.lost))),
                seconds=self.now - began,
            )
        )
