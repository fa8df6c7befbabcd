"""Worlds for code without an event loop: the same methods, which wait for their results."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from ms_recover.errors import BrokenWorldError
from ms_recover.worlds.communicator import WorldCommunicator
from ms_recover.worlds.loop_thread import LoopThread
from ms_recover.worlds.manager import WorldInfo, WorldManager
from ms_recover.worlds.security import Security

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")


class _Waiting(Generic[S]):
    """An object with coroutine methods, and the thread in which they run."""

    def __init__(self, target: S, loop_thread: LoopThread) -> None:
        self._target = target
        self._loop_thread = loop_thread


def _synchronous(
    method: Callable[Concatenate[S, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[_Waiting[S], P], T]:
    """Return a coroutine method as a method that waits, with its signature and docstring."""

    def wait(self: _Waiting[S], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._loop_thread.run(lambda: method(self._target, *args, **kwargs))

    functools.update_wrapper(wait, method)
    return wait


class SyncWorldCommunicator(_Waiting[WorldCommunicator]):
    """`WorldCommunicator` for code without an event loop: the same methods, which wait for their results."""

    def is_broken(self, world: str) -> bool:
        """Whether operations on a world fail: it is broken, removed, or was never made."""
        return self._target.is_broken(world)

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


class SyncWorldManager(_Waiting[WorldManager]):
    """`WorldManager` for code without an event loop; use it as a context manager.

    Its methods wait for their results, and may be called from any thread but that of the event loop, in which callbacks
    of `on_broken` run, and not in a forked child: they raise `UsageError` there. Ctrl-C during a call cancels it, which
    breaks the world when a send or a collective has begun. A call that another thread makes while the manager is left
    raises `UsageError` or `BrokenWorldError`.

    Parameters
    ----------
    heartbeat, security
        As for `WorldManager`.
    loop_factory : callable
        Returns a new event loop, for example ``uvloop.new_event_loop``.

    Attributes
    ----------
    communicator, watchdog
        As those of `WorldManager`.
    """

    def __init__(
        self,
        *,
        heartbeat: float = 3.0,
        security: Security | None = None,
        loop_factory: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop,
    ) -> None:
        manager = WorldManager(heartbeat=heartbeat, security=security)
        super().__init__(manager, LoopThread("SyncWorldManager", loop_factory))
        self.communicator = SyncWorldCommunicator(manager.communicator, self._loop_thread)
        self.watchdog = manager.watchdog

    def __enter__(self) -> SyncWorldManager:
        self._loop_thread.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        if self._loop_thread.forked:  # the worlds belong to the other process
            self._loop_thread.__exit__()
            return
        try:
            self._loop_thread.run(self._target.__aexit__)
        finally:
            self._loop_thread.__exit__()

    @property
    def worlds(self) -> dict[str, WorldInfo]:
        """The worlds of this process, by name."""
        return self._target.worlds

    def on_broken(self, callback: Callable[[BrokenWorldError], object]) -> None:
        """Call a function or coroutine function in the event loop's thread with the error whenever a world breaks."""
        self._target.on_broken(callback)

    initialize_world = _synchronous(WorldManager.initialize_world)
    remove_world = _synchronous(WorldManager.remove_world)
