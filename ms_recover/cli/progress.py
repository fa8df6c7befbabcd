"""Progress on standard error: a bar on a terminal, plain lines elsewhere, nothing beside JSON."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import IO, TYPE_CHECKING, Any

from ms_recover.cli.output import print_error

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from ms_recover.reporting.figures import Phase

_TICK_SECONDS = 1.0
_NARROW = 60
_JOIN_SECONDS = 5.0


class Meter:
    """Counts bytes from any thread, and shows nothing; also the callback of the verbs."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.done = 0
        self.began: float | None = None
        self.last = self.ended = 0.0
        self.lock = threading.Lock()

    def __call__(self, count: int) -> None:
        """Take the bytes since the last call."""
        now = time.monotonic()
        with self.lock:
            if self.began is None:
                self.began = now
            self.done += count
            self.last = now
            self.show(count, now)

    def expect(self, total: int) -> None:
        """Begin a phase of so many bytes."""
        now = time.monotonic()
        with self.lock:
            if self.began is None:
                self.began = now
            self.begin(total, now)

    def show(self, count: int, now: float) -> None:
        """Show that more bytes are done."""

    def begin(self, total: int, now: float) -> None:
        """Show that a phase begins."""

    def close(self) -> None:
        """End what is shown."""
        self.ended = time.monotonic()

    @property
    def seconds(self) -> float:
        """Seconds from the first phase to the last bytes."""
        return max(self.last - self.began, 0.0) if self.began is not None else 0.0

    @property
    def seconds_to_end(self) -> float:
        """Seconds from the first phase to the end of the work."""
        return self.ended - self.began if self.began is not None else 0.0


class _Lines(Meter):
    """Lines for a file or a pipe: one every 10 % and one every 30 s, also while no byte comes."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self._phase: Phase | None = None
        self._over = threading.Event()
        self._ticker: threading.Thread | None = None

    def begin(self, total: int, now: float) -> None:
        self._begin(total, now)

    def _begin(self, total: int, now: float) -> Phase:
        from ms_recover.reporting.figures import Phase

        if self._ticker is None:
            self._ticker = threading.Thread(target=self._tick, name="progress", daemon=True)
            self._ticker.start()
        self._phase = Phase(total, now)
        return self._phase

    def show(self, count: int, now: float) -> None:
        phase = self._phase or self._begin(0, now)
        self._phase = replace(phase, done=phase.done + count)
        self._print_when_due(self._phase, now)

    def _print_when_due(self, phase: Phase, now: float) -> None:
        if phase.due(now):
            print_error(f"recover-ckpt: {phase.line(self.what, now)}")
            self._phase = phase.after_line(now)

    def _tick(self) -> None:
        while not self._over.wait(_TICK_SECONDS):
            with self.lock:
                if self._phase is not None:
                    self._print_when_due(self._phase, time.monotonic())

    def close(self) -> None:
        super().close()
        self._over.set()
        if self._ticker is not None:
            with suppress(RuntimeError):  # an interrupt came while it was started: it ends by itself
                self._ticker.join(_JOIN_SECONDS)


class _Bar(Meter):
    """A bar on a terminal, from the first bytes on."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self._total = 0
        self._task: TaskID | None = None
        self._bar: Progress | None = None

    def begin(self, total: int, now: float) -> None:
        self._total += total
        bar, task = self._shown()
        bar.update(task, total=self._total)

    def show(self, count: int, now: float) -> None:
        bar, task = self._shown()
        bar.advance(task, count)

    def _shown(self) -> tuple[Progress, TaskID]:
        if self._bar is None:
            self._bar = _make_bar()
        if self._task is None:
            self._task = self._bar.add_task(self.what, total=self._total or None)
            self._bar.start()
        return self._bar, self._task

    def close(self) -> None:
        super().close()
        if self._bar is not None:
            self._bar.stop()


class _Lenient:
    """A terminal that may go away: what can no longer be written is dropped."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with suppress(OSError, ValueError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError, ValueError):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def progress_bar(what: str, total: int | None, as_json: bool) -> Iterator[Meter]:
    """Show progress on standard error, and count bytes and seconds; with `as_json` only count.

    The `total` is in bytes; None when the verb announces it.
    """
    shown = _Bar if _is_terminal(sys.stderr) else _Lines
    meter = Meter(what) if as_json or sys.stderr is None else shown(what)
    try:
        if total:
            meter.expect(total)
        yield meter
    finally:
        meter.close()


def _is_terminal(stream: IO[str] | None) -> bool:
    try:
        return stream is not None and stream.isatty() and os.environ.get("TERM") != "dumb"
    except ValueError:  # closed
        return False


def _make_bar() -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    console = Console(file=_Lenient(sys.stderr), force_terminal=True)  # type: ignore[arg-type]
    columns = (
        TextColumn("{task.description}"),
        *([BarColumn()] if console.width >= _NARROW else []),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    return Progress(*columns, console=console, transient=True)
