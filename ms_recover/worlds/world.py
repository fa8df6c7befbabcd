"""The shell around `WorldState`: one member of one world, with its links, buffers and waiting tasks."""

from __future__ import annotations

import asyncio
import itertools
import logging
import socket
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from ms_recover.errors import BrokenWorldError
from ms_recover.worlds import tensors, wire
from ms_recover.worlds.instructions import (
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
    TakeBack,
)
from ms_recover.worlds.link import Link, Operation, Outgoing
from ms_recover.worlds.state import MAX_KEPT, SMALL, WorldState
from ms_recover.worlds.tensors import Raw
from ms_recover.worlds.wire import FrameKind, Header, encode

_log = logging.getLogger(__name__)
_SENDS_IN_A_ROW = 16
_POLLS_IN_A_ROW = 16
_SOON_S = 1e-3
_NOTHING = Raw("", (), memoryview(b""))
_SIGN = Key(FrameKind.PART, 0, (1 << 32) - 1)
REPORT_S = 1.0
"""While a world is made, the time in which rank 0 may report why a member is gone."""
_QUIET_S = 0.25
"""Of a dead process, nothing more is under way when nothing has come for so long."""


class World:
    """One member of one world.

    `ended` is called with the error that broke the world, or None when it was closed in good order; `peer_left` with
    identity, epoch and the rank of a peer that left in good order.
    """

    def __init__(
        self,
        name: str,
        rank: int,
        size: int,
        ended: Callable[[World, BrokenWorldError | None], None],
        peer_left: Callable[[bytes, int, int], None],
    ) -> None:
        self.name = name
        self.rank = rank
        self.size = size
        self.identity = wire.world_id(name)
        self.state = WorldState(self.identity, rank, size)
        self._ended = ended
        self._peer_left = peer_left
        self._links: dict[int, Link] = {}
        self._operations: dict[int, Operation] = {}
        self._messages: dict[int, memoryview] = {}
        self._numbers = itertools.count()
        self._calls: dict[int, int] = {}
        self._sends = 0
        self._polls = 0
        self._blocked: set[int] = set()
        """Peers about which there was a warning."""
        self.loop = asyncio.get_running_loop()

    @property
    def epoch(self) -> int:
        """Number of earlier worlds of this name."""
        return self.state.epoch

    @property
    def error(self) -> BrokenWorldError | None:
        """The error with which the world ended; None while it has not."""
        fault = self.state.fault
        return None if fault is None else BrokenWorldError(self.name, self.epoch, *fault)

    @property
    def is_open(self) -> bool:
        """Whether operations can be started."""
        return self.state.phase == "open"

    def form(self, epoch: int) -> None:
        """Begin this epoch; the connections follow one by one."""
        self.handle(self.state.formed, epoch)

    def connect(self, peer: int, sock: socket.socket) -> None:
        """Start with the connection to a peer; raises the error of a world that has ended."""
        if not self.is_open:
            sock.close()
            raise BrokenWorldError(self.name, self.epoch, *self.state.ended())
        link = self._links[peer] = Link(sock, peer, self)
        link.start()

    def unconnected(self) -> list[int]:
        """Return the peers to which there is no connection yet."""
        return [peer for peer in range(self.size) if peer != self.rank and peer not in self._links]

    def unanswered(self) -> list[int]:
        """Return the peers for which operations wait; if nothing has ever come from some, these."""
        ranks = self.state.awaited()
        return [rank for rank in ranks if not self.state.frames_from(rank)] or ranks or [self.rank]

    def next_call(self, tag: int) -> int:
        """Return the number of the next collective call with this tag."""
        number = self._calls.get(tag, 0)
        self._calls[tag] = (number + 1) & 0xFFFFFFFF
        return number

    async def send(self, peer: int, key: Key, detail: int, tensor: Raw, timeout: float | None = None) -> None:
        """Send a frame; return when the kernel has taken all of it. Raises the `BrokenWorldError` of a broken world."""
        sending = self._transmit(peer, key, detail, tensor)
        if sending is not None:
            await self._finish_sending(peer, sending, timeout)
        elif self._sends < _SENDS_IN_A_ROW:
            self._sends += 1
        else:
            self._sends = self._polls = 0
            await asyncio.sleep(0)  # other tasks run during a loop of sends

    def _transmit(self, peer: int, key: Key, detail: int, tensor: Raw) -> Outgoing | None:
        """Send a frame, as `Link.send`."""
        try:
            sequence = self.state.next_frame(peer)
            if sequence is not None:
                (kind, tag, call), (dtype, shape, payload) = key, tensor
                length, epoch = len(payload), self.state.epoch
                head = (kind, dtype, shape, self.identity, epoch, call, sequence, tag, length, detail)
                return self._links[peer].send(encode(head), payload)
            self.apply(self.state.send_refused(peer))
        except BaseException as error:
            self.failed(error)
            if not isinstance(error, Exception):
                raise
        raise BrokenWorldError(self.name, self.epoch, *self.state.ended())

    async def _finish_sending(self, peer: int, outgoing: Outgoing, timeout: float | None) -> None:
        """Wait until the kernel has taken the rest of a frame."""
        number, timer = next(self._numbers), self.limit(peer, timeout)
        future = self.loop.create_future()
        self._operations[number] = operation = Operation(number, peer, None, future=future)
        outgoing.sent = partial(self._sent, operation)
        try:
            self.apply(self.state.send_waits(number, peer))
            await future
        except (asyncio.CancelledError, GeneratorExit):
            if not self.loop.is_closed():
                self.handle(self.state.cancelled, number)
            raise
        except BaseException as error:
            self.failed(error)
            if not isinstance(error, Exception):
                raise
        finally:
            self._operations.pop(number, None)
            if timer is not None:
                timer.cancel()
        if operation.fault is not None:
            raise BrokenWorldError(self.name, self.epoch, *operation.fault)

    def post(self, peer: int, key: Key, expected: Expected, buffer: memoryview | None) -> Operation:
        """Start to receive the next frame with this key; a buffer, when given, must have the size of its payload."""
        number = next(self._numbers)
        self._operations[number] = operation = Operation(number, peer, buffer, buffer is not None)
        try:
            instructions = self.state.receive_requested(number, peer, key, expected)
            if instructions:
                self.apply(instructions)
        except BaseException as error:
            self.failed(error)
            if not isinstance(error, Exception):
                raise
        return operation

    async def received(self, operation: Operation, timeout: float | None = None) -> tuple[Header, memoryview]:
        """Wait until a posted receive is done; a cancelled one leaves its message to the next receive.

        Raises the `BrokenWorldError` of a broken world.
        """
        timer = None if timeout is None else self.limit(operation.peer, timeout)
        try:
            if not operation.ended:
                link = self._links.get(operation.peer)
                if link is not None and link.responsive and self._polls < _POLLS_IN_A_ROW:
                    self._polls += 1
                    link.poll(operation)
                if not operation.ended:
                    await self._wait(operation, link)
        except BaseException:
            if operation.header is not None:
                self.handle(self.state.returned, operation.number, operation.peer, operation.header)
            else:
                self.handle(self.state.cancelled, operation.number)
            raise
        finally:
            self._operations.pop(operation.number, None)
            if timer is not None:
                timer.cancel()
        if operation.fault is not None:
            raise BrokenWorldError(self.name, self.epoch, *operation.fault)
        assert operation.header is not None
        assert operation.buffer is not None
        return operation.header, operation.buffer

    async def _wait(self, operation: Operation, link: Link | None) -> None:
        """Wait in the event loop until a receive ends."""
        if link is not None and link.paused:
            self._warn_if_blocked(operation.peer)
        began = self.loop.time()
        operation.future = self.loop.create_future()
        await operation.future
        self._sends = self._polls = 0
        if link is not None:
            small = operation.header is not None and operation.header.length <= SMALL
            link.responsive = small and self.loop.time() - began < _SOON_S

    def break_world(self, fault: Fault) -> None:
        """Break the world."""
        self.handle(self.state.aborted, fault)

    def limit(self, peer: int | None, timeout: float | None) -> asyncio.TimerHandle | None:
        """Break the world after this time, because of this peer or the one that is waited for, unless cancelled."""
        return None if timeout is None else self.loop.call_later(timeout, self._expire, peer, timeout)

    def _expire(self, peer: int | None, timeout: float) -> None:
        slow = next(iter(self.state.awaited()), self.rank) if peer is None else peer
        self.break_world(Fault(slow, "timeout", f"an operation took longer than {timeout:g} s"))

    async def close(self, linger: float) -> None:
        """Leave in good order; wait at most `linger` seconds until the peers' kernels have received all bytes."""
        try:
            self.handle(self.state.closed)
            deadline = self.loop.time() + linger
            links = list(self._links.values())
            while (links := [link for link in links if not link.drain()]) and self.loop.time() < deadline:
                await asyncio.sleep(0.001)
        finally:
            self._close_links()

    def _close_links(self) -> None:
        links, self._links = self._links, {}
        for link in links.values():
            link.close()

    def give_sign(self, peer: int) -> None:
        """Show a peer that this member is there, by a frame that nobody receives."""
        if self.is_open:
            self._transmit(peer, _SIGN, 0, _NOTHING)

    def lost(self, peer: int, cause: str, words: str) -> None:
        """Break the world because the connection to a peer has ended.

        Only while the world is made has nothing come from a peer. It may have given up because of another then, before
        its side of this connection stood: rank 0, which every member has a connection with, knows the first.
        """
        if self.is_open and self.rank and peer and not self.state.frames_from(peer):
            self.loop.call_later(REPORT_S, self.handle, self.state.lost, peer, cause, words)
        else:
            self.apply(self.state.lost(peer, cause, words))

    def dead(self, peer: int, words: str, seen: tuple[int, int, int] | None = None) -> None:
        """Break the world because a process is dead, once the connection ends, or no more of what it sent comes.

        `seen` is the position of the link the last time that this looked.
        """
        self.read_rest(peer)
        link = self._links.get(peer)
        if link is None or not self.is_open:
            return
        position = link.position()
        if position == seen:
            self.handle(self.state.lost, peer, "eof", words)
        else:
            self.loop.call_later(_QUIET_S, self.dead, peer, words, position)

    def read_rest(self, peer: int) -> None:
        """Read and keep all that has come from a peer that others have lost: it is still received."""
        link = self._links.get(peer)
        if link is not None:
            try:
                link.read_rest()
            except Exception as error:
                self.failed(error)

    def look(self, heartbeat: float, at: float, passed: Mapping[int, int]) -> dict[int, int]:
        """Break the world when a connection passes nothing any more.

        `passed` has the bytes that peers passed to their kernels for this member. Returns those that this member passed
        for them.
        """
        try:
            for link in list(self._links.values()):
                words = link.look(heartbeat, at, passed.get(link.peer, 0))
                if words:
                    self.apply(self.state.lost(link.peer, "cut", words))
        except Exception as error:
            self.failed(error)
        return {peer: link.sent for peer, link in self._links.items()}

    def reported(self, peer: int, accused: int, cause: str) -> None:
        """Break the world because the helper of a peer reports that it is broken."""
        self.read_rest(accused)
        self.handle(self.state.reported, peer, accused, cause)

    def failed(self, error: BaseException) -> None:
        """Break the world because of an unexpected error of this process, such as missing memory."""
        _log.error("world %r failed", self.name, exc_info=error)
        fault = Fault(self.rank, "closed", f"an unexpected error: {type(error).__name__}: {error}")
        instructions = self.state.aborted(fault)
        for operation in list(self._operations.values()):  # also those that the state has already ended
            if not operation.ended:
                operation.fault = self.state.fault or fault
                operation.end()
        self.apply(instructions)

    def handle(self, event: Callable[..., list[Instruction]], *args: Any) -> None:
        """Pass an event to the state and carry out its instructions; an unexpected error breaks the world."""
        try:
            self.apply(event(*args))
        except Exception as error:
            self.failed(error)

    def apply(self, instructions: list[Instruction]) -> None:
        """Carry out the instructions of the state, in order."""
        for instruction in instructions:
            # `match` would be several times slower, for each message.
            if isinstance(instruction, DeliverWhole):
                peer, number, header = instruction
                operation = self._operations[number]
                if operation.buffer is None:
                    operation.buffer = tensors.allocate(header.length)
                self._links[peer].take(operation.buffer)
                operation.header = header
                operation.end()
            elif isinstance(instruction, FillBuffer):
                peer, number, header = instruction
                operation = self._operations[number]
                if operation.buffer is None:
                    operation.buffer = tensors.allocate(header.length)
                self._links[peer].fill(operation.buffer)
            elif isinstance(instruction, Deliver):
                self._deliver(*instruction)
            elif isinstance(instruction, KeepMessage):
                peer, message, header = instruction
                self._messages[message] = tensors.allocate(header.length)
                self._links[peer].fill(self._messages[message])
            elif isinstance(instruction, TakeBack):
                peer, number, message = instruction
                self._messages[message] = self._taken_back(peer, self._operations[number])
            elif isinstance(instruction, PauseReading):
                self._links[instruction.peer].pause()
                self._warn_if_blocked(instruction.peer)
            elif isinstance(instruction, FailOperation):
                failed = self._operations.get(instruction.operation)
                if failed is not None:
                    failed.fault = instruction.fault
                    failed.end()
            elif isinstance(instruction, Notify):
                for peer, header in instruction.headers:
                    if peer in self._links:
                        link = self._links[peer]
                        (link.leave if header.kind is FrameKind.LEAVE else link.send_last)(header)
            elif isinstance(instruction, ForgetPeer):
                self._links[instruction.peer].finish()
                self._peer_left(self.identity, self.epoch, instruction.peer)
            else:
                self._messages = {message: self._messages[message] for message in instruction.kept}
                if instruction.fault is not None:
                    self._close_links()
                self._ended(self, None if instruction.fault is None else self.error)

    def _sent(self, operation: Operation) -> None:
        if not operation.ended:
            self.handle(self.state.send_done, operation.number)
            operation.end()

    def _warn_if_blocked(self, peer: int) -> None:
        if peer not in self._blocked and self.state.is_blocked(peer):
            self._blocked.add(peer)
            words = "world %r: a receive from rank %d waits behind %d MiB of other messages that nobody receives"
            _log.warning(words, self.name, peer, MAX_KEPT >> 20)

    def _taken_back(self, peer: int, operation: Operation) -> memoryview:
        """Return memory of our own with the payload of a receive, as far as it has come."""
        assert operation.buffer is not None
        if not operation.lent:
            return operation.buffer
        own = tensors.allocate(len(operation.buffer))
        if operation.ended:
            own[:] = operation.buffer
        else:
            self._links[peer].move(operation.buffer, own)
        return own

    def _deliver(self, number: int, header: Header, message: int | None) -> None:
        operation = self._operations[number]
        if message is not None:
            kept = self._messages.pop(message)
            if operation.buffer is None:
                operation.buffer = kept
            else:
                operation.buffer[:] = kept
        operation.header = header
        operation.end()
