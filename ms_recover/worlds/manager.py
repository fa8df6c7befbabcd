"""Making and removing worlds."""

from __future__ import annotations

import asyncio
import atexit
import functools
import logging
import socket
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from ms_recover.errors import BrokenWorldError, UsageError
from ms_recover.worlds import arguments, stream
from ms_recover.worlds.authentication import AcceptError, JoinError, OnStatus
from ms_recover.worlds.communicator import WorldCommunicator
from ms_recover.worlds.handshake import MAX_NAME, MAX_SIZE, Hello, Purpose
from ms_recover.worlds.instructions import Fault
from ms_recover.worlds.rendezvous import host_rendezvous, join_rendezvous
from ms_recover.worlds.security import Security
from ms_recover.worlds.watchdog import WatchDog
from ms_recover.worlds.world import World

_log = logging.getLogger(__name__)
_LINGER_S = 2.0
_HEARTBEATS_PER_LIMIT = 10
DEVICE_LINKS = ("hccl", "nccl")
"""Backends of other libraries that connect devices without the host."""
CARRIER = "worlds carry host memory over TCP, and tensors of devices cross the host"


@dataclass(frozen=True)
class WorldInfo:
    """The state of a world in this process; `error` is None while the world is not broken."""

    name: str
    epoch: int
    rank: int
    size: int
    error: BrokenWorldError | None


