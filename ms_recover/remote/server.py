"""Serve a tree: one world of two for each client, any number of them."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Literal

from ms_recover.errors import BrokenWorldError, FormatError, MsRecoverError, StorageError
from ms_recover.model.contents import Contents
from ms_recover.model.options import DEFAULT_SCAN, ScanOptions
from ms_recover.remote.messages import (
    MAX_REPLY,
    MAX_REQUEST,
    RefusedError,
    Request,
    SliceRequest,
    read_request,
    say_contents,
    say_inventory,
    say_mode,
    say_refused,
    say_working,
)
from ms_recover.remote.peer import Address
from ms_recover.remote.served import ServedTree, check_unchanged
from ms_recover.stores.local import StoppedError
from ms_recover.worlds import stream
from ms_recover.worlds.manager import WorldManager
from ms_recover.worlds.security import Security
from ms_recover.worlds.transfer import TRANSFER_WORLD, Channel, TransferError, send_file

_log = logging.getLogger(__name__)
_MEETING_S = 30.0
_WORKING_S = 5.0
_MOST_CLIENTS = 64
_PAUSE_S = 0.2


def serve(
    root: str,
    *,
    address: str = "127.0.0.1",
    port: int,
    security: Security | None = None,
    idle: float | None = None,
    jobs: int = 1,
    ready: Callable[[str], None] = lambda text: None,
    started: Callable[[Address], None] | None = None,
    options: ScanOptions = DEFAULT_SCAN,
) -> Literal["idle", "signal"]:
    """Serve a tree until Ctrl-C or SIGTERM; nothing is written.

    Parameters
    ----------
    address, port
        Where to listen; an address that is not loopback needs a token.
    security : Security, optional
        With the token; from the environment by default.
    idle : float, optional
        End after so many seconds without a client.
    jobs : int
        Threads that digest slices.
    ready : callable
        Called with the line that says which tree is served at which address.
    started : callable, optional
        Called with that address at the same moment.

    Returns
    -------
    str
        Why it ended: no client for `idle` seconds, or a signal.

    Raises
    ------
    MsRecoverError
        When the tree cannot be scanned, the port cannot be had, or there is no token where one is needed.
    """
    tree = ServedTree(root, options)
    security = Security.from_environment() if security is None else security
    server = Server(tree, address, port, security, jobs)

    def begin(text: str, at: Address) -> None:
        ready(text)
        if started is not None:
            started(at)

    return asyncio.run(_until_stopped(server, idle, begin))


async def _until_stopped(
    server: Server, idle: float | None, ready: Callable[[str, Address], None]
) -> Literal["idle", "signal"]:
    task = asyncio.current_task()
    assert task is not None
    loop = asyncio.get_running_loop()

    def end() -> None:
        if not server.ending:  # before Python 3.12 wait_for may lose a cancellation that comes as its work ends
            task.cancel()
            loop.call_later(_PAUSE_S, end)

    signals = (signal.SIGINT, signal.SIGTERM) if threading.current_thread() is threading.main_thread() else ()
    for number in signals:
        loop.add_signal_handler(number, end)
    with suppress(asyncio.CancelledError):
        await server.run(idle, ready)
        return "idle"
    return "signal"


class Server:
    """Accepts the clients of one tree and answers them; parameters as for `serve`."""

    def __init__(self, tree: ServedTree, address: str, port: int, security: Security, jobs: int) -> None:
        self._tree, self._address, self._port = tree, address, port
        self._security, self._jobs = security, jobs
        self._clients: set[asyncio.Task[None]] = set()
        self._last_seen = 0.0
        self._stop = threading.Event()
        self._scanning = asyncio.Lock()

    @property
    def ending(self) -> bool:
        """Whether it accepts no more clients."""
        return self._stop.is_set()

    async def run(self, idle: float | None, ready: Callable[[str, Address], None]) -> None:
        """Accept clients until cancelled, or until no client has connected for `idle` seconds."""
        clock = asyncio.get_running_loop().time
        self._last_seen = clock()
        listener = None
        try:
            listener = await self._listen()
            over = "" if self._security.host_tls is None else " over TLS"
            at = Address(self._address, self._port)
            ready(f"serving {self._tree.root} at {at}{over}", at)
            while idle is None or self._clients or clock() - self._last_seen < idle:
                left = _MEETING_S if idle is None else idle if self._clients else self._last_seen + idle - clock()
                wait = max(min(_MEETING_S, left), _PAUSE_S)
                if len(self._clients) >= _MOST_CLIENTS or not await self._meet(listener, wait):
                    await asyncio.sleep(_PAUSE_S if len(self._clients) >= _MOST_CLIENTS else 0)
        finally:
            self._stop.set()
            for task in self._clients:
                task.cancel()
            await asyncio.gather(*self._clients, return_exceptions=True)
            if listener is not None:
                listener.close()

    async def _listen(self) -> socket.socket:
        """Open the port, which stays open between clients so that no other program takes it."""
        try:
            found = await asyncio.get_running_loop().getaddrinfo(self._address, self._port, type=socket.SOCK_STREAM)
            self._address = str(found[0][4][0])
            self._security.allow(self._address)
            return stream.listen(self._address, self._port)
        except OSError as error:
            raise StorageError(
                f"cannot listen at {self._address} port {self._port}: {error.strerror}; choose others with --bind "
                "and --port"
            ) from error

    async def _meet(self, listener: socket.socket, wait: float) -> bool:
        """Accept the next client; return whether one connected."""
        manager = WorldManager(security=self._security)
        try:
            await manager.initialize_world(
                TRANSFER_WORLD, 0, 2, self._address, self._port, timeout=wait, listener=listener
            )
        except BrokenWorldError as error:
            _log.debug("no client: %s", error)
            await manager.__aexit__()
            return False
        except BaseException:
            await manager.__aexit__()
            raise
        _log.info("a client is connected")
        task = asyncio.get_running_loop().create_task(self._attend(manager))
        self._clients.add(task)
        task.add_done_callback(self._forget)
        return True

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._clients.discard(task)
        self._last_seen = asyncio.get_running_loop().time()

    async def _attend(self, manager: WorldManager) -> None:
        """Answer one client until it disconnects."""
        channel = Channel(manager.communicator, TRANSFER_WORLD, 1)
        try:
            async with manager:
                while True:
                    data = await channel.receive_message(MAX_REQUEST, timeout=None)
                    try:
                        request = read_request(data)
                        if request.ask == "leave":
                            _log.info("a client leaves")
                            break
                        _log.info("a client asks for %s%s", request.ask, _named(request))
                        await self._answer(channel, request)
                    except (RefusedError, FormatError) as error:
                        await channel.send_message(say_refused(str(error)))
                    except (MsRecoverError, OSError) as error:
                        if isinstance(error, BrokenWorldError | TransferError):
                            raise
                        await channel.send_message(say_refused(f"reading failed: {error}"))
        except (BrokenWorldError, TransferError) as error:
            _log.info("a client is gone: %s", error)
        except StoppedError:
            pass
        except Exception:
            _log.exception("a client could not be answered")

    async def _answer(self, channel: Channel, request: Request) -> None:
        if request.ask == "inventory":
            async with self._scanning:
                reply = await asyncio.to_thread(self._inventory)
            await channel.send_message(reply)
        elif request.ask == "digests":
            await self._digest(channel, request)
        else:
            await self._give(channel, request.slices[0])

    def _inventory(self) -> bytes:
        self._tree.refresh(self._stop.is_set)
        reply = say_inventory(self._tree.to_json())
        if len(reply) > MAX_REPLY:
            raise RefusedError(
                f"the inventory of {self._tree.root} takes {len(reply)} bytes, more than fit: remove old steps from it"
            )
        return reply

    async def _digest(self, channel: Channel, request: Request) -> None:
        read = 0

        def progress(count: int) -> None:
            nonlocal read
            if self._stop.is_set() or channel.is_broken:
                raise StoppedError
            read += count

        reading: asyncio.Task[Contents] = asyncio.get_running_loop().create_task(
            asyncio.to_thread(self._tree.digests, request.slices, progress, self._jobs)
        )
        reported = 0
        try:
            while not (await asyncio.wait([reading], timeout=_WORKING_S))[0]:
                now = read
                await channel.send_message(say_working(now - reported))
                reported = now
            await channel.send_message(say_contents(reading.result()))
        finally:
            reading.cancel()

    async def _give(self, channel: Channel, wanted: SliceRequest) -> None:
        descriptor = await asyncio.to_thread(self._tree.open, wanted)
        try:
            reached = await send_file(channel, descriptor, wanted.offset, wanted.stop)
            status = os.fstat(descriptor)
            check_unchanged(status, wanted)
            if reached != wanted.stop:
                raise RefusedError(f"{wanted.path} ends at byte {reached}: it changes while it is read")
            await channel.send_message(say_mode(status.st_mode))
        finally:
            os.close(descriptor)


def _named(request: Request) -> str:
    if len(request.slices) == 1:
        return f": {request.slices[0].path}"
    return f": {len(request.slices)} slices" if request.slices else ""
