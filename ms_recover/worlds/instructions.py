"""The values that `state` takes and returns (pure): phases, faults, keys of frames, and instructions to the shell."""

from __future__ import annotations

from typing import Literal, NamedTuple

from ms_recover.worlds.wire import FrameKind, Header

Phase = Literal["forming", "open", "broken", "closed"]


class Fault(NamedTuple):
    """Why a world ended: the rank at fault, one of ``CAUSES``, and a message."""

    rank: int
    cause: str
    words: str = ""


class Key(NamedTuple):
    """Frames from one peer with the same key are received in the order they were sent."""

    kind: FrameKind
    tag: int
    call: int = 0


class Expected(NamedTuple):
    """Requirements on the next frame of a key; None allows anything."""

    detail: int = 0
    dtype: str | None = None
    shape: tuple[int, ...] | None = None
    length: int | None = None


class FillBuffer(NamedTuple):
    """Read the next payload from this peer into the buffer of this operation."""

    peer: int
    operation: int
    header: Header


class DeliverWhole(NamedTuple):
    """A receive is done: its payload has come together with the header, and goes into the operation's buffer."""

    peer: int
    operation: int
    header: Header


class KeepMessage(NamedTuple):
    """Read the next payload from this peer into new memory, kept under this message number."""

    peer: int
    message: int
    header: Header


class TakeBack(NamedTuple):
    """Move the payload of this cancelled receive, as far as it has come, to own memory under this message number."""

    peer: int
    operation: int
    message: int


class PauseReading(NamedTuple):
    """Do not read from this peer until a `FillBuffer` or `KeepMessage`."""

    peer: int


class Deliver(NamedTuple):
    """A receive is done; the payload is the kept message, or in the operation's buffer when `message` is None."""

    operation: int
    header: Header
    message: int | None


class FailOperation(NamedTuple):
    """An operation ends with this fault."""

    operation: int
    fault: Fault


class Notify(NamedTuple):
    """Send these headers, by peer, as the last frames; each only as far as it goes without waiting."""

    headers: tuple[tuple[int, Header], ...]


class CloseLinks(NamedTuple):
    """Close every connection and stop watching the peers; drop all messages but those that can still be received.

    The fault is None after an orderly departure.
    """

    fault: Fault | None
    kept: frozenset[int] = frozenset()


class ForgetPeer(NamedTuple):
    """A peer left in good order: stop watching it, and send nothing more."""

    peer: int


Instruction = (
    FillBuffer
    | DeliverWhole
    | KeepMessage
    | TakeBack
    | PauseReading
    | Deliver
    | FailOperation
    | Notify
    | CloseLinks
    | ForgetPeer
)
