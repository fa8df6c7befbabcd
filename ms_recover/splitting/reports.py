"""What a splitter tells about its work: events, reports, a summary, and a page."""

from __future__ import annotations

import os
import sys

from ms_recover.splitting.activity import in_turn
from ms_recover.splitting.devices import Devices
from ms_recover.splitting.events import Event, ForwardReport, Span
from ms_recover.splitting.history import History
from ms_recover.splitting.summary import summary
from ms_recover.splitting.timeline.page import write_timeline
from ms_recover.splitting.timeline.trace import write_trace


class Reports:
    """The part of a splitter that only looks."""

    _history: History
    _devices: Devices

    @property
    def processes(self) -> list[int | None]:
        """For each device the id of its process; None while it has none on this host."""
        return self._devices.processes

    @property
    def last_report(self) -> ForwardReport | None:
        """The report of the last forward."""
        return self._history.reports[-1] if self._history.reports else None

    @property
    def events(self) -> tuple[Event, ...]:
        """The events since the splitter was made, oldest first."""
        return tuple(self._history.events)

    @property
    def spans(self) -> tuple[Span, ...]:
        """The chunks that each device computed, with their times."""
        return in_turn(self._history.spans)

    @property
    def spares(self) -> int:
        """Number of idle processes that can take over."""
        return len(self._devices.pool.spares)

    @property
    def now(self) -> float:
        """Seconds since the splitter was made: the clock of events and spans."""
        return self._history.now

    def report(self) -> None:
        """Print the work of each device, the totals and the last events."""
        sys.stdout.write(self.summary() + "\n")

    def summary(self) -> str:
        """Return the text that `report` prints."""
        return summary(self._devices.state.devices, self.processes, *self._happened())

    def timeline(self, path: str | os.PathLike[str]) -> None:
        """Write a page that shows the chunks and faults of each device over time.

        Beside the page, with the ending ``.trace.json``, the same is written as trace events: open that file in
        https://ui.perfetto.dev or chrome://tracing.

        Parameters
        ----------
        path : path
            Such as ``timeline.html``, with ``timeline.trace.json`` beside it. Existing files are replaced.

        Raises
        ------
        UsageError
            When the path is invalid.
        StorageError
            When a file cannot be written.
        """
        happened = self._happened()
        write_timeline(path, *happened)
        write_trace(path, *happened)

    def _happened(self) -> tuple[tuple[Span, ...], tuple[Event, ...], tuple[ForwardReport, ...]]:
        return self.spans, self.events, tuple(self._history.reports)
