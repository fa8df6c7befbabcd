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
from typing import NamedTuple, Protocol

from ms_recover.worlds import wire
from ms_recover.worlds.stream import AGAIN
from ms_recover.worlds.wire import Header, WireError

_BUFFER = 1 << 16
_READS_IN_A_ROW = 4
_TCP_CLOSE = 7


class Sink(Protocol):
    """Who hears what a link receives."""

    def header_came(self, peer: int, header: Header) -> None:
        """Answer with `Link.fill` or `Link.hold` when a payload belongs to it."""

    def payload_came(self, peer: int) -> None:
        """Take the payload."""

    def lost(self, peer: int, cause: str, words: str) -> None:
        """Close the link."""


class _Outgoing(NamedTuple):
    views: list[bytes | memoryview]
    done: asyncio.Future[None]


class Link:
    """A connected non-blocking socket on the running event loop.

    Parameters
    ----------
    sock : socket.socket
        Plain or TLS; the link owns it from now on.
    peer : int
        Rank at the other end.
    sink : Sink
    """

    def __init__(self, sock: socket.socket, peer: int, sink: Sink) -> None:
        self.peer = peer
        self._sock, self._sink = sock, sink
        self._descriptor = sock.fileno()
        self._tls = isinstance(sock, ssl.SSLSocket)
        self._loop = asyncio.get_running_loop()
        self._queue: deque[_Outgoing] = deque()
        self._data = memoryview(bytearray(_BUFFER))
        self._start = self._end = 0
        self._target: memoryview | None = None
        self._filled = 0
        self._held = self.closed = False
        self.lively = False
        """Whether the last answer came so soon that it is worth to look for the next one instead of sleeping."""

    def start(self) -> None:
        """Begin to read."""
        self._loop.add_reader(self._descriptor, self._readable)

    def send(self, head: bytes, payload: memoryview | None) -> asyncio.Future[None] | None:
        """Send a frame after those before it.

        Returns
        -------
        asyncio.Future or None
            None when all of it is out already. A future is cancelled when the link closes first.
        """
        views: list[bytes | memoryview] = [head, payload] if payload else [head]
        if not self._queue:
            try:
                self._push(views)
            except OSError as error:
                self._loop.call_soon(self._write_failed, error)
            if not views:
                return None
            self._loop.add_writer(self._descriptor, self._writable)
        outgoing = _Outgoing(views, self._loop.create_future())
        self._queue.append(outgoing)
        return outgoing.done

    def say(self, head: bytes) -> None:
        """Send a header if that goes without waiting; nothing else may follow."""
        if not self._queue:
            with contextlib.suppress(OSError):  # the other end is gone: it hears by other ways
                self._push([head])

    def fill(self, target: memoryview) -> None:
        """Read the payload that comes next into this memory, of exactly its size."""
        self._target, self._filled = target, 0
        if self._held:
            self._held = False
            self._loop.add_reader(self._descriptor, self._readable)
            self._parse()
            if self._tls:
                self._loop.call_soon(self._readable)

    def hold(self) -> None:
        """Read nothing until the next `fill`."""
        self._held = True
        self._loop.remove_reader(self._descriptor)

    def finish(self, head: bytes) -> None:
        """Send a header as the last thing and read no more; a frame that is half out is left so."""
        self._loop.remove_reader(self._descriptor)
        self._held = True
        if not self._queue:
            self.send(head, None)

    @property
    def flushed(self) -> bool:
        """Whether the other end's kernel has confirmed all bytes."""
        if self.closed:
            return True
        try:
            waiting = fcntl.ioctl(self._descriptor, termios.TIOCOUTQ, b"\0" * 4)
            disconnected = self._sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == _TCP_CLOSE
        except OSError:
            return True
        return disconnected or (not self._queue and not struct.unpack("i", waiting)[0])

    def close(self) -> None:
        """Close the connection; what was not sent yet is dropped."""
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
        """Send until it would wait; sent bytes are cut off the views."""
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
        # The other end may have said why before it closed.
        while not self.closed and not self._held and self._read():
            pass
        if not self.closed:
            self._sink.lost(self.peer, "eof" if isinstance(error, BrokenPipeError) else "reset", str(error))

    def look(self, seconds: float, done: Callable[[], bool]) -> None:
        """Read what comes within this time, until it is done; nothing else happens in the loop meanwhile.

        Large payloads are left to the loop: they take their time, and come in larger pieces when nobody hurries them.
        """
        until = self._loop.time() + seconds
        while not (done() or self.closed or self._held or self._loop.time() > until):
            if self._target is not None and len(self._target) > _BUFFER:
                return
            self._read()

    def _readable(self) -> None:
        for _ in range(_READS_IN_A_ROW):
            if self.closed or self._held or not self._read():
                return
        if self._tls:
            self._loop.call_soon(self._readable)  # there may be more at hand with nothing left on the socket

    def _read(self) -> bool:
        """Read once; tell whether there may be more."""
        if self._target is None:
            if self._start:
                have = self._end - self._start
                if have:
                    self._data[:have] = bytes(self._data[self._start : self._end])
                self._start, self._end = 0, have
            target = self._data[self._end :]
        else:
            target = self._target[self._filled :]
        try:
            count = self._sock.recv_into(target)
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
            self._parse()
        else:
            self._filled += count
            if self._filled < len(self._target):
                return True
            self._parse()
        # After the end of a payload the task that waits for it comes first: it may say where the next one goes.
        return self._tls or self._target is not None

    def _lost(self, cause: str, words: str) -> None:
        # The world goes on when the peer has left: then the end of the connection would wake the loop without end.
        self._loop.remove_reader(self._descriptor)
        self._sink.lost(self.peer, cause, words)

    def _parse(self) -> None:
        """Hand on what has been read, as far as it goes."""
        try:
            while (self._start < self._end or self._target is not None) and not self.closed and not self._held:
                if self._target is None:
                    header = wire.decode(self._data, self._start, self._end)
                    if header is None:
                        return
                    self._start += wire.FIXED_SIZE + 8 * len(header.shape)
                    self._sink.header_came(self.peer, header)
                elif self._take(self._target):
                    self._target = None
                    self._sink.payload_came(self.peer)
                else:
                    return
        except WireError as error:
            self._sink.lost(self.peer, "protocol", str(error))

    def _take(self, target: memoryview) -> bool:
        """Move what has been read behind a header to where it belongs; tell whether that is the whole payload."""
        take = min(self._end - self._start, len(target) - self._filled)
        if take:
            target[self._filled : self._filled + take] = self._data[self._start : self._start + take]
            self._filled += take
            self._start += take
        return self._filled == len(target)
