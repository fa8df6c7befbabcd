"""The connections of a server: how many there may be, and for how long one may say nothing or too little."""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
import ssl
import struct
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from aiohttp import web

from ms_recover.serving.metrics import Metrics

_log = logging.getLogger(__name__)
_quiet = logging.getLogger(f"{__name__}.aiohttp")

SERVER = "ms_recover"
"""How a server names itself in every answer."""

MOST_CONNECTIONS = 512
HEAD_S = 10.0
"""Seconds for the TLS handshake, and for the head of a request from its first byte on, or from the connection's."""
IDLE_S = 60.0
"""Seconds between two requests on a connection."""
MOST_HEAD = 64 << 10
"""Bytes of the head of a request."""
_MOST_LINE = 16 << 10
_LOOK_S = 0.5
_BACKLOG = 1024
_DESCRIPTORS = 4096
_PAUSE_S = 0.2
_GOODBYE_S = 0.2
_BUSY = (
    b"HTTP/1.1 503 Service Unavailable\r\nServer: ms_recover\r\nRetry-After: 1\r\nX-Ms-Recover: 1\r\n"
    b"Content-Length: 0\r\nConnection: close\r\n\r\n"
)
_TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\nServer: ms_recover\r\nContent-Length: 0\r\n"
    b"Connection: close\r\n\r\n"
)

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class Connection(web.RequestHandler):
    """One connection; `since` is when it last began or ended something, by the loop's clock."""

    def __init__(self, server: web.Server, loop: asyncio.AbstractEventLoop, **options: Any) -> None:
        super().__init__(server, loop=loop, **options)
        self.clock = loop.time
        self.since = loop.time()
        self.is_client = False
        self.asked = self.answering = False
        self._head = 0
        self.ended: asyncio.Future[None] | None = None

    def connection_lost(self, exc: BaseException | None) -> None:
        """Note the end."""
        super().connection_lost(exc)
        if self.ended is not None and not self.ended.done():
            self.ended.set_result(None)

    def data_received(self, data: bytes) -> None:
        """Take bytes; the head of a request has to be complete before there are too many."""
        if not self.asked and not self._head and data:
            self.since = self.clock()
        super().data_received(data)
        if self.asked or self._messages:
            self._head = 0
            return
        self._head += len(data)
        if self._head > MOST_HEAD and self.transport is not None:
            self.transport.write(_TOO_LARGE)
            self.force_close()

    def handle_error(self, *about: Any, **named: Any) -> web.StreamResponse:
        """Answer what is no request, without the names and versions of the programs that read it."""
        response = super().handle_error(*about, **named)
        response.headers["Server"] = SERVER
        return response

    def begin(self) -> None:
        """Note that a request is there."""
        self.asked, self.answering, self.since = True, True, self.clock()

    def end(self) -> None:
        """Note that it is answered."""
        self.asked, self.answering, self.since, self._head = False, False, self.clock(), 0

    @property
    def is_fresh(self) -> bool:
        """Whether it never had a complete request, or has part of one."""
        return not self.is_client or self._head > 0


class _Factory(web.Server):
    """Makes connections that note when a request is there."""

    def __call__(self) -> Connection:
        return Connection(self, self._loop, **self._kwargs)

    def _make_request(self, message: Any, payload: Any, protocol: Any, writer: Any, task: Any) -> web.BaseRequest:
        protocol.asked, protocol.since = True, protocol.clock()
        return super()._make_request(message, payload, protocol, writer, task)


class _Accepted:
    """A connection from its first moment on, also while TLS begins."""

    def __init__(self, sock: socket.socket, since: float) -> None:
        self.sock, self.since = sock, since
        self.connection: Connection | None = None

    def waits_since(self) -> float | None:
        """Return since when it waits for its client; None while a request is answered."""
        if self.connection is None:
            return self.since
        return None if self.connection.asked else self.connection.since

    def is_late(self, now: float) -> bool:
        """Whether its client took too long."""
        if self.connection is None:
            return now - self.since > HEAD_S
        if self.connection.answering:
            return False
        return now - self.connection.since > (HEAD_S if self.connection.asked or self.connection.is_fresh else IDLE_S)

    def abort(self) -> None:
        """End it at once."""
        if self.connection is not None and self.connection.transport is not None:
            abort(self.connection.transport)
        else:
            with suppress(OSError):
                self.sock.shutdown(socket.SHUT_RDWR)


