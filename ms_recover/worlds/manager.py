"""Making and removing worlds."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import socket
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ms_recover.errors import BrokenWorldError, UsageError
from ms_recover.worlds import hello, meeting, stream, tensors
from ms_recover.worlds.communicator import WorldCommunicator
from ms_recover.worlds.hello import Hello, Member, Purpose
from ms_recover.worlds.meeting import Met
from ms_recover.worlds.security import Security
from ms_recover.worlds.state import Fault
from ms_recover.worlds.watchdog import WatchDog
from ms_recover.worlds.world import World

_log = logging.getLogger(__name__)
_LINGER_S = 2.0
_BEATS_PER_LIMIT = 10


@dataclass(frozen=True)
class WorldInfo:
    """A world as this process sees it; `error` is why it is broken, None while it is well."""

    name: str
    epoch: int
    rank: int
    size: int
    error: BrokenWorldError | None


class WorldManager:
    """Makes, removes and watches the worlds that this process is a member of.

    Use it as an asynchronous context manager in one event loop; leaving it removes all worlds in good order. Worlds
    share nothing: what happens to one is no matter to the others.

    Parameters
    ----------
    heartbeat : float
        Seconds of silence after which a frozen or unreachable peer is lost.
    security : Security, optional
        ``Security.from_environment()`` by default.
    """

    def __init__(self, *, heartbeat: float = 3.0, security: Security | None = None) -> None:
        self._security = Security.from_environment() if security is None else security
        self._watchdog = WatchDog(heartbeat, self._peer_lost)
        self._communicator = WorldCommunicator(self._find)
        self._worlds: dict[str, World] = {}
        self._making: set[str] = set()
        self._epochs: dict[str, int] = {}
        self._callbacks: list[Callable[[BrokenWorldError], None]] = []

    async def __aenter__(self) -> WorldManager:
        return self

    async def __aexit__(self, *_: object) -> None:
        worlds, self._worlds = self._worlds, {}
        try:
            await asyncio.gather(*(world.close(_LINGER_S) for world in worlds.values()))
        finally:
            await self._watchdog.close()

    @property
    def worlds(self) -> dict[str, WorldInfo]:
        """The worlds of this process by name, broken ones included until they are removed or made again."""
        return {
            name: WorldInfo(name, world.epoch, world.rank, world.size, world.error)
            for name, world in self._worlds.items()
            if name not in self._making
        }

    @property
    def communicator(self) -> WorldCommunicator:
        """What sends and receives."""
        return self._communicator

    @property
    def watchdog(self) -> WatchDog:
        """What notices frozen and unreachable peers."""
        return self._watchdog

    def on_broken(self, callback: Callable[[BrokenWorldError], None]) -> None:
        """Call this, in the event loop, with the error whenever a world breaks."""
        self._callbacks.append(callback)

    async def initialize_world(
        self,
        name: str,
        rank: int,
        size: int,
        addr: str = "127.0.0.1",
        port: int = 29500,
        timeout: float = 30.0,
    ) -> None:
        """Become a member of a new world; returns when all members have.

        Parameters
        ----------
        name : str
            At most 255 bytes; the same on all members. That of a broken or removed world may be used again.
        rank, size : int
        addr : str
            Where rank 0 listens until all are there. When a name has several addresses, rank 0 takes the first, and
            the others try each.
        port : int
            Each world needs its own while it is being made.
        timeout : float
            Seconds until all members have to be there.

        Raises
        ------
        UsageError
            When the arguments cannot be meant, the name is in use, or the address is not loopback and there is no
            token.
        BrokenWorldError
            When not all came in time, or rank 0 refuses this member.
        """
        self._check(name, rank, size, port, timeout)
        clock = asyncio.get_running_loop().time
        deadline, last = clock() + timeout, deque[str](maxlen=1)
        try:
            addresses = await asyncio.wait_for(_resolve(addr), timeout)
        except asyncio.TimeoutError as error:
            words = f"looking up {addr!r} took longer than {round(timeout, 3):g} s"
            raise BrokenWorldError(name, self._epochs.get(name, -1) + 1, 0, "timeout", words) from error
        for address in addresses:
            self._security.allow(address)
        self._check(name, rank, size, port, timeout)
        broken = self._worlds.pop(name, None)
        epoch = self._epochs.get(name, -1) + 1
        world = World(name, rank, size, allocate=tensors.allocate, ended=self._world_ended, peer_left=self._peer_left)
        self._making.add(name)
        self._worlds[name] = world
        try:
            making = self._make(world, addresses, port, epoch, last.append)
            await asyncio.wait_for(making, max(deadline - clock(), 0.001))
        except (meeting.RefusedError, meeting.CertificateError, OSError, ValueError, asyncio.TimeoutError) as error:
            cause, words = "eof" if isinstance(error, OSError) else "protocol", str(error)
            if isinstance(error, asyncio.TimeoutError):
                cause, words = "timeout", "; ".join([f"not all came within {round(timeout, 3):g} s", *last])
            self._unmake(world, broken, cause)
            if isinstance(error, BrokenWorldError | UsageError):
                raise
            raise BrokenWorldError(name, epoch, 0, cause, words) from error
        except BaseException:
            self._unmake(world, broken, "closed")
            raise
        self._making.discard(name)

    async def remove_world(self, name: str) -> None:
        """Leave a world in good order, or forget a broken one.

        Operations of this process that are pending fail; what it sent can still be received. Others break the world
        when they next need this member.

        Raises
        ------
        UsageError
            When there is no world of this name.
        """
        world = self._find(name)
        if name in self._making:
            raise UsageError(f"world {name!r} is being made: cancel that instead")
        del self._worlds[name]
        await world.close(_LINGER_S)

    def _check(self, name: str, rank: int, size: int, port: int, timeout: float) -> None:
        if not 0 < len(name.encode()) <= hello.MAX_NAME:
            raise UsageError(f"a world's name has 1 to {hello.MAX_NAME} bytes, not {len(name.encode())}")
        if not 0 <= rank < size <= hello.MAX_SIZE:
            raise UsageError(
                f"no world has a rank {rank} of {size}: the size is 1 to {hello.MAX_SIZE}, and ranks are 0 to size - 1"
            )
        if not 0 < port < 1 << 16:
            raise UsageError(f"port {port} cannot be used: ports are 1 to 65535")
        if not timeout > 0:
            raise UsageError(f"a timeout of {timeout} s cannot be kept: it has to be more than 0 s")
        known = self._worlds.get(name)
        if name in self._making or (known is not None and known.error is None):
            raise UsageError(f"there is a world {name!r} already: remove it first")

    def _find(self, name: str) -> World:
        world = self._worlds.get(name)
        if world is None:
            raise UsageError(f"there is no world {name!r}")
        return world

    async def _make(self, world: World, addresses: Sequence[str], port: int, epoch: int, note: meeting.Note) -> None:
        if world.size == 1:
            self._epochs[world.name] = epoch
            world.open(epoch, {})
            return
        met, beats = await self._meet(world, addresses, port, epoch, note)
        note("all were there, and not all were connected with each other")
        epoch, members = met.welcome.epoch, met.welcome.members
        self._epochs[world.name] = epoch
        try:
            world.open(epoch, met.sockets)
        except BaseException:
            beats.close()
            raise
        peers = {peer: (it.host, it.beat_port) for peer, it in enumerate(members) if peer != world.rank}
        interval = min(member.heartbeat for member in members) / 1000 / _BEATS_PER_LIMIT
        self._watchdog.watch(world.identity, epoch, world.rank, met.key, peers, interval, beats)
        await self._communicator.barrier(world=world.name)

    async def _meet(
        self, world: World, addresses: Sequence[str], port: int, epoch: int, note: meeting.Note
    ) -> tuple[Met, socket.socket]:
        heartbeat = int(self._watchdog.heartbeat * 1000)
        if world.rank:
            greeting = Hello(Purpose.MEETING, epoch, world.rank, world.size, 0, 0, heartbeat, b"", world.name)
            return await meeting.join_meeting(addresses, port, greeting, self._security, _prepare, note)
        beats = _beat_socket(addresses[0])
        try:
            me = Member(addresses[0], port, beats.getsockname()[1], heartbeat)
            listener = _listen(addresses[0], port)
            met = await meeting.host_meeting(listener, world.name, world.size, epoch, me, self._security, note)
        except BaseException:
            beats.close()
            raise
        return met, beats

    def _unmake(self, world: World, before: World | None, cause: str) -> None:
        """Forget a world that did not come to be; the broken one before it stays broken."""
        world.give_up(Fault(world.rank, cause, "the world did not come to be"))
        self._making.discard(world.name)
        if self._worlds.pop(world.name, None) is not None and before is not None:
            self._worlds[world.name] = before

    def _world_ended(self, world: World, error: BrokenWorldError | None) -> None:
        if error is None:
            self._watchdog.leave(world.identity, world.epoch)
            return
        self._watchdog.leave(world.identity, world.epoch, error.cause, error.rank)
        if world.name in self._making:
            return
        _log.warning("%s", error)
        for callback in self._callbacks:
            try:
                callback(error)
            except Exception:
                _log.exception("a callback of on_broken failed")

    def _peer_left(self, world: World, peer: int) -> None:
        self._watchdog.forget(world.identity, world.epoch, peer)

    def _peer_lost(self, identity: bytes, epoch: int, peer: int, cause: str, accused: int) -> None:
        for world in list(self._worlds.values()):
            if (world.identity, world.epoch) != (identity, epoch) or not world.is_open:
                continue
            if peer == accused and cause in ("heartbeat", "eof"):
                silence = f"rank {peer} was silent for {self._watchdog.heartbeat:g} s"
                world.lost(peer, cause, silence if cause == "heartbeat" else f"rank {peer} is dead")
            else:
                world.reported(peer, accused, cause)


def _listen(address: str, port: int) -> socket.socket:
    try:
        return stream.listen(address, port)
    except OSError as error:
        raise UsageError(f"cannot listen at {address} port {port}: {error.strerror}") from error


def _prepare(own: str) -> tuple[socket.socket, socket.socket]:
    """Open what a member listens with, at its own address: for peers and for heartbeats."""
    listener = stream.listen(own, 0)
    try:
        return listener, _beat_socket(own)
    except BaseException:
        listener.close()
        raise


def _beat_socket(address: str) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
    try:
        sock.bind((address, 0))
    except BaseException:
        sock.close()
        raise
    return sock


async def _resolve(address: str) -> list[str]:
    with contextlib.suppress(ValueError):
        return [str(ipaddress.ip_address(address))]
    try:
        found = await asyncio.get_running_loop().getaddrinfo(address, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise UsageError(f"{address!r} is no address: {error}") from error
    return list(dict.fromkeys(str(place[0]) for *_, place in found))
