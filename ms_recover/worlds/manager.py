"""Making and removing worlds."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import functools
import logging
import socket
from collections.abc import Callable, Collection, Coroutine
from dataclasses import dataclass
from typing import Any

from ms_recover.errors import BrokenWorldError, StartError, UsageError
from ms_recover.worlds import arguments, stream
from ms_recover.worlds.authentication import JoinError
from ms_recover.worlds.collectives import meet
from ms_recover.worlds.communicator import WorldCommunicator
from ms_recover.worlds.handshake import MAX_NAME, MAX_SIZE, Hello, Purpose
from ms_recover.worlds.instructions import Fault
from ms_recover.worlds.making import Making
from ms_recover.worlds.rendezvous import Agreed, connect_members, host_rendezvous, join_rendezvous, welcome_members
from ms_recover.worlds.security import Security
from ms_recover.worlds.watchdog import Membership, WatchDog
from ms_recover.worlds.world import World

_log = logging.getLogger(__name__)
_LINGER_S = 2.0
_HEARTBEATS_PER_LIMIT = 10
_FAILURES = (JoinError, OSError, ValueError, asyncio.TimeoutError)
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
        self.communicator = WorldCommunicator(self._made)
        self._worlds: dict[str, World] = {}
        self._making: dict[str, Making] = {}
        self._leaving = False
        self._epochs: dict[str, int] = {}
        self._callbacks = _Callbacks()
        self._answered: set[str] = set()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def __aenter__(self) -> WorldManager:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._use_loop()
        self._leaving = True
        makings = list(self._making.values())
        worlds = [world for name, world in self._worlds.items() if name not in self._making]
        for world in worlds:
            world.handle(world.state.closed)
        for making in makings:
            making.world.break_world(
                making.own(f"rank {making.world.rank} left its WorldManager while it made the world")
            )
        try:
            await asyncio.gather(*(world.close(_LINGER_S) for world in worlds), *(making.over for making in makings))
            await self._callbacks.end(_LINGER_S)
        finally:
            for world in worlds:  # which a cancellation may have kept from it
                await world.close(0.0)
            self._worlds.clear()
            self._loop, self._leaving = None, False
            await self.watchdog.close()

    @property
    def worlds(self) -> dict[str, WorldInfo]:
        """The worlds of this process, by name; broken ones too, until they are removed or made again."""
        made = [world for name, world in list(self._worlds.items()) if name not in self._making]
        return {world.name: WorldInfo(world.name, world.epoch, world.rank, world.size, world.error) for world in made}

    def on_broken(self, callback: Callable[[BrokenWorldError], object]) -> None:
        """Call a function, in the event loop, with the error whenever a world breaks.

        A coroutine that it returns, as that of an ``async def``, runs as a task. Leaving the manager waits 2 s for such
        tasks, and cancels those that have not ended.
        """
        if not callable(callback):
            raise UsageError(f"invalid callback {callback!r:.80}: it must be a function of one error")
        self._callbacks.add(callback)

    async def initialize_world(  # noqa: PLR0913 (the keywords of programs)
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
            For rank 0: a listening, non-blocking TCP socket at `addr` and `port`, which stays open. With it one port
            accepts the members of many worlds, one world after the other, and refuses no connection in between.

        Raises
        ------
        UsageError
            When an argument is invalid, the name is in use, or the address is not loopback and there is no token.
        StartError
            When this host cannot start the heartbeat helper.
        BrokenWorldError
            When not all members joined in time, a member gave up or died, rank 0 refused this member, or the manager is
            left meanwhile. `rank` is the one that did not answer or gave up first.
        """
        self._use_loop()
        if self._leaving:
            raise UsageError("the WorldManager is being left: make no world in it any more")
        rank, size, port = (arguments.whole(*at) for at in (("rank", rank), ("size", size), ("port", port)))
        arguments.text("address", addr)
        timeout = arguments.seconds("timeout", timeout)
        if listener is not None:
            stream.check_listener(listener)
        self._check(name, rank, size, port)
        self._answer(backend)
        epoch = self._next_epoch(name)
        world = World(name, rank, size, self._world_ended, self.watchdog.forget)
        heartbeat = int(self.watchdog.heartbeat * 1000)
        making = Making(world, Hello(Purpose.RENDEZVOUS, epoch, rank, size, 0, 0, heartbeat, b"", name))
        earlier, self._worlds[name] = self._worlds.get(name), world
        self._making[name] = making
        timer = world.loop.call_later(timeout, making.expire, timeout)
        try:
            await stream.in_time(self._make(making, addr, port, listener), None, stop=making.stopped)
            if world.error is not None and not making.met:
                raise world.error
        except BaseException as error:
            self._discard(making, earlier, making.fault(error))
            if isinstance(error, UsageError | StartError) or not isinstance(error, _FAILURES):
                raise
            raise making.error(epoch) from error
        finally:
            timer.cancel()
            del self._making[name]
            if not making.over.done():  # a cancellation of those who wait for it cancels it
                making.over.set_result(None)
        if world.error is not None:
            self._world_ended(world, world.error)

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

    def _made(self, name: str | None) -> World:
        world = self._find(name)
        if world.name in self._making:
            raise UsageError(f"world {world.name!r} is still being made")
        return world

    async def _make(self, making: Making, addr: str, port: int, listener: socket.socket | None) -> None:
        world = making.world
        making.stage, making.awaited = f"{addr!r} is being looked up", list
        addresses = await stream.resolve(addr)
        for address in addresses:
            self._security.allow(address)
        making.stage, making.awaited = "", lambda: [0]
        if world.size == 1:
            world.form(making.hello.epoch)
            self._epochs[world.name] = world.epoch
            return
        if world.rank:
            agreed = await join_rendezvous(making, addresses, port, self._security)
        else:
            agreed = await host_rendezvous(making, addresses[0], port, listener, self._security)
        with contextlib.ExitStack() as opened:
            opened.enter_context(stream.closed_on_error(agreed.heartbeats))
            if agreed.listener is not None:
                opened.enter_context(agreed.listener)
            await self._connect(making, agreed)
            if not world.is_open:
                agreed.heartbeats.close()
                return
            epoch, _, members = agreed.welcome
            peers = {peer: (at.host, at.heartbeat_port) for peer, at in enumerate(members) if peer != world.rank}
            interval = min(member.heartbeat for member in members) / 1000 / _HEARTBEATS_PER_LIMIT
            look = functools.partial(world.look, self.watchdog.heartbeat)
            membership = Membership(world.identity, epoch, world.rank, agreed.key, peers, interval)
            self.watchdog.watch(membership, agreed.heartbeats, look)

    async def _connect(self, making: Making, agreed: Agreed) -> None:
        """Connect with all members, and wait until each has connected with all."""
        world, epoch = making.world, agreed.welcome.epoch
        world.form(epoch)
        self._epochs[world.name] = epoch
        if agreed.first is not None:
            world.connect(0, agreed.first)
        self.watchdog.start()  # takes its time while the members connect
        if world.rank:
            await connect_members(making, agreed, self._security)
        else:
            await welcome_members(making, agreed, self._security)
        making.stage, making.awaited = "", world.unanswered
        await meet(world, making.answers)

    def _discard(self, making: Making, earlier: World | None, fault: Fault) -> None:
        """Forget a world that could not be made; the earlier one of its name stays broken."""
        making.world.break_world(fault)
        self._worlds.pop(making.world.name, None)
        if earlier is not None:
            self._worlds[making.world.name] = earlier

    def _world_ended(self, world: World, error: BrokenWorldError | None) -> None:
        if error is None:
            self.watchdog.leave(world.identity, world.epoch)
            return
        self.watchdog.leave(world.identity, world.epoch, error.cause, error.rank)
        making = self._making.get(world.name)
        if making is not None and making.met:
            return  # this is called again, once the call has returned: what has come can be received
        if making is not None:
            making.stop(Fault(error.rank, error.cause, error.words))
            return
        _log.warning("%s", error)
        self._callbacks.call(error)

    def _peer_lost(self, identity: bytes, epoch: int, peer: int, cause: str, accused: int) -> None:
        for world in list(self._worlds.values()):
            if (world.identity, world.epoch) != (identity, epoch) or not world.is_open:
                continue
            if peer == world.rank:
                world.handle(world.state.lost, peer, cause, "the heartbeat helper cannot be kept running")
            elif peer == accused and cause == "eof":
                world.dead(peer, f"rank {peer} is dead")
            elif peer == accused and cause == "heartbeat":
                world.read_rest(peer)
                words = f"no heartbeat of rank {peer} came over UDP for {self.watchdog.heartbeat:g} s"
                world.handle(world.state.lost, peer, cause, words)
            else:
                world.reported(peer, accused, cause)


class _Callbacks:
    """The functions of `WorldManager.on_broken`, and the tasks of those that are coroutine functions."""

    def __init__(self) -> None:
        self._callbacks: list[Callable[[BrokenWorldError], object]] = []
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, callback: Callable[[BrokenWorldError], object]) -> None:
        self._callbacks.append(callback)

    def call(self, error: BrokenWorldError) -> None:
        """Call all; what fails is logged."""
        for callback in self._callbacks:
            try:
                answer = callback(error)
            except Exception:
                _log.exception("a callback of on_broken failed")
            else:
                if asyncio.iscoroutine(answer):
                    task = asyncio.get_running_loop().create_task(_logged(answer))
                    self._tasks.add(task)
                    task.add_done_callback(self._tasks.discard)

    async def end(self, seconds: float) -> None:
        """Wait until the tasks have ended, but for the one that calls this; cancel those that take longer."""
        tasks = [task for task in self._tasks if task is not asyncio.current_task()]
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=seconds)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)


async def _logged(answer: Coroutine[Any, Any, object]) -> None:
    try:
        await answer
    except Exception:
        _log.exception("a callback of on_broken failed")


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
