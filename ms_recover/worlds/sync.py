"""Worlds for code without an event loop: the same methods, which wait for their results."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, TypeVar

from ms_recover.errors import BrokenWorldError
from ms_recover.worlds.communicator import WorldCommunicator
from ms_recover.worlds.loop_thread import LoopThread
from ms_recover.worlds.manager import WorldInfo, WorldManager
from ms_recover.worlds.security import Security
from ms_recover.worlds.watchdog import WatchDog

P = ParamSpec("P")
T = TypeVar("T")


class SyncWorldManager:
    """`WorldManager` for code without an event loop; use it as a context manager.

    Its methods wait for their results, and may be called from any thread. Ctrl-C during a call cancels it, which breaks
    the world when data has begun to move.

    Parameters
    ----------
    heartbeat, security
        As for `WorldManager`.
    loop_factory : callable
        Returns a new event loop, for example ``uvloop.new_event_loop``.
    """

    def __init__(
        self,
        *,
        heartbeat: float = 3.0,
        security: Security | None = None,
        loop_factory: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop,
    ) -> None:
        self._manager = WorldManager(heartbeat=heartbeat, security=security)
        self._loop_thread = LoopThread("SyncWorldManager", loop_factory)
        self._communicator = SyncWorldCommunicator(self._manager.communicator, self._loop_thread)

    def __enter__(self) -> SyncWorldManager:
        self._loop_thread.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._loop_thread.run(self._manager.__aexit__())
        finally:
            self._loop_thread.__exit__()

    @property
    def worlds(self) -> dict[str, WorldInfo]:
        """The worlds of this process, by name."""
        return self._manager.worlds

    @property
    def communicator(self) -> SyncWorldCommunicator:
        """Sends and receives in the worlds of this process."""
        return self._communicator

    @property
    def watchdog(self) -> WatchDog:
        """Detects frozen and unreachable peers."""
        return self._manager.watchdog

    def on_broken(self, callback: Callable[[BrokenWorldError], None]) -> None:
        """Call a function, in the thread of the event loop, with the error whenever a world breaks."""
        self._manager.on_broken(callback)

    def initialize_world(
        self, name: str, rank: int, size: int, addr: str = "127.0.0.1", port: int = 29500, timeout: float = 30.0
    ) -> None:
        """Become a member of a new world, see `WorldManager.initialize_world`."""
        self._loop_thread.run(self._manager.initialize_world(name, rank, size, addr, port, timeout))

    def remove_world(self, name: str) -> None:
        """Leave a world in good order, see `WorldManager.remove_world`."""
        self._loop_thread.run(self._manager.remove_world(name))


def _synchronous(
    method: Callable[Concatenate[WorldCommunicator, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[SyncWorldCommunicator, P], T]:
    """Return a coroutine method of `WorldCommunicator` as a method that waits, with its signature and docstring."""

    def wait(self: SyncWorldCommunicator, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._loop_thread.run(method(self._communicator, *args, **kwargs))

    functools.update_wrapper(wait, method)
    return wait


class SyncWorldCommunicator:
    """`WorldCommunicator` for code without an event loop: the same methods, which wait for their results."""

    def __init__(self, communicator: WorldCommunicator, loop_thread: LoopThread) -> None:
        self._communicator = communicator
        self._loop_thread = loop_thread

    def is_broken(self, world: str) -> bool:
        """Whether operations on a world fail: it is broken, removed, or was never made."""
        return self._communicator.is_broken(world)

    send = _synchronous(WorldCommunicator.send)
    recv = _synchronous(WorldCommunicator.recv)
    broadcast = _synchronous(WorldCommunicator.broadcast)
    all_reduce = _synchronous(WorldCommunicator.all_reduce)
    reduce = _synchronous(WorldCommunicator.reduce)
    all_gather = _synchronous(WorldCommunicator.all_gather)
    gather = _synchronous(WorldCommunicator.gather)
    scatter = _synchronous(WorldCommunicator.scatter)
    all_to_all = _synchronous(WorldCommunicator.all_to_all)
    barrier = _synchronous(WorldCommunicator.barrier)
