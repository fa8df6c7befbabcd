"""A non-blocking socket for an event loop, plain or TLS: what the meeting needs before connections become links."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from functools import partial
from typing import TypeVar

T = TypeVar("T")
AGAIN = (BlockingIOError, InterruptedError, ssl.SSLWantReadError)
"""Raised by a read that has to wait."""


async def when_ready(sock: socket.socket, call: Callable[[], T], *, writing: bool = False) -> T:
    """Call until it no longer has to wait for the socket."""
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
    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()
    add, remove = (loop.add_writer, loop.remove_writer) if write else (loop.add_reader, loop.remove_reader)
    add(descriptor, _wake, future)
    try:
        await future
    finally:
        remove(descriptor)


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


async def connect(address: str, port: int, tls: ssl.SSLContext | None) -> socket.socket:
    """Open a connection."""
    loop = asyncio.get_running_loop()
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        await loop.sock_connect(sock, (address, port))
        if sock.getsockname() == sock.getpeername():
            raise ConnectionRefusedError("connected to itself, as happens on ports nobody listens on")
        return await secure(sock, tls, host=False)
    except BaseException:
        sock.close()
        raise


async def secure(sock: socket.socket, tls: ssl.SSLContext | None, *, host: bool) -> socket.socket:
    """Make an open connection ready for use, over TLS when there is a context; closes it on failure."""
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is None:
            return sock
        wrapped = tls.wrap_socket(sock, server_side=host, do_handshake_on_connect=False)
        sock = wrapped
        await when_ready(wrapped, wrapped.do_handshake)
        return wrapped
    except BaseException:
        sock.close()
        raise


async def read_exactly(sock: socket.socket, size: int) -> bytes:
    """Read so many bytes, and not one more.

    Raises
    ------
    ConnectionResetError
        When the other end closes first.
    """
    data = bytearray()
    while len(data) < size:
        piece = await when_ready(sock, partial(sock.recv, size - len(data)))
        if not piece:
            raise ConnectionResetError("the other end closed the connection")
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
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((address, port))
        sock.listen(128)
    except BaseException:
        sock.close()
        raise
    return sock


def is_dead(sock: socket.socket) -> bool:
    """Tell whether the other end of an idle connection is known to be gone."""
    try:
        # The base class's recv looks below TLS.
        return socket.socket.recv(sock, 1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
    except (BlockingIOError, InterruptedError):
        return False
    except OSError:
        return True
