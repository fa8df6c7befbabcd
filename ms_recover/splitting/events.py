"""What happens in a splitter, and what came of a forward (pure nouns)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

EventKind = Literal["ready", "lost", "recovered", "retired", "moved", "redone", "dropped", "repaired", "reset"]
"""ready: a device can work for the first time; lost: it died, froze, timed out or raised; recovered: a fresh process
has taken its place; retired: it failed too often; moved: a part went to a survivor; redone: a chunk runs again;
dropped: a chunk is given up; repaired: a slice was restored from a replica's; reset: all devices are brought back."""


@dataclass(frozen=True)
class Event:
    """Something worth telling.

    Parameters
    ----------
    at : float
        Seconds since the splitter was made.
    kind : str
    device : int or None
    part : int or None
    rows : tuple of int or None
        First row and the one behind the last, of the chunk that it is about.
    cause : str
        eof, reset, heartbeat, timeout, raised, start, ... for what was lost, else empty.
    words : str
        For people.
    seconds : float or None
        How long it took, where it took time: of ``recovered`` from the loss to readiness.
    phases : tuple of (str, float)
        What those seconds went into: ``start`` of a process, ``proof`` of the slice's bytes, ``weights``.
    """

    at: float
    kind: EventKind
    device: int | None = None
    part: int | None = None
    rows: tuple[int, int] | None = None
    cause: str = ""
    words: str = ""
    seconds: float | None = None
    phases: tuple[tuple[str, float], ...] = ()

    def __str__(self) -> str:
        where = [
            f"{name} {value}" for name, value in (("device", self.device), ("part", self.part)) if value is not None
        ]
        if self.rows is not None:
            where.append(f"rows {self.rows[0]} to {self.rows[1]}")
        took = "" if self.seconds is None else f" after {self.seconds:.2f} s"
        parts = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in self.phases)
        told = " ".join([self.kind, ", ".join(where)]).rstrip() + took + (parts and f" ({parts})")
        return ": ".join(word for word in (told, self.cause, self.words) if word)


@dataclass(frozen=True)
class Span:
    """One chunk on one device.

    Parameters
    ----------
    device, part : int
    call : int
        Number of the forward, from 0.
    rows : tuple of int
        First row and the one behind the last.
    began, ended : float
        Seconds since the splitter was made; what the device computed, as it says, placed by the parent's clock.
    outcome : {"done", "lost", "raised"}
    """

    device: int
    part: int
    call: int
    rows: tuple[int, int]
    began: float
    ended: float
    outcome: Literal["done", "lost", "raised"] = "done"


@dataclass(frozen=True)
class Missing:
    """Rows of a forward's input for which there is no output.

    Parameters
    ----------
    start, stop : int
        First row and the one behind the last.
    device, part : int or None
        What failed: None when no device was left to fail.
    cause, words : str
        Why, as in the event.
    """

    start: int
    stop: int
    device: int | None
    part: int | None
    cause: str
    words: str


@dataclass(frozen=True)
class ForwardReport:
    """What came of one forward.

    Parameters
    ----------
    call : int
        Number of the forward, from 0.
    rows : int
        Of the input.
    chunks : int
        Pieces that the rows were cut into.
    missing : tuple of Missing
        By row; empty when the answer is whole.
    redone : int
        Chunks that had to run again on some part.
    lost : tuple of int
        Devices lost while it ran.
    seconds : float
    """

    call: int
    rows: int
    chunks: int
    missing: tuple[Missing, ...] = ()
    redone: int = 0
    lost: tuple[int, ...] = ()
    seconds: float = 0.0
