"""The decisions of one member of one world (pure): events in, instructions out.

Every method of `WorldState` is an event. It returns the instructions that the shell must carry out, in order. This
module has no sockets, tasks, clock or payloads: operations and kept messages are numbers.

A world goes from forming to open, and from there to broken or closed; nothing leads back. Its end fails every pending
operation. When it broke because a member left in good order, messages that had arrived can still be received.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TypeVar

from ms_recover.worlds.instructions import (
    CloseLinks,
    Deliver,
    DeliverWhole,
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
    TakeBack,
)
from ms_recover.worlds.silence import CHECK
from ms_recover.worlds.wire import CAUSES, FrameKind, Header

SMALL = 1 << 16
"""Longest message, in bytes, that is kept although no receive is pending."""
MAX_KEPT_UNASKED = 1 << 24
"""Bytes kept per peer while no receive from it is pending; beyond, its connection is not read until one is."""
MAX_KEPT = 1 << 26
"""Bytes kept per peer while a receive waits for a later message; one longer message is kept when it is the only one."""
COST = 512
"""Bytes that a kept message counts at least: an empty one takes memory as well."""
T = TypeVar("T")
_ABORT, _LEAVE = FrameKind.ABORT, FrameKind.LEAVE  # an enumeration looks its members up slowly before Python 3.12
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

    @property
    def paused(self) -> bool:
        """Whether the payload has no place yet."""
        return self.operation is None and self.message is None


@dataclass(slots=True)
class _PeerState:
    to_send: int = 0
    to_receive: int = 0
    left: bool = False
    reading_rest: bool = False
    """Everything is kept: the connection has failed, and only what had arrived before can still be read."""
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

    def ended(self) -> Fault:
        """Return why operations fail."""
        return self.fault or Fault(self.rank, "closed", "the world is not open")

    def is_blocked(self, peer: int) -> bool:
        """Whether a receive from this peer waits for a message behind one for which there is no room."""
        at = self._peers.get(peer)
        return at is not None and bool(at.waiting) and at.incoming is not None and at.incoming.paused

    def formed(self, epoch: int) -> list[Instruction]:
        """Open the world: every connection stands."""
        if self.phase == "forming":
            self.epoch, self.phase = epoch, "open"
        return []

    def next_frame(self, peer: int) -> int | None:
        """Return the number of a frame to a peer that is sent now; None when none can be sent any more."""
        if self.phase != "open":
            return None
        peer_state = self._peers[peer]
        if peer_state.left:
            return None
        number = peer_state.to_send
        peer_state.to_send = number + 1
        return number

    def send_refused(self, peer: int) -> list[Instruction]:
        """Break the world when a frame cannot be sent because the peer has left."""
        return self.aborted(_closed_by(peer)) if self.phase == "open" else []

    def send_waits(self, operation: int, peer: int) -> list[Instruction]:
        """Record that the kernel has not taken all of a frame yet."""
        if self.phase != "open":
            return [FailOperation(operation, self.ended())]
        self._pending[operation] = _Pending(peer, None)
        return []

    def send_done(self, operation: int) -> list[Instruction]:
        """Record that the last byte of a send was passed to the kernel."""
        self._pending.pop(operation, None)
        return []

    def receive_requested(self, operation: int, peer: int, key: Key, expected: Expected) -> list[Instruction]:
        """Receive the next frame with this key."""
        peer_state = self._peers.get(peer)
        if peer_state is None or self.phase not in ("open", "broken"):
            return [FailOperation(operation, self.ended())]
        kept = _next(peer_state.kept, key) if peer_state.kept else None
        if kept is None and self.phase == "broken":
            return [FailOperation(operation, self.ended())]
        self._pending[operation] = _Pending(peer, key, expected)
        if kept is not None:
            message, header = kept
            peer_state.kept_bytes -= _cost(header)
            return self._deliver(operation, header, message) + self._resume(peer)
        incoming = peer_state.incoming
        if incoming is not None and incoming.paused and _key(incoming.header) == key:
            incoming.operation = operation
            return self._fill(operation, peer, incoming.header)
        if peer_state.left:
            return self.aborted(_closed_by(peer))
        waiting = peer_state.waiting.get(key)
        if waiting is None:
            peer_state.waiting[key] = deque((operation,))
        else:
            waiting.append(operation)
        return self._resume(peer) if incoming is not None else []

    def header_received(self, peer: int, header: Header, whole: bool = False) -> list[Instruction]:
        """Check the header of a frame and choose where its payload goes.

        With `whole`, the payload is there too. A `DeliverWhole` then stands for what follows as well; any other
        instruction is followed by `payload_received` as always.
        """
        if self.phase != "open":
            return []
        peer_state = self._peers[peer]
        kind, dtype, shape, world, epoch, call, sequence, tag, length, detail = header
        if sequence != peer_state.to_receive or epoch != self.epoch or world != self.world:
            actual = f"frame {sequence} of world {world.hex()} epoch {epoch}"
            expected = f"frame {peer_state.to_receive} of world {self.world.hex()} epoch {self.epoch}"
            return self.aborted(Fault(peer, "protocol", f"rank {peer} sent {actual}, expected {expected}"))
        peer_state.to_receive += 1
        if kind is _ABORT:
            return self.reported(peer, call, CAUSES[detail])
        if kind is _LEAVE:
            return self._peer_left(peer)
        operation = _next(peer_state.waiting, (kind, tag, call))
        if operation is not None and whole:
            if self._pending[operation].expected != (detail, dtype, shape, length):
                fault = self._mismatch(operation, header)
                if fault:
                    return self.aborted(fault)
            del self._pending[operation]
            return [DeliverWhole(peer, operation, header)]
        peer_state.incoming = _Incoming(header, operation)
        if operation is not None:
            return self._fill(operation, peer, header)
        return self._resume(peer) or [PauseReading(peer)]

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
            peer_state.kept_bytes -= _cost(incoming.header)
            return self._deliver(operation, incoming.header, incoming.message)
        _insert(peer_state.kept.setdefault(key, deque()), incoming.message, incoming.header)
        return []

    def cancelled(self, operation: int) -> list[Instruction]:
        """Drop an operation that was cancelled: the message of a receive is kept, a send breaks the world."""
        pending = self._pending.get(operation)
        if pending is None or self.phase != "open":
            return []
        if pending.key is None:
            return self.aborted(Fault(self.rank, "closed", "a send was cancelled after it began"))
        peer_state = self._peers[pending.peer]
        del self._pending[operation]
        incoming = peer_state.incoming
        if incoming is not None and incoming.operation == operation:
            incoming.operation, incoming.message = None, self._next_message()
            peer_state.kept_bytes += _cost(incoming.header)
            return [TakeBack(pending.peer, operation, incoming.message)]
        waiting = peer_state.waiting[pending.key]
        waiting.remove(operation)
        if not waiting:
            del peer_state.waiting[pending.key]
        return []

    def returned(self, operation: int, peer: int, header: Header) -> list[Instruction]:
        """Keep a message that was delivered to a receive, which was cancelled before it could return it."""
        peer_state = self._peers.get(peer)
        if peer_state is None:
            return []
        message, key = self._next_message(), _key(header)
        taken = TakeBack(peer, operation, message)
        other = _next(peer_state.waiting, key)
        if other is not None:
            return [taken, *self._deliver(other, header, message)]
        peer_state.kept_bytes += _cost(header)
        _insert(peer_state.kept.setdefault(key, deque()), message, header)
        return [taken]

    def rest_is_read(self, peer: int) -> list[Instruction]:
        """Keep all that still comes from this peer, whose connection has failed: it may have left in good order."""
        if self.phase != "open":
            return []
        self._peers[peer].reading_rest = True
        return self._resume(peer)

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
        words = f"rank {peer} reports {cause} of rank {accused}"
        return self.aborted(Fault(accused, "peer_reported", f"{words}: {CHECK}" if cause == "cut" else words))

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
        headers = tuple((peer, self._last(peer, last, detail)) for peer in informed)
        failed = [FailOperation(operation, fault) for operation in self._pending]
        accused = self._peers.get(fault.rank)
        by_departure = phase == "broken" and accused is not None and accused.left
        self._peers = {peer: _PeerState(kept=at.kept) for peer, at in self._peers.items() if by_departure}
        kept = frozenset(message for at in self._peers.values() for queue in at.kept.values() for message, _ in queue)
        self.phase, self.fault = phase, fault
        self._pending.clear()
        return [Notify(headers), *failed, CloseLinks(fault if phase == "broken" else None, kept)]

    def _peer_left(self, peer: int) -> list[Instruction]:
        peer_state = self._peers[peer]
        peer_state.left = True
        if any(pending.peer == peer for pending in self._pending.values()):
            return self.aborted(_closed_by(peer))
        return [ForgetPeer(peer)]

    def _last(self, peer: int, key: Key, detail: int) -> Header:
        kind, tag, call = key
        return Header(kind, "", (), self.world, self.epoch, call, self._peers[peer].to_send, tag, 0, detail)

    def _resume(self, peer: int) -> list[Instruction]:
        """Keep the message whose payload has no place yet, when there is room for it."""
        peer_state = self._peers.get(peer)
        incoming = peer_state and peer_state.incoming
        if not peer_state or not incoming or not incoming.paused or not _has_room(peer_state, incoming.header):
            return []
        peer_state.kept_bytes += _cost(incoming.header)
        incoming.message = self._next_message()
        return [KeepMessage(peer, incoming.message, incoming.header)]

    def _next_message(self) -> int:
        self._messages += 1
        return self._messages

    def _fill(self, operation: int, peer: int, header: Header) -> list[Instruction]:
        fault = self._mismatch(operation, header)
        return self.aborted(fault) if fault else [FillBuffer(peer, operation, header)]

    def _deliver(self, operation: int, header: Header, message: int) -> list[Instruction]:
        fault = self._mismatch(operation, header)
        if fault and self.phase == "open":
            return self.aborted(fault)
        del self._pending[operation]
        return [FailOperation(operation, fault)] if fault else [Deliver(operation, header, message)]

    def _mismatch(self, operation: int, header: Header) -> Fault | None:
        """Return the fault when a frame is not what a receive requires."""
        pending = self._pending[operation]
        detail, dtype, shape, length = pending.expected
        if header.detail != detail:
            words = f"rank {pending.peer} is in another collective call, or has another root or operation"
        elif (dtype is not None and header.dtype != dtype) or (shape is not None and header.shape != shape):
            words = f"rank {pending.peer} sent {header.dtype} {header.shape}, expected {dtype} {shape}"
        elif length is not None and header.length != length:
            words = f"rank {pending.peer} sent {header.length} bytes, expected {length}"
        else:
            return None
        return Fault(pending.peer, "protocol", words)


def _cost(header: Header) -> int:
    return max(header.length, COST)


def _has_room(peer_state: _PeerState, header: Header) -> bool:
    """Whether a message that nobody has asked for is kept; otherwise its connection is not read for now."""
    after = peer_state.kept_bytes + _cost(header)
    if peer_state.waiting and (not peer_state.kept_bytes or after <= MAX_KEPT):
        return True
    return peer_state.reading_rest or (header.length <= SMALL and after <= MAX_KEPT_UNASKED)


def _insert(kept: deque[tuple[int, Header]], message: int, header: Header) -> None:
    """Insert a message in the order in which they were sent."""
    place = len(kept)
    while place and kept[place - 1][1].sequence > header.sequence:
        place -= 1
    kept.insert(place, (message, header))


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
