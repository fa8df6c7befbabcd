"""Events of a splitter, and reports of its forwards (pure)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

EventKind = Literal[
    "ready", "lost", "recovered", "retired", "moved", "redone", "dropped", "repaired", "reset", "removed"
]
"""ready: a device can work for the first time. lost: it died, froze, timed out or raised. recovered: a fresh process
serves it. retired: it failed too often. moved: a part went to a surviving device. redone: a chunk runs again. dropped:
a chunk is given up. repaired: a slice was restored from a replica. reset: a device, or all of them, are brought back.
removed: the caller set its state to False."""
LossCause = Literal[
    "eof",
    "reset",
    "heartbeat",
    "timeout",
    "protocol",
    "closed",
    "peer_reported",
    "cut",
    "start",
    "weights",
    "raised",
    "",
]
"""The first eight break a world, see `ms_recover.errors.BrokenWorldError`. timeout: also a chunk or a part that takes
too long. protocol: also an invalid message. start: no process started. weights: a part could not be loaded. raised: a
part raised. Empty for events that are no loss."""
Outcome = Literal["done", "lost", "raised"]
Rows = tuple[int, int]
"""First row of a chunk and the one after its last."""


def place_text(device: int | None, part: int | None) -> str:
    """Return the place of an event, such as ``device 2, part 1``; empty when there is none."""
    numbers = (("device", device), ("part", part))
    return ", ".join(f"{name} {number}" for name, number in numbers if number is not None)


@dataclass(frozen=True)
class Event:
    """Something that happened in a splitter."""

    at: float
    """Seconds since the splitter was made."""
    kind: EventKind
    device: int | None = None
    part: int | None = None
    rows: Rows | None = None
    """The chunk concerned."""
    cause: LossCause = ""
    words: str = ""
    """A description for people."""
    seconds: float | None = None
    """Duration; of ``recovered`` from the loss until the device is ready."""
    phases: tuple[tuple[str, float], ...] = ()
    """Seconds of each step of a recovery: ``start`` of a process, ``proof`` of the slice's bytes, ``weights``."""

    def __str__(self) -> str:
        rows = "" if self.rows is None else f"rows {self.rows[0]} to {self.rows[1]}"
        where = ", ".join(filter(None, (place_text(self.device, self.part), rows)))
        took = "" if self.seconds is None else f"after {self.seconds:.2f} s"
        phases = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in self.phases)
        head = " ".join(filter(None, (self.kind, where, took, phases and f"({phases})")))
        return ": ".join(filter(None, (head, self.cause, self.words)))


@dataclass(frozen=True)
class Span:
    """One chunk on one device."""

    device: int
    part: int
    call: int
    """Number of the forward, from 0."""
    rows: Rows
    began: float
    """Seconds since the splitter was made."""
    ended: float
    """The same; the duration is measured by the device, its end by this process, where that is before the device's next
    chunk begins.
    """
    outcome: Outcome = "done"


@dataclass(frozen=True)
class Missing:
    """Input rows of a forward that have no output."""

    start: int
    stop: int
    """The row after the last."""
    device: int | None
    """The device and part that failed; None when no device was left."""
    part: int | None
    cause: LossCause
    words: str
    """A description for people."""


@dataclass(frozen=True)
class ForwardReport:
    """The outcome of one forward."""

    call: int
    """Number of the forward, from 0."""
    rows: int
    """Number of rows of the input."""
    chunks: int
    """Number of chunks that the rows were cut into."""
    missing: tuple[Missing, ...] = ()
    """Missing rows in order; empty when the answer is complete."""
    redone: int = 0
    """Number of chunk runs that were repeated."""
    lost: tuple[int, ...] = ()
    """Devices lost while it ran."""
    seconds: float = 0.0
