"""One connection between two members of one world: frames out, frames in, large payloads without copies."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import socket
import ssl
import struct
import termios
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from ms_recover.worlds import wire
from ms_recover.worlds.stream import AGAIN
from ms_recover.worlds.wire import ProtocolError

if TYPE_CHECKING:
    from ms_recover.worlds.world import World  # which imports this module

_BUFFER = 1 << 16
_READS_IN_A_ROW = 4
_TCP_CLOSE = 7


class _Outgoing(NamedTuple):
    views: list[bytes | memoryview]
    done: asyncio.Future[None]


class Link:
    """A connected non-blocking socket, plain or TLS, on the running event loop; the link owns it from now on."""

    def __init__(self, sock: socket.socket, peer: int, world: World) -> None:
        self.peer = peer
        self._sock = sock
        self._world = world
        self._descriptor = sock.fileno()
        self._tls = isinstance(sock, ssl.SSLSocket)
        self._loop = asyncio.get_running_loop()
        self._queue: deque[_Outgoing] = deque()
        self._data = memoryview(bytearray(_BUFFER))
        self._start = 0
        self._end = 0
        self._target: memoryview | None = None
        """The rest of the memory of a payload."""
        self._paused = False
        self.closed = False
        self.responsive = False
        """Whether the last answer came so soon that polling for the next one is faster than sleeping."""

    def start(self) -> None:
        """Begin to read."""
        self._loop.add_reader(self._descriptor, self._guard, self._readable)

    def send(self, head: bytes, payload: memoryview | None) -> asyncio.Future[None] | None:
        """Send a frame, after earlier frames.

        Returns None when the kernel has taken all bytes, or a future, which is cancelled when the link closes first.
        """
        views: list[bytes | memoryview] = [head, payload] if payload else [head]
        if not self._queue:
            try:
                self._push(views)
            except OSError as error:
                self._loop.call_soon(self._guard, self._write_failed, error)
            if not views:
                return None
            self._loop.add_writer(self._descriptor, self._guard, self._writable)
        outgoing = _Outgoing(views, self._loop.create_future())
        self._queue.append(outgoing)
        return outgoing.done

    def send_last(self, head: bytes, *, leaving: bool) -> None:
        """Send a header as the last frame if that goes without waiting, and stop reading when this member leaves."""
        if leaving:
            self.pause()
        if self._queue:
            return
        if leaving:
            self.send(head, None)
        else:
            with contextlib.suppress(OSError):  # the other side is gone; its helper process is informed as well
                self._push([head])

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

    def pause(self) -> None:
        """Do not read until the next `fill`."""
        self._paused = True
        self._loop.remove_reader(self._descriptor)

    @property
    def flushed(self) -> bool:
        """Whether the other side's kernel has confirmed all bytes."""
        if self.closed:
            return True
        try:
            waiting = fcntl.ioctl(self._descriptor, termios.TIOCOUTQ, b"\0" * 4)
            disconnected = self._sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == _TCP_CLOSE
        except OSError:
            return True
        return disconnected or (not self._queue and not struct.unpack("i", waiting)[0])

    def close(self) -> None:
        """Close the connection; bytes that were not sent yet are dropped."""
        if self.closed:
            return
        self.closed = True
        self._loop.remove_reader(self._descriptor)
        self._loop.remove_writer(self._descriptor)
        for outgoing in self._queue:
            outgoing.done.cancel()
        self._queue.clear()
        self._sock.close()

    def _push(self, views: list[bytes | memoryview]) -> None:
        """Send until it would block; remove sent bytes from the views."""
        while views:
            try:
                sent = self._sock.send(views[0]) if self._tls or len(views) == 1 else self._sock.sendmsg(views)
            except (*AGAIN, ssl.SSLWantWriteError):
                return
            while views and sent >= len(views[0]):
                sent -= len(views.pop(0))
            if views:
                views[0] = views[0][sent:]

    def _writable(self) -> None:
        try:
            while self._queue:
                views, done = self._queue[0]
                self._push(views)
                if views:
                    return
                self._queue.popleft()
                if not done.done():
                    done.set_result(None)
        except OSError as error:
            self._write_failed(error)
            return
        self._loop.remove_writer(self._descriptor)

    def _write_failed(self, error: OSError) -> None:
        # The other side may have sent the reason before it closed.
        while not self.closed and not self._paused and self._read():
            pass
        if not self.closed:
            self._lost("eof" if isinstance(error, BrokenPipeError) else "reset", str(error))

    def poll(self, seconds: float, done: Callable[[], bool]) -> None:
        """Read for at most this time, or until `done`; the event loop is blocked meanwhile.

        Large payloads are left to the event loop: they take long, and arrive in larger pieces when reads wait.
        """
        until = self._loop.time() + seconds
        while not (done() or self.closed or self._paused or self._loop.time() > until):
            if self._target is not None and len(self._target) > _BUFFER:
                return
            self._guard(self._read)

    def _guard(self, handle: Callable[..., object], *args: object) -> None:
        """Handle an event; an error that the event loop would only log breaks the world."""
        try:
            handle(*args)
        except Exception as error:
            self._world.failed(error)

    def _readable(self) -> None:
        for _ in range(_READS_IN_A_ROW):
            if self.closed or self._paused or not self._read():
                return
        if self._tls:
            self._loop.call_soon(self._guard, self._readable)  # TLS may have buffered more than the socket shows

    def _read(self) -> bool:
        """Read once; return whether there may be more."""
        if self._target is None and self._start:
            count = self._end - self._start
            if count:
                self._data[:count] = bytes(self._data[self._start : self._end])
            self._start, self._end = 0, count
        try:
            count = self._sock.recv_into(self._data[self._end :] if self._target is None else self._target)
        except AGAIN:
            return False
        except ssl.SSLEOFError:
            count = 0
        except OSError as error:
            self._lost("reset", str(error))
            return False
        if not count:
            self._lost("eof", f"rank {self.peer} closed the connection")
            return False
        if self._target is None:
            self._end += count
        else:
            self._target = self._target[count:]
            if self._target:
                return True
        self._parse()
        # After a payload its receiver runs first: it may provide the buffer of the next one.
        return self._tls or self._target is not None

    def _lost(self, cause: str, words: str) -> None:
        # When the peer has left, the world goes on, and the closed socket would wake the event loop again and again.
        self._loop.remove_reader(self._descriptor)
        self._world.apply(self._world.state.lost(self.peer, cause, words))

    def _parse(self) -> None:
        """Pass complete headers and payloads to the state."""
        try:
            while (self._start < self._end or self._target is not None) and not self.closed and not self._paused:
                if self._target is None:
                    header = wire.decode(self._data, self._start, self._end)
                    if header is None:
                        return
                    self._start += wire.FIXED_SIZE + 8 * len(header.shape)
                    self._world.apply(self._world.state.header_received(self.peer, header))
                elif self._target:
                    return
                else:
                    self._target = None
                    self._world.apply(self._world.state.payload_received(self.peer))
        except ProtocolError as error:
            self._world.apply(self._world.state.lost(self.peer, "protocol", str(error)))
