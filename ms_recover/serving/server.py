"""Serve a tree over HTTP until a signal, or until nobody wants it any more."""

from __future__ import annotations

import asyncio
import signal
import socket
import ssl
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from ms_recover.errors import StorageError, UsageError
from ms_recover.model.options import DEFAULT_SCAN, ScanOptions
from ms_recover.serving.app import App
from ms_recover.serving.connections import Connections
from ms_recover.serving.metrics import Metrics
from ms_recover.serving.tree import ServedTree
from ms_recover.stores.credentials import is_loopback, server_context, try_handshake
from ms_recover.stores.http_access import TOKEN_FILE_VARIABLE, TOKEN_VARIABLE, Access

_PAUSE_S = 0.2


@dataclass(frozen=True, slots=True)
class Listening:
    """Where a server listens."""

    address: str
    port: int
    tls: bool

    @property
    def url(self) -> str:
        """The URL of the tree."""
        host = f"[{self.address}]" if ":" in self.address else self.address
        return f"{'https' if self.tls else 'http'}://{host}:{self.port}"


def serve(  # noqa: PLR0913 (the keywords of programs)
    root: str,
    *,
    address: str = "127.0.0.1",
    port: int,
    access: Access | None = None,
    idle: float | None = None,
    jobs: int = 1,
    started: Callable[[Listening], None] = lambda at: None,
    options: ScanOptions = DEFAULT_SCAN,
) -> Literal["idle", "signal"]:
    """Serve a tree until Ctrl-C or SIGTERM; nothing is written.

    Parameters
    ----------
    address, port
        Where to listen; an address that is not loopback needs a token and TLS, or `Access.insecure`.
    access : Access, optional
        The token that clients show, and this server's certificate; with an authority clients show one of it, too. By
        default those of the environment.
    idle : float, optional
        End after so many seconds without a client.
    jobs : int
        Threads that digest slices.
    started : callable, optional
        Called when the port is open.

    Returns
    -------
    str
        Why it ended: no client for `idle` seconds, or a signal.

    Raises
    ------
    MsRecoverError
        When the tree cannot be scanned, the port cannot be had, or a token or TLS is missing where it is needed.
    """
    access = Access.from_environment() if access is None else access
    context = _context(access)
    listener = _listen(address, port, access)
    try:
        names = _own_names(address) if is_loopback(listener.getsockname()[0]) else None
        server = _Server(ServedTree(root, options), listener, access.token, context, jobs, names)
        return asyncio.run(_until_stopped(server, idle, started))
    finally:
        listener.close()


def _context(access: Access) -> ssl.SSLContext | None:
    """Return the TLS of a server, None without; UsageError when clients would not accept the certificate."""
    if access.certificate is None or access.key is None:
        if access.authority is not None:
            raise UsageError("--authority says whose clients may come: give --certificate and --key, too")
        return None
    try_handshake(access.certificate, access.key, access.authority)
    return server_context(access.certificate, access.key, access.authority)


def _listen(address: str, port: int, access: Access) -> socket.socket:
    """Open the port, after checking who could reach it."""
    try:
        family, _, _, _, where = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        if not is_loopback(str(where[0])) and not access.insecure:
            missing = [] if access.token else [f"a token (--token-file, {TOKEN_FILE_VARIABLE} or {TOKEN_VARIABLE})"]
            missing += [] if access.certificate else ["TLS (--certificate and --key)"]
            if missing:
                raise UsageError(
                    f"{where[0]} is not loopback, so {' and '.join(missing)} is needed; or say --insecure, and whoever "
                    "reaches this port can read the tree"
                )
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(where)
        except BaseException:
            listener.close()
            raise
        return listener
    except OSError as error:
        if isinstance(error, StorageError):
            raise
        raise StorageError(
            f"cannot listen at {address} port {port}: {error.strerror}; choose others with --bind and --port"
        ) from error


def _own_names(address: str) -> frozenset[str]:
    """Return the names of this host: as it is called itself, with its domain and without, and as it was given."""
    name = socket.gethostname().rstrip(".").lower()
    return frozenset((name, name.partition(".")[0], address.lower()))


async def _until_stopped(
    server: _Server, idle: float | None, started: Callable[[Listening], None]
) -> Literal["idle", "signal"]:
    task = asyncio.current_task()
    assert task is not None
    loop = asyncio.get_running_loop()

    def end() -> None:
        if not server.stop.is_set():  # before Python 3.12 a cancellation may be lost that comes as some work ends
            task.cancel()
            loop.call_later(_PAUSE_S, end)

    signals = (signal.SIGINT, signal.SIGTERM) if threading.current_thread() is threading.main_thread() else ()
    for number in signals:
        loop.add_signal_handler(number, end)
    with suppress(asyncio.CancelledError):
        await server.run(idle, started)
        return "idle"
    return "signal"


class _Server:
    """Answers the clients of one tree."""

    def __init__(
        self,
        tree: ServedTree,
        listener: socket.socket,
        token: bytes,
        context: ssl.SSLContext | None,
        jobs: int,
        names: frozenset[str] | None,
    ) -> None:
        self._tree, self._listener, self._token, self._names = tree, listener, token, names
        self._context, self._jobs = context, jobs
        self.stop = threading.Event()

    async def run(self, idle: float | None, started: Callable[[Listening], None]) -> None:
        """Answer clients until cancelled, or until there was none for `idle` seconds."""
        clock, metrics = asyncio.get_running_loop().time, Metrics()
        app = App(self._tree, self._token, self._jobs, metrics, self.stop, self._names)
        try:
            async with Connections(self._listener, app.handle, self._context, metrics) as connections:
                address, port = self._listener.getsockname()[:2]
                started(Listening(address, port, self._context is not None))
                app.last_seen = clock()
                while idle is None or app.active or connections.clients or clock() - app.last_seen < idle:
                    await asyncio.sleep(_PAUSE_S if idle is not None else 3600)
        finally:
            self.stop.set()
