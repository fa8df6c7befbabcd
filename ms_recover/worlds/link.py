"""One connection between two members of one world: frames out, frames in, large payloads without copies.

A receive first looks for a quick answer, because the event loop costs more than a small message. A look keeps its core
from a peer that runs on it. Linux keeps for each connection the core that took in its last bytes; between processes of
one machine that is the core of the sender. When it is this one, the kernel waits instead, which gives the core away.
Between machines it is the core of the network card's interrupts, which costs a look now and then. Yielding the core
between looks gives a whole time slice away under other load (docs/decisions/0035-short-waits.md).
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import fcntl
import select
import socket
import ssl
import struct
import termios
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from ms_recover.worlds import silence, wire
from ms_recover.worlds.instructions import Fault, Instruction
from ms_recover.worlds.sending import LargeFrames, Views, send_part
from ms_recover.worlds.state import WorldState
from ms_recover.worlds.stream import AGAIN
from ms_recover.worlds.wire import FrameKind, Header, ProtocolError

_BUFFER = 1 << 16
_LARGE = 3 << 20
"""Frames with a payload of so many bytes are sent by a thread; for smaller ones the way there and back costs more."""
_READS_IN_A_ROW = 4
_LOOK_S = 60e-6
_WAIT_S = 100e-6
_MAX_IN_VAIN = 63
_TOGETHER = 15
"""Looks that are left out when the peer was on this core: the scheduler may move it."""
_MAX_DESCRIPTOR = 1024  # of select, the only wait that knows microseconds
_DRAINS_IN_A_ROW = 64
_RTO_MAX_MS = 44  # of TCP, from Linux 6.15 on; socket has no name for it
_MAX_PROBES = 127  # the most that Linux takes; with them it does not end a connection before `look` does
_MAX_REPEATED = 10
"""Probes that are repeated at each look, so that a few lost ones say nothing."""
_INCOMING_CPU = getattr(socket, "SO_INCOMING_CPU", 49)  # Linux; the name is there from Python 3.11 on
_own_core = getattr(ctypes.CDLL(None), "sched_getcpu", None)
_ABORT, _LEAVE = FrameKind.ABORT, FrameKind.LEAVE  # an enumeration looks its members up slowly before Python 3.12


@dataclass(slots=True, eq=False)
class Outgoing:
    """A frame of which the kernel has not taken all bytes yet."""

    views: Views
    size: int
    sent: Callable[[], object] | None = None
    """Called when the kernel has taken all; never, when the link closes first."""


class _Attempts:
    """Attempts that are left out when they were in vain: one, then three, then seven, and so on."""

    def __init__(self) -> None:
        self.left_out = 0
        self._in_vain = 0

    def due(self) -> bool:
        """Whether to make the next attempt."""
        self.left_out -= 1
        return self.left_out < 0

    def helped(self, success: bool) -> bool:
        """Record whether an attempt helped, and return that."""
        self._in_vain = 0 if success else min(2 * self._in_vain + 1, _MAX_IN_VAIN)
        self.left_out = self._in_vain
        return success


@dataclass(slots=True, eq=False)
class Operation:
    """A send or receive, pending or ended."""

    number: int
    peer: int
    buffer: memoryview | None
    lent: bool = False
    """Whether the buffer is the caller's memory."""
    header: Header | None = None
    fault: Fault | None = None
    future: asyncio.Future[None] | None = None
    ended: bool = False
    """Whether a frame was sent, a receive has its message, or the operation failed."""

    def end(self) -> None:
        """Record that the operation has ended, and wake the task that waits for it."""
        self.ended = True
        if self.future is not None and not self.future.done():
            self.future.set_result(None)


