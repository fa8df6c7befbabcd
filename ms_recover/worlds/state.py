"""The decisions of one member of one world (pure): events in, instructions out.

Every method of `WorldState` is an event. It returns the instructions that the shell must carry out, in order. This
module has no sockets, tasks, clock or payloads: operations and kept messages are numbers.

A world goes from forming to open, and from there to broken or closed; nothing leads back. Its end fails every pending
operation.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TypeVar

from ms_recover.worlds.instructions import (
    CloseLinks,
    Deliver,
    Expected,
    FailOperation,
    Fault,
    FillBuffer,
    ForgetPeer,
    Instruction,
    KeepMessage,
    Key,
    Notify,
    PauseReading,
    Phase,
    Transmit,
)
from ms_recover.worlds.wire import CAUSES, FrameKind, Header

SMALL = 1 << 16
"""Longest message, in bytes, that is kept although no receive is pending."""
MAX_KEPT_UNASKED = 1 << 24
"""Bytes kept per peer while no receive from it is pending; beyond, its connection is not read until one is."""
MAX_KEPT = 1 << 30
"""Bytes kept per peer while a receive waits for a later message; more break the world."""
T = TypeVar("T")
_KeyTuple = tuple[FrameKind, int, int]


@dataclass(slots=True)
class _Pending:
    peer: int
    key: Key | None
    """None for a send."""
    expected: Expected = Expected()  # noqa: RUF009 (a tuple)


@dataclass(slots=True)
class _Incoming:
    header: Header
    operation: int | None = None
    message: int | None = None
    """Neither an operation nor a message: reading is paused."""


@dataclass(slots=True)
class _PeerState:
    to_send: int = 0
    to_receive: int = 0
    left: bool = False
    incoming: _Incoming | None = None
    waiting: dict[_KeyTuple, deque[int]] = field(default_factory=dict)
    kept: dict[_KeyTuple, deque[tuple[int, Header]]] = field(default_factory=dict)
    kept_bytes: int = 0


class WorldState:
    """One member's view of one world; `world` is the eight bytes of `wire.world_id`."""

    def __init__(self, world: bytes, rank: int, size: int) -> None:
        self.world = world
        self.rank = rank
        self.size = size
        self.epoch = 0
        self.phase: Phase = "forming"
        self.fault: Fault | None = None
        self._peers = {peer: _PeerState() for peer in range(size) if peer != rank}
        self._pending: dict[int, _Pending] = {}
        self._messages = 0

    def waiting_for(self) -> int:
        """Return the peer of the oldest pending operation, or this rank when there is none."""
        return next((pending.peer for pending in self._pending.values()), self.rank)

    def formed(self, epoch: int) -> list[Instruction]:
        """Open the world: every connection stands."""
        if self.phase == "forming":
            self.epoch, self.phase = epoch, "open"
        return []

    def send_requested(
        self, operation: int, peer: int, key: Key, detail: int, dtype: str, shape: tuple[int, ...], length: int
    ) -> list[Instruction]:
        """Send a frame."""
        if self.phase != "open":
            return [FailOperation(operation, self._ended())]
        peer_state = self._peers[peer]
        if peer_state.left:
            return [*self.aborted(_closed_by(peer)), FailOperation(operation, self._ended())]
        self._pending[operation] = _Pending(peer, None)
        return [Transmit(operation, peer, self._header(peer, key, dtype, shape, length, detail))]

    def send_done(self, operation: int) -> list[Instruction]:
        """Record that the last byte of a send was passed to the kernel."""
        self._pending.pop(operation, None)
        return []

    def receive_requested(self, operation: int, peer: int, key: Key, expected: Expected) -> list[Instruction]:
        """Receive the next frame with this key."""
        if self.phase != "open":
            return [FailOperation(operation, self._ended())]
        peer_state = self._peers[peer]
        self._pending[operation] = _Pending(peer, key, expected)
        kept = _next(peer_state.kept, key)
        if kept is not None:
            message, header = kept
            peer_state.kept_bytes -= header.length
            return self._deliver(operation, header, message)
        incoming = peer_state.incoming
        if incoming is not None and incoming.operation is None and incoming.message is None:
            if _key(incoming.header) == key:
                incoming.operation = operation
                return self._fill(operation, peer, incoming.header)
            peer_state.waiting.setdefault(key, deque()).append(operation)
            return self._keep(peer, incoming)
        if peer_state.left:
            return self.aborted(_closed_by(peer))
        peer_state.waiting.setdefault(key, deque()).append(operation)
        return []

    def header_received(self, peer: int, header: Header) -> list[Instruction]:
        """Check the header of a frame and choose where its payload goes."""
        if self.phase != "open":
            return []
        peer_state = self._peers[peer]
        if header.sequence != peer_state.to_receive or header.epoch != self.epoch or header.world != self.world:
            actual = f"frame {header.sequence} of world {header.world.hex()} epoch {header.epoch}"
            expected = f"frame {peer_state.to_receive} of world {self.world.hex()} epoch {self.epoch}"
            return self.aborted(Fault(peer, "protocol", f"rank {peer} sent {actual}, expected {expected}"))
        peer_state.to_receive += 1
        if header.kind is FrameKind.ABORT:
            return self.reported(peer, header.call, CAUSES[header.detail])
        if header.kind is FrameKind.LEAVE:
            return self._peer_left(peer)
        peer_state.incoming = incoming = _Incoming(header)
        incoming.operation = _next(peer_state.waiting, _key(header))
        if incoming.operation is not None:
            return self._fill(incoming.operation, peer, header)
        unasked = header.length <= SMALL and peer_state.kept_bytes + header.length <= MAX_KEPT_UNASKED
        if unasked or peer_state.waiting:
            return self._keep(peer, incoming)
        return [PauseReading(peer)]

    def payload_received(self, peer: int) -> list[Instruction]:
        """Deliver or keep the last frame from this peer, whose payload is complete."""
        if self.phase != "open":
            return []
        peer_state = self._peers[peer]
        incoming, peer_state.incoming = peer_state.incoming, None
        assert incoming is not None
        if incoming.operation is not None:
            del self._pending[incoming.operation]
            return [Deliver(incoming.operation, incoming.header, None)]
        assert incoming.message is not None
        key = _key(incoming.header)
        operation = _next(peer_state.waiting, key)
        if operation is not None:
            peer_state.kept_bytes -= incoming.header.length
            return self._deliver(operation, incoming.header, incoming.message)
        peer_state.kept.setdefault(key, deque()).append((incoming.message, incoming.header))
        return []

    def cancelled(self, operation: int) -> list[Instruction]:
        """Drop an operation that was cancelled; break the world when it has begun to move data."""
        pending = self._pending.get(operation)
        if pending is None or self.phase != "open":
            return []
        waiting = self._peers[pending.peer].waiting
        if pending.key and operation in waiting.get(pending.key, ()):
            waiting[pending.key].remove(operation)
            if not waiting[pending.key]:
                del waiting[pending.key]
            del self._pending[operation]
            return []
        return self.aborted(Fault(self.rank, "closed", "an operation was cancelled after it began"))

    def aborted(self, fault: Fault) -> list[Instruction]:
        """Break the world: this member cannot continue, or a peer is at fault."""
        return self._end("broken", fault, FrameKind.ABORT, CAUSES.index(fault.cause))

    def lost(self, peer: int, cause: str, words: str = "") -> list[Instruction]:
        """Break the world because the connection to a peer, or its heartbeats, ended."""
        if peer in self._peers and self._peers[peer].left:
            return []
        return self.aborted(Fault(peer, cause, words))

    def reported(self, peer: int, accused: int, cause: str) -> list[Instruction]:
        """Break the world because a peer reports that it is broken."""
        return self.aborted(Fault(accused, "peer_reported", f"rank {peer} reports {cause} of rank {accused}"))

    def closed(self) -> list[Instruction]:
        """Leave in good order."""
        fault = Fault(self.rank, "closed", "this process removed the world")
        return self._end("closed", fault, FrameKind.LEAVE, 0)

    def _end(self, phase: Phase, fault: Fault, kind: FrameKind, detail: int) -> list[Instruction]:
        """End the world: inform the peers with a last frame, and fail all operations."""
        if self.phase in ("broken", "closed"):
            return []
        last = Key(kind, 0, fault.rank if kind is FrameKind.ABORT else 0)
        informed = [peer for peer, at in self._peers.items() if not at.left] if self.phase == "open" else []
        headers = tuple((peer, self._header(peer, last, "", (), 0, detail)) for peer in informed)
        failed = [FailOperation(operation, fault) for operation in self._pending]
        self.phase, self.fault = phase, fault
        self._pending.clear()
        self._peers.clear()
        return [Notify(headers), *failed, CloseLinks(fault if phase == "broken" else None)]

    def _peer_left(self, peer: int) -> list[Instruction]:
        peer_state = self._peers[peer]
        peer_state.left = True
        if any(pending.peer == peer for pending in self._pending.values()):
            return self.aborted(_closed_by(peer))
        return [ForgetPeer(peer)]

    def _ended(self) -> Fault:
        return self.fault or Fault(self.rank, "closed", "the world is not open")

    def _header(self, peer: int, key: Key, dtype: str, shape: tuple[int, ...], length: int, detail: int) -> Header:
        peer_state = self._peers[peer]
        sequence = peer_state.to_send
        peer_state.to_send += 1
        return Header(key.kind, dtype, shape, self.world, self.epoch, key.call, sequence, key.tag, length, detail)

    def _keep(self, peer: int, incoming: _Incoming) -> list[Instruction]:
        peer_state = self._peers[peer]
        peer_state.kept_bytes += incoming.header.length
        if peer_state.kept_bytes > MAX_KEPT:
            words = f"rank {peer} sent more than {MAX_KEPT} bytes that are not received before the pending message"
            return self.aborted(Fault(peer, "protocol", words))
        self._messages += 1
        incoming.message = self._messages
        return [KeepMessage(peer, incoming.message, incoming.header)]

    def _fill(self, operation: int, peer: int, header: Header) -> list[Instruction]:
        return self._check_expected(operation, header) or [FillBuffer(peer, operation, header)]

    def _deliver(self, operation: int, header: Header, message: int) -> list[Instruction]:
        mismatch = self._check_expected(operation, header)
        if mismatch:
            return mismatch
        del self._pending[operation]
        return [Deliver(operation, header, message)]

    def _check_expected(self, operation: int, header: Header) -> list[Instruction]:
        pending = self._pending[operation]
        detail, dtype, shape, length = pending.expected
        if header.detail != detail:
            words = f"rank {pending.peer} is in another collective call, or has another root or operation"
        elif (dtype is not None and header.dtype != dtype) or (shape is not None and header.shape != shape):
            words = f"rank {pending.peer} sent {header.dtype} {header.shape}, expected {dtype} {shape}"
        elif length is not None and header.length != length:
            words = f"rank {pending.peer} sent {header.length} bytes, expected {length}"
        else:
            return []
        return self.aborted(Fault(pending.peer, "protocol", words))


def _key(header: Header) -> _KeyTuple:
    return header.kind, header.tag, header.call


def _next(queues: dict[_KeyTuple, deque[T]], key: _KeyTuple) -> T | None:
    """Take the first of the queue with this key; an empty queue is dropped."""
    queue = queues.get(key)
    if not queue:
        return None
    first = queue.popleft()
    if not queue:
        del queues[key]
    return first


def _closed_by(peer: int) -> Fault:
    return Fault(peer, "closed", f"rank {peer} has left")