class Connections:
    """Accepts connections at an open port and passes their requests to a handler; an asynchronous context manager.

    Above the limit the one that has waited longest for its client makes place for the next; where all are at work, the
    next one is turned away.
    """

    def __init__(
        self, listener: socket.socket, handler: Handler, context: ssl.SSLContext | None, metrics: Metrics
    ) -> None:
        self._listener, self._handler, self._context, self._metrics = listener, handler, context, metrics
        self._open: set[_Accepted] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()
        self._server = _Factory(
            handler, loop=self._loop, access_log=None, logger=_quiet, keepalive_timeout=2 * IDLE_S, lingering_time=0,
            max_line_size=_MOST_LINE, auto_decompress=False,
        )  # fmt: skip

    async def __aenter__(self) -> Connections:
        _quiet.setLevel(logging.CRITICAL)
        self._loop.set_exception_handler(_note)
        _allow_descriptors()
        self._listener.setblocking(False)
        self._listener.listen(_BACKLOG)
        self._loop.add_reader(self._listener.fileno(), self._accept)
        self._start(self._look())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._loop.remove_reader(self._listener.fileno())
        self._listener.close()
        await self._server.shutdown(_GOODBYE_S)
        for one in self._open:
            one.abort()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def clients(self) -> int:
        """Connections that are open and asked for something of the tree."""
        return sum(one.connection is not None and one.connection.is_client for one in self._open)

    def _start(self, work: Any) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _accept(self) -> None:
        for _ in range(_BACKLOG):
            try:
                sock, _address = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # too many open files
                _log.warning("no connection can be accepted: %s", error.strerror)
                self._loop.remove_reader(self._listener.fileno())
                self._loop.call_later(_PAUSE_S, self._accept_again)
                return
            sock.setblocking(False)
            if len(self._open) >= MOST_CONNECTIONS and not self._make_place():
                self._refuse(sock)
                continue
            one = _Accepted(sock, self._loop.time())
            self._open.add(one)
            self._start(self._attend(one))

    def _accept_again(self) -> None:
        if self._listener.fileno() >= 0:
            self._loop.add_reader(self._listener.fileno(), self._accept)

    def _make_place(self) -> bool:
        """End the connection that waits longest for its client; return whether there was one."""
        waiting = [(since, id(one), one) for one in self._open if (since := one.waits_since()) is not None]
        if not waiting:
            return False
        self._metrics.refused_connections += 1
        one = min(waiting)[2]
        one.abort()
        self._open.discard(one)
        return True

    def _refuse(self, sock: socket.socket) -> None:
        self._metrics.refused_connections += 1
        with sock, suppress(OSError):
            if self._context is None:
                sock.send(_BUSY)

    async def _attend(self, one: _Accepted) -> None:
        limit = None if self._context is None else HEAD_S
        ended = self._loop.create_future()

        def make() -> Connection:
            one.connection = self._server()
            one.connection.ended = ended
            return one.connection

        try:
            self._metrics.open_connections += 1
            one.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await self._loop.connect_accepted_socket(make, one.sock, ssl=self._context, ssl_handshake_timeout=limit)
            await ended
        except (OSError, ssl.SSLError) as error:  # of the handshake
            _log.debug("a client is gone: %s", error)
            one.sock.close()
        finally:
            self._metrics.open_connections -= 1
            self._open.discard(one)

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            now = self._loop.time()
            for one in [one for one in self._open if one.is_late(now)]:
                self._metrics.timed_out_connections += 1
                one.abort()


def abort(transport: asyncio.Transport) -> None:
    """End a connection at once; what its client has not taken is thrown away."""
    sock = transport.get_extra_info("socket")
    if sock is not None:
        with suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()


def _note(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log an error of a connection that is gone; the event loop would print it."""
    _log.debug("a connection ends: %s (%s)", context.get("message"), context.get("exception"))


def _allow_descriptors() -> None:
    """Let this process open as many files as all connections take."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _DESCRIPTORS if hard == resource.RLIM_INFINITY else min(_DESCRIPTORS, hard)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