class Owner(Protocol):
    """The world of a link, as the link needs it."""

    state: WorldState

    def apply(self, instructions: list[Instruction]) -> None:
        """Carry out what the state answers to an event."""

    def lost(self, peer: int, cause: str, words: str) -> None:
        """Handle the loss of a peer."""

    def failed(self, error: BaseException) -> None:
        """Break the world with an error that only the event loop would see."""

    def read_rest(self, peer: int) -> None:
        """Read all that a peer has sent."""


class Link:
    """A connected non-blocking socket, plain or TLS, on the running event loop; the link owns it from now on."""

    def __init__(self, sock: socket.socket, peer: int, world: Owner) -> None:
        self.peer = peer
        self._sock = sock
        self._world = world
        self._descriptor = sock.fileno()
        self._tls = isinstance(sock, ssl.SSLSocket)
        self._loop = asyncio.get_running_loop()
        self._flags = 0 if self._tls else socket.MSG_DONTWAIT
        self._queue: deque[Outgoing] = deque()
        self._large = None if self._tls else LargeFrames(sock, self._count, partial(self._guard, self._large_ended))
        self._at_large: Views | None = None
        """The views of the first frame while the thread sends it."""
        self._data = memoryview(bytearray(_BUFFER))
        self._start = 0
        self._end = 0
        self._target: memoryview | None = None
        """The rest of the memory of a payload."""
        self._paused = False
        self.closed = False
        self.left = False
        """Whether the other side has left in good order."""
        self._shut = False
        self.sent = 0
        """Bytes that the kernel has taken."""
        self._received = 0
        self._seen: silence.Seen | None = None
        self.responsive = False
        """Whether the last answer came so soon that waiting for the next one is faster than the event loop."""
        poller = select.poll()
        poller.register(self._descriptor, select.POLLIN)
        self._ready = poller.poll
        self._looks = _Attempts()
        self._waits = _Attempts()

    def start(self) -> None:
        """Begin to read."""
        self._loop.add_reader(self._descriptor, self._guard, self._readable)

    def send(self, head: bytes, payload: memoryview | None) -> Outgoing | None:
        """Send a frame, after earlier frames; return None when the kernel has taken all bytes."""
        views: Views = [head, payload] if payload else [head]
        if not self._queue and not (payload and len(payload) >= _LARGE and self._begin_large(views)):
            try:
                self._push(views)
            except OSError as error:
                self._loop.call_soon(self._guard, self._write_failed, error)
            if not views:
                return None
            self._loop.add_writer(self._descriptor, self._guard, self._writable)
        outgoing = Outgoing(views, len(head) + (len(payload) if payload else 0))
        self._queue.append(outgoing)
        return outgoing

    def send_last(self, header: Header) -> None:
        """Send a header as the last frame if that goes without waiting."""
        if not self._queue:
            with contextlib.suppress(OSError):  # the other side is gone; its helper process is informed as well
                self._push([wire.encode(header)])

    def leave(self, header: Header) -> None:
        """Stop reading and send a header as the last frame, after those that were sent.

        Of frames that wait the one that has begun is ended, from a copy, because their senders are informed that they
        failed; the others are dropped.
        """
        self.pause()
        self._take_back()
        dropped = 0
        while self._queue and (len(self._queue) > 1 or not self._has_begun()):
            self._queue.pop()
            dropped += 1
        for outgoing in self._queue:
            outgoing.views[:] = [bytes(view) for view in outgoing.views]
        self.send(wire.encode(header._replace(sequence=header.sequence - dropped)), None)

    def _has_begun(self) -> bool:
        if self._tls:
            return True  # a record may have begun without counting a byte
        first = self._queue[0]
        return sum(map(len, first.views)) < first.size

    def finish(self) -> None:
        """End this direction and read no more: the other side has left in good order."""
        self.left = True
        self.pause()
        self._shut_down()

    def _shut_down(self) -> None:
        if not self._shut:
            self._shut = True
            with contextlib.suppress(OSError):
                socket.socket.shutdown(self._sock, socket.SHUT_WR)  # the base class's: below TLS

    def fill(self, target: memoryview) -> None:
        """Read the next payload into this memory, of exactly its size."""
        count = min(self._end - self._start, len(target))  # bytes that were read together with the header
        if count:
            target[:count] = self._data[self._start : self._start + count]
            self._start += count
        self._target = target[count:]
        if self._paused:
            self._paused = False
            self._loop.add_reader(self._descriptor, self._guard, self._readable)
            self._parse()
            if self._tls:
                self._loop.call_soon(self._guard, self._readable)

    def move(self, old: memoryview, new: memoryview) -> None:
        """Read the rest of the payload that is being read into other memory, and copy the part that has come."""
        assert self._target is not None
        count = len(old) - len(self._target)
        new[:count] = old[:count]
        self._target = new[count:]

    @property
    def paused(self) -> bool:
        """Whether nothing is read, because there is no place for the next payload."""
        return self._paused

    def pause(self) -> None:
        """Do not read until the next `fill`."""
        self._paused = True
        self._loop.remove_reader(self._descriptor)

    def drain(self) -> bool:
        """After this member has left: drop what still comes; return whether the other side has all that was sent.

        A close with bytes that were not read would reset the connection, and lose what is under way.
        """
        if self.closed or self.left:
            return True
        try:
            if not self._queue:
                self._shut_down()
            for _ in range(_DRAINS_IN_A_ROW):
                if not socket.socket.recv_into(self._sock, self._data, 0, socket.MSG_DONTWAIT):
                    return True
        except AGAIN:
            pass
        except OSError:
            return True
        unconfirmed = fcntl.ioctl(self._descriptor, termios.TIOCOUTQ, b"\0" * 4)
        return not self._queue and not struct.unpack("i", unconfirmed)[0]

    def close(self) -> None:
        """Close the connection; bytes that were not sent yet are dropped."""
        if self.closed:
            return
        self.closed = True
        self._loop.remove_reader(self._descriptor)
        self._loop.remove_writer(self._descriptor)
        self._queue.clear()
        if self._large is not None:
            if self._at_large is not None:
                with contextlib.suppress(OSError):
                    self._sock.shutdown(socket.SHUT_RDWR)  # wakes the thread
            self._at_large = None
            self._large.close()
        self._sock.close()

    def _push(self, views: Views) -> None:
        """Send until it would block; remove sent bytes from the views."""
        while views:
            try:
                self.sent += send_part(self._sock, views, self._flags, self._tls)
            except (*AGAIN, ssl.SSLWantWriteError):
                return

    def _begin_large(self, views: Views) -> bool:
        """Let the thread send a frame, when it is a large one."""
        if self._large is None or len(views[-1]) < _LARGE:
            return False
        self._at_large = views
        self._large.send(views)
        return True

    def _count(self, sent: int) -> None:
        self.sent += sent  # in the thread: the event loop sends nothing meanwhile

    def _large_ended(self, views: Views) -> None:
        if views is self._at_large and self._large is not None and (self._large.error or not views):
            self._take_back()

    def _take_back(self) -> None:
        """Let the thread stop in the frame that it sends; the event loop continues with what is left."""
        if self._at_large is None or self._large is None:
            return
        self._large.stop()
        self._at_large, error = None, self._large.error
        if isinstance(error, OSError):
            self._write_failed(error)
        elif error is not None:
            raise error
        else:
            if not self._queue[0].views:
                self._first_sent()
            if self._queue:
                self._loop.add_writer(self._descriptor, self._guard, self._writable)

    def _first_sent(self) -> None:
        first = self._queue.popleft()
        if first.sent is not None:
            first.sent()

    def _writable(self) -> None:
        try:
            while self._queue:
                views = self._queue[0].views
                if self._begin_large(views):
                    break
                self._push(views)
                if views:
                    return
                self._first_sent()
        except OSError as error:
            self._write_failed(error)
            return
        self._loop.remove_writer(self._descriptor)

    def _write_failed(self, error: OSError) -> None:
        if not self.closed:
            self._loop.remove_writer(self._descriptor)
        self.read_rest()  # the other side may have sent the reason, or have left, before it closed
        if self.closed or self.left:
            return
        if isinstance(error, BrokenPipeError):
            self._lost("eof", str(error))
        else:
            self._failed(error)

    def position(self) -> tuple[int, int, int]:
        """How far this link has read: equal as long as nothing comes."""
        left = 0 if self._target is None else len(self._target)
        return self._world.state.frames_from(self.peer), left, self._end

    def read_rest(self) -> None:
        """Read and keep all that has come: the connection has failed, or another member says that this peer has."""
        if not self.closed and not self.left:
            self._world.apply(self._world.state.rest_is_read(self.peer))
        while not self.closed and not self._paused and self._read_once():
            pass

    def poll(self, operation: Operation) -> bool:
        """Wait for the peer's answer to a receive for a moment, without the event loop; return whether it ended.

        The event loop is blocked meanwhile. Looking again and again is fastest when the peer runs on another core; on
        the same core it would only keep the peer from answering, and the kernel waits instead. What was in vain is left
        out, more and more often, as when the peer is in this event loop.
        Large payloads are left to the event loop: they take long, and arrive in larger pieces when reads wait.
        """
        looks = self._looks.due()
        if looks and not self._is_apart():
            looks, self._looks.left_out = False, _TOGETHER
        ended = self._look(operation, _LOOK_S if looks else 0.0)
        if looks:
            self._looks.helped(ended)
        if not ended and self._descriptor < _MAX_DESCRIPTOR and self._waits.due():
            ended = self._waits.helped(self._wait(operation))
        return ended

    def _is_apart(self) -> bool:
        """Whether the last bytes came from another core than this one, or from another machine."""
        if _own_core is None:
            return True
        try:
            return bool(self._sock.getsockopt(socket.SOL_SOCKET, _INCOMING_CPU) != _own_core())
        except OSError:  # closed, or no such option
            return True

    def _look(self, operation: Operation, seconds: float) -> bool:
        """Look for bytes again and again, once at least, and read them; return whether the receive ended."""
        until = time.perf_counter() + seconds
        while self._may_read():
            if self._tls or self._ready(0):  # TLS may have buffered more than the socket shows
                self._guard(self._read_once)
                if operation.ended:
                    return True
            if time.perf_counter() > until:
                return False
        return False

    def _wait(self, operation: Operation) -> bool:
        """Let the kernel wait for bytes, and read them; return whether the receive ended."""
        until = time.perf_counter() + _WAIT_S
        left = _WAIT_S
        while left > 0 and self._may_read() and select.select((self._descriptor,), (), (), left)[0]:
            self._guard(self._read_once)
            if operation.ended:
                return True
            left = until - time.perf_counter()
        return False

    def _may_read(self) -> bool:
        large = self._target is not None and len(self._target) > _BUFFER
        return not (large or self.closed or self._paused)

    def _guard(self, handle: Callable[..., object], *args: object) -> object:
        """Handle an event; an error that the event loop would only log breaks the world."""
        try:
            return handle(*args)
        except Exception as error:
            self._world.failed(error)
            return None

    def _readable(self) -> None:
        for _ in range(_READS_IN_A_ROW):
            # After a payload its receiver runs first: it may provide the buffer of the next one.
            if self.closed or self._paused or not self._read_once() or not (self._tls or self._target is not None):
                return
        if self._tls:
            self._loop.call_soon(self._guard, self._readable)  # TLS may have buffered more than the socket shows

    def _read_once(self) -> bool:
        """Read once; return whether anything came."""
        if self._target is not None:
            into = self._target
        elif self._start == self._end:
            self._start = self._end = 0
            into = self._data
        else:
            if self._start:
                count = self._end - self._start
                self._data[:count] = bytes(self._data[self._start : self._end])
                self._start, self._end = 0, count
            into = self._data[self._end :]
        try:
            count = self._sock.recv_into(into, 0, self._flags)
        except AGAIN:
            return False
        except ssl.SSLEOFError:
            count = 0
        except OSError as error:
            self._failed(error)
            return False
        if not count:
            self._lost("eof", f"rank {self.peer} closed the connection")
            return False
        self._received += count
        if self._target is None:
            self._end += count
        else:
            self._target = self._target[count:]
            if self._target:
                return True
        self._parse()
        return True

    def look(self, heartbeat: float, at: float, passed: int) -> str:
        """Look whether the connection still passes bytes; return why it is cut, or nothing.

        `passed` are the bytes that the peer has passed to its kernel.
        """
        if self.closed or self.left:
            return ""
        if self._seen is None:
            self._seen = silence.Seen(at, at)
            self._keep_alive(heartbeat)
        info = silence.unpack_info(self._sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, silence.INFO_SIZE))
        waiting = fcntl.ioctl(self._descriptor, termios.FIONREAD, bytes(4)) != bytes(4)
        found = silence.Found(at, info, not self._paused and not waiting, self._received, passed)
        self._seen, verdict = silence.judge(self._seen, found, heartbeat)
        if verdict:
            return silence.describe(verdict, self.peer, self._ends(), heartbeat)
        if 0 < info.probes < _MAX_REPEATED:
            # Setting the time of an idle connection that is over sends the next probe at once, not after a pause.
            self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, silence.pause_s(heartbeat))
        return ""

    def _keep_alive(self, heartbeat: float) -> None:
        """Let the kernel probe the connection when it is idle, or the peer does not read; `look` judges the answers."""
        pause = silence.pause_s(heartbeat)
        with contextlib.suppress(OSError):  # without it, probes of a peer that does not read become rare
            self._sock.setsockopt(socket.IPPROTO_TCP, _RTO_MAX_MS, min(1000 * pause, 120_000))
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, pause)
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, pause)
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _MAX_PROBES)
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def _ends(self) -> str:
        with contextlib.suppress(OSError):
            ends = self._sock.getsockname(), self._sock.getpeername()
            return " between " + " and ".join(f"{address} port {port}" for address, port, *_ in ends)
        return ""

    def _failed(self, error: OSError) -> None:
        if isinstance(error, TimeoutError):  # nobody looked for so long that the kernel gave up first
            self._lost("cut", f"{error}: {silence.CHECK}")
        else:
            self._lost("reset", str(error))

    def _lost(self, cause: str, words: str) -> None:
        # When the peer has left, the world goes on, and the closed socket would wake the event loop again and again.
        self._loop.remove_reader(self._descriptor)
        self._world.lost(self.peer, cause, words)

    def take(self, target: memoryview) -> None:
        """Copy a payload that has come whole."""
        end = self._start + len(target)
        target[:] = self._data[self._start : end]
        self._start = end

    def _parse(self) -> None:
        """Pass complete headers and payloads to the state."""
        world = self._world
        try:
            while not self.closed and not self._paused:
                if self._target is not None:
                    if self._target:
                        return
                    self._target = None
                    world.apply(world.state.payload_received(self.peer))
                    continue
                start, end = self._start, self._end
                header = wire.decode(self._data, start, end) if start < end else None
                if header is None:
                    return
                kind, _, shape, _, _, call, _, _, length, _ = header
                if kind is _LEAVE:
                    self._take_back()  # of the frame that is being sent the peer may have had all
                self._start = start = start + wire.FIXED_SIZE + 8 * len(shape)
                if kind is _ABORT and call != self.peer:
                    world.read_rest(call)
                world.apply(world.state.header_received(self.peer, header, length <= end - start))
        except ProtocolError as error:
            world.apply(world.state.lost(self.peer, "protocol", str(error)))