class WorldManager:
    """Makes, removes and watches the worlds of this process.

    Use it as an asynchronous context manager in one event loop; its end removes all worlds in good order. Worlds share
    nothing: a fault in one does not affect the others.

    Parameters
    ----------
    heartbeat : float
        Seconds of silence after which a frozen or unreachable peer is lost. A connection that passes nothing although
        heartbeats come is lost within three times that, or 4 s if that is longer.
    security : Security, optional
        ``Security.from_environment()`` by default.

    Attributes
    ----------
    communicator : WorldCommunicator
        Sends and receives in the worlds of this process.
    watchdog : WatchDog
        Detects frozen and unreachable peers.
    """

    def __init__(self, *, heartbeat: float = 3.0, security: Security | None = None) -> None:
        if not isinstance(security, Security | None):
            raise UsageError(f"invalid security {security!r:.80}: it must be a Security")
        self._security = Security.from_environment() if security is None else security
        self.watchdog = WatchDog(heartbeat, self._peer_lost)
        self.communicator = WorldCommunicator(self._find)
        self._worlds: dict[str, World] = {}
        self._making: set[str] = set()
        self._epochs: dict[str, int] = {}
        self._callbacks: list[Callable[[BrokenWorldError], None]] = []
        self._answered: set[str] = set()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def __aenter__(self) -> WorldManager:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._use_loop()
        worlds, self._worlds = list(self._worlds.values()), {}
        for world in worlds:
            world.handle(world.state.closed)
        try:
            await asyncio.gather(*(world.close(_LINGER_S) for world in worlds))
        finally:
            for world in worlds:  # which a cancellation may have kept from it
                await world.close(0.0)
            self._loop = None
            await self.watchdog.close()

    @property
    def worlds(self) -> dict[str, WorldInfo]:
        """The worlds of this process, by name; broken ones too, until they are removed or made again."""
        made = [world for name, world in list(self._worlds.items()) if name not in self._making]
        return {world.name: WorldInfo(world.name, world.epoch, world.rank, world.size, world.error) for world in made}

    def on_broken(self, callback: Callable[[BrokenWorldError], None]) -> None:
        """Call a function, in the event loop, with the error whenever a world breaks."""
        if not callable(callback):
            raise UsageError(f"invalid callback {callback!r:.80}: it must be a function of one error")
        self._callbacks.append(callback)

    async def initialize_world(
        self,
        name: str,
        rank: int,
        size: int,
        addr: str = "127.0.0.1",
        port: int = 29500,
        timeout: float = 30.0,
        *,
        backend: str | None = None,
        listener: socket.socket | None = None,
    ) -> None:
        """Become a member of a new world; return when all members have joined.

        Parameters
        ----------
        name : str
            At most 255 bytes; the same on all members. The name of a broken or removed world may be used again.
        rank, size : int
            This member's rank, and the number of members, at most 1024.
        addr : str
            Where rank 0 listens until all members have joined. When a name has several addresses, rank 0 takes the
            first, and the other ranks try each.
        port : int
            Each world needs a port of its own while it is being made.
        timeout : float
            Seconds until all members must have joined.
        backend : str, optional
            Accepted for programs that were written for torch.distributed or MultiWorld. It chooses nothing: worlds
            carry host memory over TCP. A warning says so for one that stands for a link between devices.
        listener : socket.socket, optional
            For rank 0: a listening, non-blocking socket at `addr` and `port`, which stays open. With it one port
            accepts the members of many worlds, one world after the other, and refuses no connection in between.

        Raises
        ------
        UsageError
            When an argument is invalid, the name is in use, or the address is not loopback and there is no token.
        BrokenWorldError
            When not all members joined in time, or rank 0 refused this member.
        """
        self._use_loop()
        rank, size, port = (arguments.whole(*at) for at in (("rank", rank), ("size", size), ("port", port)))
        arguments.text("address", addr)
        timeout = arguments.seconds("timeout", timeout)
        if listener is not None and not (isinstance(listener, socket.socket) and listener.gettimeout() == 0):
            raise UsageError("invalid listener: it must be a listening, non-blocking socket")
        self._check(name, rank, size, port)
        self._answer(backend)
        clock = asyncio.get_running_loop().time
        deadline = clock() + timeout
        status = deque[str](maxlen=1)
        try:
            addresses = await stream.in_time(stream.resolve(addr), timeout)
        except asyncio.TimeoutError as error:
            words = f"looking up {addr!r} took longer than {round(timeout, 3):g} s"
            raise BrokenWorldError(name, self._next_epoch(name), 0, "timeout", words) from error
        for address in addresses:
            self._security.allow(address)
        self._check(name, rank, size, port)
        earlier = self._worlds.pop(name, None)
        epoch = self._next_epoch(name)
        world = World(name, rank, size, self._world_ended, self.watchdog.forget)
        self._making.add(name)
        self._worlds[name] = world
        try:
            making = self._make(world, addresses, port, listener, status.append)
            await stream.in_time(making, max(deadline - clock(), 0.001))
        except (JoinError, OSError, ValueError, asyncio.TimeoutError) as error:
            accused, cause, words = 0, "protocol", str(error)
            if isinstance(error, asyncio.TimeoutError):
                cause, words = "timeout", "; ".join([f"not all members joined within {round(timeout, 3):g} s", *status])
            elif isinstance(error, OSError):
                cause = "eof"
            elif isinstance(error, AcceptError):
                accused, cause = rank, "closed"
            self._discard(world, earlier, cause)
            if isinstance(error, BrokenWorldError | UsageError):
                raise
            raise BrokenWorldError(name, epoch, accused, cause, words) from error
        except BaseException:
            self._discard(world, earlier, "closed")
            raise
        self._making.discard(name)

    async def remove_world(self, name: str) -> None:
        """Leave a world in good order, or forget a broken one.

        Pending operations of this process fail; messages that it sent can still be received. For the other members the
        world breaks when they next need this one.

        Raises
        ------
        UsageError
            When there is no world of this name.
        """
        world = self._find(name)
        self._use_loop()
        if name in self._making:
            raise UsageError(f"world {name!r} is still being made: cancel that instead")
        del self._worlds[name]
        await world.close(_LINGER_S)

    def cleanup(self) -> asyncio.Task[None]:
        """Leave all worlds in good order: the end of a program that does not use ``async with``.

        The peers are informed at once. Await the returned task to wait until they have what was sent to them; a program
        that does not is held for that at its exit. The process goes on.
        """
        loop = asyncio.get_running_loop()
        leaving = loop.create_task(self.__aexit__())
        finish = functools.partial(_finish, loop, leaving)
        atexit.register(finish)
        leaving.add_done_callback(lambda _: atexit.unregister(finish))
        return leaving

    def _use_loop(self) -> None:
        """Refuse another event loop than the one in which the worlds were made."""
        loop = asyncio.get_running_loop()
        self._loop = self._loop or loop
        if self._loop is not loop:
            raise UsageError("a WorldManager belongs to the event loop of its first world: use it there")

    def _check(self, name: str, rank: int, size: int, port: int) -> None:
        if not 0 < len(arguments.text("name", name).encode()) <= MAX_NAME:
            raise UsageError(f"a world's name has 1 to {MAX_NAME} bytes, not {len(name.encode())}")
        if not 0 <= rank < size <= MAX_SIZE:
            raise UsageError(f"invalid rank {rank} of {size}: the size is 1 to {MAX_SIZE}, and ranks are 0 to size - 1")
        if not 0 < port < 1 << 16:
            raise UsageError(f"invalid port {port}: ports are 1 to 65535")
        known = self._worlds.get(name)
        if name in self._making or (known is not None and known.error is None):
            raise UsageError(f"world {name!r} exists already: remove it first")

    def _answer(self, backend: str | None) -> None:
        if not isinstance(backend, str | None):
            raise UsageError(f"invalid backend {backend!r:.80}: it must be a name")
        if backend in DEVICE_LINKS and backend not in self._answered:
            self._answered.add(backend)
            _log.warning("backend %s is not used: %s", backend, CARRIER)

    def _next_epoch(self, name: str) -> int:
        return self._epochs.get(name, -1) + 1

    def _find(self, name: str | None) -> World:
        try:
            return self._worlds[only(self._worlds) if name is None else name]
        except (KeyError, TypeError):
            raise UsageError(f"there is no world {name!r:.80}") from None

    async def _make(
        self, world: World, addresses: Sequence[str], port: int, listener: socket.socket | None, on_status: OnStatus
    ) -> None:
        epoch = self._next_epoch(world.name)
        if world.size == 1:
            self._epochs[world.name] = epoch
            world.open(epoch, {})
            return
        heartbeat = int(self.watchdog.heartbeat * 1000)
        hello = Hello(Purpose.RENDEZVOUS, epoch, world.rank, world.size, 0, 0, heartbeat, b"", world.name)
        if world.rank:
            joining = join_rendezvous(addresses, port, hello, self._security, on_status)
        else:
            joining = host_rendezvous(addresses[0], port, listener, hello, self._security, on_status)
        (epoch, _, members), key, sockets, heartbeats = await joining
        on_status("all members joined, but not all are connected with each other")
        self._epochs[world.name] = epoch
        with stream.closed_on_error(heartbeats):
            world.open(epoch, sockets)
            await self.communicator.barrier(world=world.name)
        peers = {peer: (at.host, at.heartbeat_port) for peer, at in enumerate(members) if peer != world.rank}
        interval = min(member.heartbeat for member in members) / 1000 / _HEARTBEATS_PER_LIMIT
        # Last, because the start of the first helper takes as long as all the rest.
        look = functools.partial(world.look, self.watchdog.heartbeat)
        self.watchdog.watch(world.identity, epoch, world.rank, key, peers, interval, heartbeats, look)

    def _discard(self, world: World, earlier: World | None, cause: str) -> None:
        """Forget a world that could not be made; the earlier one of its name stays broken."""
        world.break_world(Fault(world.rank, cause, "the world could not be made"))
        self._making.discard(world.name)
        if self._worlds.pop(world.name, None) is not None and earlier is not None:
            self._worlds[world.name] = earlier

    def _world_ended(self, world: World, error: BrokenWorldError | None) -> None:
        if error is None:
            self.watchdog.leave(world.identity, world.epoch)
            return
        self.watchdog.leave(world.identity, world.epoch, error.cause, error.rank)
        if world.name in self._making:
            return
        _log.warning("%s", error)
        for callback in self._callbacks:
            try:
                callback(error)
            except Exception:
                _log.exception("a callback of on_broken failed")

    def _peer_lost(self, identity: bytes, epoch: int, peer: int, cause: str, accused: int) -> None:
        for world in list(self._worlds.values()):
            if (world.identity, world.epoch) != (identity, epoch) or not world.is_open:
                continue
            if peer == world.rank:
                world.handle(world.state.lost, peer, cause, "the heartbeat helper cannot be kept running")
            elif peer == accused and cause in ("heartbeat", "eof"):
                silence = f"no heartbeat of rank {peer} came over UDP for {self.watchdog.heartbeat:g} s"
                words = silence if cause == "heartbeat" else f"rank {peer} is dead"
                world.read_rest(peer)
                world.handle(world.state.lost, peer, cause, words)
            else:
                world.reported(peer, accused, cause)


def only(worlds: Collection[str]) -> str:
    """Return the name of the only world; raises `UsageError` when there is another number of them."""
    if len(worlds) != 1:
        names = ", ".join(map(repr, worlds)) or "none"
        raise UsageError(f"this process is in {len(worlds)} worlds ({names}): name the one that is meant")
    return next(iter(worlds))


def _finish(loop: asyncio.AbstractEventLoop, leaving: asyncio.Task[None]) -> None:
    """Let a task end for which the program did not wait."""
    if not (leaving.done() or loop.is_running() or loop.is_closed()):
        loop.run_until_complete(leaving)
