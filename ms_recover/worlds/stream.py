"""Non-blocking sockets in an event loop, plain or TLS, for the handshake before a connection becomes a `Link`."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
import ssl
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from typing import Any, TypeVar

from ms_recover.errors import UsageError

T = TypeVar("T")
AGAIN = (BlockingIOError, InterruptedError, ssl.SSLWantReadError)
"""Raised by a read that would block."""


async def in_time(
    work: Coroutine[Any, Any, T],
    seconds: float | None,
    drop: Callable[[T], object] | None = None,
    stop: asyncio.Future[None] | None = None,
) -> T:
    """Return the result of a coroutine; raises `asyncio.TimeoutError` and cancels it when it takes longer.

    So it does when `stop` is done first. A cancellation is never lost, as by ``asyncio.wait_for`` before Python 3.12
    when the work ends at the same moment. `drop` is called with a result that nobody gets then.
    """
    task = asyncio.get_running_loop().create_task(work)
    try:
        ends: list[asyncio.Future[Any]] = [task] if stop is None else [task, stop]
        await asyncio.wait(ends, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise asyncio.TimeoutError
    except (asyncio.CancelledError, asyncio.TimeoutError):
        while not task.done():
            task.cancel()
            await asyncio.wait([task])
        if not task.cancelled() and task.exception() is None and drop is not None:
            drop(task.result())
        raise


async def when_ready(sock: socket.socket, call: Callable[[], T], *, writing: bool = False) -> T:
    """Call a function of a socket, again each time the socket is ready, until it does not block."""
    while True:
        try:
            return call()
        except ssl.SSLWantWriteError:
            write = True
        except ssl.SSLWantReadError:
            write = False
        except (BlockingIOError, InterruptedError):
            write = writing
        await _ready(sock.fileno(), write)


async def _ready(descriptor: int, write: bool) -> None:
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    add, remove = (loop.add_writer, loop.remove_writer) if write else (loop.add_reader, loop.remove_reader)
    add(descriptor, ready.set)
    try:
        await ready.wait()
    finally:
        remove(descriptor)


@contextlib.contextmanager
def closed_on_error(sock: socket.socket) -> Iterator[socket.socket]:
    """Close a socket when the block raises."""
    try:
        yield sock
    except BaseException:
        sock.close()
        raise


def new_socket(address: str, kind: socket.SocketKind) -> socket.socket:
    """Return a non-blocking socket of the address's family."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return socket.socket(family, kind | socket.SOCK_NONBLOCK)


async def connect(address: str, port: int, tls: ssl.SSLContext | None) -> socket.socket:
    """Open a connection, over TLS when there is a context."""
    with closed_on_error(new_socket(address, socket.SOCK_STREAM)) as sock:
        await asyncio.get_running_loop().sock_connect(sock, (address, port))
        if sock.getsockname() == sock.getpeername():
            raise ConnectionRefusedError("the connection reached itself: no program listens there")
        return await secure(sock, tls, host=False)


async def secure(sock: socket.socket, tls: ssl.SSLContext | None, *, host: bool) -> socket.socket:
    """Prepare an open connection, with a TLS handshake when there is a context; closes it on failure."""
    with closed_on_error(sock):
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is None:
            return sock
        wrapped = tls.wrap_socket(sock, server_side=host, do_handshake_on_connect=False)
    with closed_on_error(wrapped):
        await when_ready(wrapped, wrapped.do_handshake)
    return wrapped


async def read_exactly(sock: socket.socket, size: int) -> bytes:
    """Read exactly `size` bytes; raises `ConnectionResetError` when the other side closes the connection first."""
    data = bytearray()
    while len(data) < size:
        piece = await when_ready(sock, partial(sock.recv, size - len(data)))
        if not piece:
            raise ConnectionResetError("the other side closed the connection")
        data += piece
    return bytes(data)


async def write(sock: socket.socket, data: bytes) -> None:
    """Write all bytes."""
    view = memoryview(data)
    while view:
        sent = await when_ready(sock, partial(sock.send, view), writing=True)
        view = view[sent:]


def listen(address: str, port: int) -> socket.socket:
    """Open a listening socket."""
    with closed_on_error(new_socket(address, socket.SOCK_STREAM)) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((address, port))
        sock.listen(128)
        return sock


def check_listener(listener: object) -> None:
    """Raise `UsageError` for anything but an open, listening, non-blocking TCP socket."""
    wrong = ""
    if not isinstance(listener, socket.socket):
        wrong = "it is no socket"
    elif listener.fileno() < 0:
        wrong = "it is closed"
    elif listener.family not in (socket.AF_INET, socket.AF_INET6) or listener.type != socket.SOCK_STREAM:
        wrong = "it is no TCP socket"
    elif not listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        wrong = "it does not listen"
    elif listener.gettimeout() != 0:
        wrong = "it blocks"
    if wrong:
        raise UsageError(f"invalid listener: {wrong}, expected a listening, non-blocking TCP socket")


def bind_datagrams(address: str) -> socket.socket:
    """Open a UDP socket at an address, on a free port."""
    with closed_on_error(new_socket(address, socket.SOCK_DGRAM)) as sock:
        sock.bind((address, 0))
        return sock


async def resolve(name: str) -> list[str]:
    """Return the numeric addresses of a host; raises `UsageError` when it is unknown."""
    with contextlib.suppress(ValueError):
        return [str(ipaddress.ip_address(name))]
    try:
        infos = await asyncio.get_running_loop().getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise UsageError(f"{name!r} is not a valid address: {error}") from error
    return list(dict.fromkeys(str(info[4][0]) for info in infos))


def is_dead(sock: socket.socket) -> bool:
    """Whether the other side of an idle connection is known to be gone."""
    try:
        # The base class's recv looks below TLS.
        return socket.socket.recv(sock, 1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
    except (BlockingIOError, InterruptedError):
        return False
    except OSError:
        return True
