"""What one member of one world does about what happens (pure): events in, instructions out.

Every method of `WorldState` is an event; it returns the instructions that the shell has to carry out, in order. No
socket, task, clock or byte of payload is in here: operations and kept messages are numbers.

A world goes from forming to open, and from there to broken or closed; nothing leads back. Whatever ends it fails every
pending operation.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from ms_recover.worlds.wire import CAUSES, Header, Kind

SMALL = 1 << 16
"""Messages up to this size are kept when nobody waits for them yet."""
MAX_KEPT_UNASKED = 1 << 24
"""Bytes kept per peer while nobody receives from it; then its connection is not read until somebody does."""
MAX_KEPT = 1 << 30
"""Bytes kept per peer while somebody waits for a message behind them; more of them break the world."""


class Phase(Enum):
    """Where a world stands."""

    FORMING = "forming"
    OPEN = "open"
    BROKEN = "broken"
    CLOSED = "closed"


_OPEN = Phase.OPEN  # before Python 3.12 it takes long to look up a member of an enumeration


class Fault(NamedTuple):
    """Why a world ended: the rank at fault, one of ``CAUSES``, and words."""

    rank: int
    cause: str
    words: str = ""


class Key(NamedTuple):
    """Frames from one peer with the same key are received in the order they were sent."""

    kind: Kind
    tag: int
    call: int = 0


class Expected(NamedTuple):
    """What the next frame of a key has to be; None is anything."""

    detail: int = 0
    dtype: str | None = None
    shape: tuple[int, ...] | None = None
    length: int | None = None


class Transmit(NamedTuple):
    """Send the header, and the payload of this operation after it."""

    operation: int
    peer: int
    header: Header


class Fill(NamedTuple):
    """Read the payload that comes next from this peer into the buffer of this operation."""

    peer: int
    operation: int
    header: Header


class Keep(NamedTuple):
    """Read the payload that comes next from this peer into memory of its own, under this number."""

    peer: int
    message: int
    header: Header


class Hold(NamedTuple):
    """Stop reading from this peer until told where to."""

    peer: int


class Deliver(NamedTuple):
    """A receive is done; the payload is the kept message, or in the buffer of the operation when there is none."""

    operation: int
    header: Header
    message: int | None


class Fail(NamedTuple):
    """An operation ends with this fault."""

    operation: int
    fault: Fault


class Tell(NamedTuple):
    """Send these headers, without payload, as last words, each as far as it goes without waiting."""

    headers: tuple[tuple[int, Header], ...]


class Shut(NamedTuple):
    """Close every connection and stop watching the peers; the fault is None after a departure in good order."""

    fault: Fault | None


class PeerLeft(NamedTuple):
    """A peer left in good order: watch it no longer."""

    peer: int


Instruction = Transmit | Fill | Keep | Hold | Deliver | Fail | Tell | Shut | PeerLeft
_Place = tuple[Kind, int, int]


@dataclass(slots=True)
class _Pending:
    peer: int
    key: Key | None
    """None for a send."""
    expected: Expected = Expected()  # noqa: RUF009 (a tuple)


@dataclass(slots=True)
class _Coming:
    header: Header
    operation: int | None = None
    message: int | None = None
    """Neither an operation nor a message: held."""


@dataclass(slots=True)
class _Peer:
    to_send: int = 0
    to_receive: int = 0
    left: bool = False
    coming: _Coming | None = None
    waiting: dict[_Place, deque[int]] = field(default_factory=dict)
    kept: dict[_Place, deque[tuple[int, Header]]] = field(default_factory=dict)
    kept_bytes: int = 0


class WorldState:
    """One member's view of one world.

    Parameters
    ----------
    world : bytes
        The world's identity on the wire.
    rank, size : int
    """

    def __init__(self, world: bytes, rank: int, size: int) -> None:
        self.world, self.rank, self.size = world, rank, size
        self.epoch = 0
        self.phase = Phase.FORMING
        self.fault: Fault | None = None
        self._peers = {peer: _Peer() for peer in range(size) if peer != rank}
        self._pending: dict[int, _Pending] = {}
        self._messages = 0

    @property
    def pending(self) -> int:
        """Number of operations that have not ended."""
        return len(self._pending)

    def waiting_for(self) -> int:
        """Return the peer that the oldest pending operation needs; this rank when there is none."""
        return next((pending.peer for pending in self._pending.values()), self.rank)

    def formed(self, epoch: int) -> list[Instruction]:
        """Open the world; every connection stands."""
        if self.phase is Phase.FORMING:
            self.epoch, self.phase = epoch, Phase.OPEN
        return []

    def send_asked(
        self, operation: int, peer: int, key: Key, detail: int, dtype: str, shape: tuple[int, ...], length: int
    ) -> list[Instruction]:
        """Send, as somebody asks."""
        if self.phase is not _OPEN:
            return [Fail(operation, self._ended())]
        at = self._peers[peer]
        if at.left:
            return [*self._break(_closed_by(peer)), Fail(operation, self._ended())]
        self._pending[operation] = _Pending(peer, None)
        return [Transmit(operation, peer, self._header(peer, key, dtype, shape, length, detail))]

    def send_done(self, operation: int) -> list[Instruction]:
        """Note that the last byte of a send is out."""
        self._pending.pop(operation, None)
        return []

    def receive_asked(self, operation: int, peer: int, key: Key, expected: Expected) -> list[Instruction]:
        """Receive the next frame with this key, as somebody asks."""
        if self.phase is not _OPEN:
            return [Fail(operation, self._ended())]
        at = self._peers[peer]
        self._pending[operation] = _Pending(peer, key, expected)
        kept = at.kept.get(key)
        if kept:
            message, header = kept.popleft()
            if not kept:
                del at.kept[key]
            at.kept_bytes -= header.length
            return self._deliver(operation, header, message)
        coming = at.coming
        if coming is not None and coming.operation is None and coming.message is None:
            if _key(coming.header) == key:
                coming.operation = operation
                return self._unexpected(operation, coming.header) or [Fill(peer, operation, coming.header)]
            at.waiting.setdefault(key, deque()).append(operation)
            return self._keep(peer, coming)
        if at.left:
            return self._break(_closed_by(peer))
        at.waiting.setdefault(key, deque()).append(operation)
        return []

    def header_came(self, peer: int, header: Header) -> list[Instruction]:
        """Judge the frame that begins."""
        if self.phase is not _OPEN:
            return []
        at = self._peers[peer]
        if header.sequence != at.to_receive or header.epoch != self.epoch or header.world != self.world:
            place = f"world {header.world.hex()} epoch {header.epoch} frame {header.sequence}"
            return self._break(Fault(peer, "protocol", f"rank {peer} sent {place}, which has no place here"))
        at.to_receive += 1
        if header.kind is Kind.ABORT:
            return self.reported(peer, header.call, CAUSES[header.detail])
        if header.kind is Kind.LEAVE:
            return self._peer_left(peer)
        at.coming = coming = _Coming(header)
        key = _key(header)
        if waiting := at.waiting.get(key):
            coming.operation = waiting.popleft()
            if not waiting:
                del at.waiting[key]
            return self._unexpected(coming.operation, header) or [Fill(peer, coming.operation, header)]
        unasked = header.length <= SMALL and at.kept_bytes + header.length <= MAX_KEPT_UNASKED
        if unasked or at.waiting:
            return self._keep(peer, coming)
        return [Hold(peer)]

    def payload_came(self, peer: int) -> list[Instruction]:
        """Hand on the frame that began last from this peer; it is complete."""
        if self.phase is not _OPEN:
            return []
        at = self._peers[peer]
        coming, at.coming = at.coming, None
        assert coming is not None
        if coming.operation is not None:
            del self._pending[coming.operation]
            return [Deliver(coming.operation, coming.header, None)]
        assert coming.message is not None
        key = _key(coming.header)
        if waiting := at.waiting.get(key):
            operation = waiting.popleft()
            if not waiting:
                del at.waiting[key]
            at.kept_bytes -= coming.header.length
            return self._deliver(operation, coming.header, coming.message)
        at.kept.setdefault(key, deque()).append((coming.message, coming.header))
        return []

    def withdrawn(self, operation: int) -> list[Instruction]:
        """Drop an operation that nobody wants any more; one that has begun takes the world with it."""
        pending = self._pending.get(operation)
        if pending is None or self.phase is not _OPEN:
            return []
        waiting = self._peers[pending.peer].waiting.get(pending.key) if pending.key else None
        if pending.key and waiting and operation in waiting:
            waiting.remove(operation)
            if not waiting:
                del self._peers[pending.peer].waiting[pending.key]
            del self._pending[operation]
            return []
        return self._break(Fault(self.rank, "closed", "an operation was cancelled half-way"))

    def given_up(self, fault: Fault) -> list[Instruction]:
        """Break the world because this member cannot go on: a timeout, a cancelled or failed collective."""
        return self._break(fault)

    def lost(self, peer: int, cause: str, words: str = "") -> list[Instruction]:
        """Note that the connection to a peer ended, or its heartbeats did."""
        if peer in self._peers and self._peers[peer].left:
            return []
        return self._break(Fault(peer, cause, words))

    def reported(self, peer: int, accused: int, cause: str) -> list[Instruction]:
        """Believe a peer that the world is broken."""
        return self._break(Fault(accused, "peer_reported", f"rank {peer} reports {cause} of rank {accused}"))

    def closed(self) -> list[Instruction]:
        """Leave in good order."""
        if self.phase in (Phase.BROKEN, Phase.CLOSED):
            return []
        said = self._last_words(Kind.LEAVE, 0, 0) if self.phase is Phase.OPEN else Tell(())
        self.phase, self.fault = Phase.CLOSED, Fault(self.rank, "closed", "this process removed the world")
        return [said, *self._fail_all(self.fault), Shut(None)]

    def _peer_left(self, peer: int) -> list[Instruction]:
        at = self._peers[peer]
        at.left = True
        if any(pending.peer == peer for pending in self._pending.values()):
            return self._break(_closed_by(peer))
        return [PeerLeft(peer)]

    def _ended(self) -> Fault:
        return self.fault or Fault(self.rank, "closed", "the world is not open")

    def _break(self, fault: Fault) -> list[Instruction]:
        if self.phase in (Phase.BROKEN, Phase.CLOSED):
            return []
        cause = CAUSES.index(fault.cause)
        said = self._last_words(Kind.ABORT, fault.rank, cause) if self.phase is Phase.OPEN else Tell(())
        self.phase, self.fault = Phase.BROKEN, fault
        return [said, *self._fail_all(fault), Shut(fault)]

    def _fail_all(self, fault: Fault) -> list[Instruction]:
        failed: list[Instruction] = [Fail(operation, fault) for operation in self._pending]
        self._pending.clear()
        self._peers.clear()
        return failed

    def _last_words(self, kind: Kind, rank: int, detail: int) -> Tell:
        key = Key(kind, 0, rank)
        return Tell(
            tuple((peer, self._header(peer, key, "", (), 0, detail)) for peer, at in self._peers.items() if not at.left)
        )

    def _header(self, peer: int, key: Key, dtype: str, shape: tuple[int, ...], length: int, detail: int) -> Header:
        at = self._peers[peer]
        sequence = at.to_send
        at.to_send += 1
        return Header(key.kind, dtype, shape, self.world, self.epoch, key.call, sequence, key.tag, length, detail)

    def _keep(self, peer: int, coming: _Coming) -> list[Instruction]:
        at = self._peers[peer]
        at.kept_bytes += coming.header.length
        if at.kept_bytes > MAX_KEPT:
            words = f"rank {peer} sent more than {MAX_KEPT} bytes that nobody receives before what is waited for"
            return self._break(Fault(peer, "protocol", words))
        self._messages += 1
        coming.message = self._messages
        return [Keep(peer, coming.message, coming.header)]

    def _deliver(self, operation: int, header: Header, message: int) -> list[Instruction]:
        wrong = self._unexpected(operation, header)
        if wrong:
            return wrong
        del self._pending[operation]
        return [Deliver(operation, header, message)]

    def _unexpected(self, operation: int, header: Header) -> list[Instruction]:
        pending = self._pending[operation]
        detail, dtype, shape, length = pending.expected
        if header.detail != detail:
            words = f"rank {pending.peer} takes part in another collective call (or with another root or operation)"
        elif (dtype is not None and header.dtype != dtype) or (shape is not None and header.shape != shape):
            words = f"rank {pending.peer} sent {header.dtype} {header.shape} where {dtype} {shape} is expected"
        elif length is not None and header.length != length:
            words = f"rank {pending.peer} sent {header.length} bytes where {length} are expected"
        else:
            return []
        return self._break(Fault(pending.peer, "protocol", words))


def _key(header: Header) -> _Place:
    return header.kind, header.tag, header.call


def _closed_by(peer: int) -> Fault:
    return Fault(peer, "closed", f"rank {peer} has left")
