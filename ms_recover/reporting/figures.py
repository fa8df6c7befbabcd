"""Bytes, seconds and rates as text, and when a line about progress is due."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ms_recover.reporting.tables import size_text

LINE_SECONDS = 30.0
"""A line about progress is due after so many seconds without one."""

_SMALL_BYTES = 8 << 20
_PERCENT = 10


def seconds_text(seconds: float) -> str:
    """Return a time such as ``0.21 s``, ``12 s``, ``3 min 20 s`` or ``2 h 5 min``."""
    if seconds < 10:
        return f"{seconds:.2f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def rate_text(count: int, seconds: float) -> str:
    """Return bytes a second in GB/s (10^9 bytes), such as ``1.28 GB/s`` or ``0.012 GB/s``."""
    rate = count / max(seconds, 1e-9) / 1e9
    if rate < 0.001:
        return "under 0.001 GB/s"
    return f"{rate:.2f} GB/s" if rate >= 1 else f"{rate:.3f} GB/s"


def work_line(done: str, count: int, seconds: float) -> str:
    """Return the end line of a report, such as ``Read: 12.0 GiB in 10.1 s (1.28 GB/s)``."""
    rate = f" ({rate_text(count, seconds)})" if count else ""
    return f"{done}: {size_text(count)} in {seconds_text(seconds)}{rate}"


@dataclass(frozen=True, slots=True)
class Phase:
    """How far a phase of the work is."""

    total: int
    """Bytes in all; 0 when that is not known."""
    began: float
    """Second at which it began, by a clock that only grows."""
    done: int = 0
    """Bytes."""
    line_at: float | None = None
    """Second of the last line."""
    line_percent: int = 0
    """Percent in the last line, in whole steps."""

    def line(self, what: str, now: float) -> str:
        """Return a line such as ``reading: 30 %, 3.6 GiB of 12.0 GiB, 1.28 GB/s, 7 s left``."""
        rate = rate_text(self.done, now - self.began)
        if not self.total:
            return f"{what}: {size_text(self.done)}, {rate}"
        left = (now - self.began) / self.done * max(self.total - self.done, 0) if self.done else None
        end = "time left unknown" if left is None else f"{seconds_text(left)} left"
        share = f"{_percent(self)} %, {size_text(self.done)} of {size_text(self.total)}"
        return f"{what}: {share}, {rate}, {end}"

    def due(self, now: float) -> bool:
        """Whether a line is due: another 10 % are done, but for small work, or 30 seconds have passed."""
        if now - (self.began if self.line_at is None else self.line_at) >= LINE_SECONDS:
            return True
        return self.total >= _SMALL_BYTES and _percent(self) // _PERCENT * _PERCENT > self.line_percent

    def after_line(self, now: float) -> Phase:
        """Return the phase after a line was printed."""
        return replace(self, line_at=now, line_percent=_percent(self) // _PERCENT * _PERCENT)


def _percent(phase: Phase) -> int:
    return min(phase.done * 100 // phase.total, 100) if phase.total else 0
