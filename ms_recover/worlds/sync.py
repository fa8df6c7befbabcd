"""Worlds for code without an event loop: the same names, run by a loop in a thread of its own."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib
import inspect
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from ms_recover.errors import BrokenWorldError, UsageError
from ms_recover.worlds.communicator import WorldCommunicator
from ms_recover.worlds.manager import WorldInfo, WorldManager
from ms_recover.worlds.security import Security
from ms_recover.worlds.watchdog import WatchDog

T = TypeVar("T")


class SyncWorldManager:
    """`WorldManager` for code without an event loop; use it as a context manager.

    Its methods wait until they are done, and may be called from any thread. Ctrl-C during one cancels it, which breaks
    the world when data has begun to move.

    Parameters
    ----------
    heartbeat : float
    security : Security, optional
        As for `WorldManager`.
    """

    def __init__(self, *, heartbeat: float = 3.0, security: Security | None = None) -> None:
        self._manager = WorldManager(heartbeat=heartbeat, security=security)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self.communicator: Any = SyncWorldCommunicator(self._manager.communicator, self._run)
        """Has the methods of `WorldCommunicator`, which wait here."""

    def __enter__(self) -> SyncWorldManager:
        self._loop = new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="ms_recover.worlds", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._loop is not None
        assert self._thread is not None
        try:
            self._run(self._manager.__aexit__())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()
            self._loop = None

    @property
    def worlds(self) -> dict[str, WorldInfo]:
        """The worlds of this process by name."""
        return self._manager.worlds

    @property
    def watchdog(self) -> WatchDog:
        """What notices frozen and unreachable peers."""
        return self._manager.watchdog

    def on_broken(self, callback: Callable[[BrokenWorldError], None]) -> None:
        """Call this, in the thread of the loop, with the error whenever a world breaks."""
        self._manager.on_broken(callback)

    def initialize_world(
        self, name: str, rank: int, size: int, addr: str = "127.0.0.1", port: int = 29500, timeout: float = 30.0
    ) -> None:
        """Become a member of a new world, see `WorldManager.initialize_world`."""
        self._run(self._manager.initialize_world(name, rank, size, addr, port, timeout))

    def remove_world(self, name: str) -> None:
        """Leave a world in good order, see `WorldManager.remove_world`."""
        self._run(self._manager.remove_world(name))

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        if self._loop is None:
            work.close()
            raise UsageError("use SyncWorldManager as a context manager")
        future: Future[T] = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise


class SyncWorldCommunicator:
    """The methods of `WorldCommunicator`, which wait until they are done."""

    def __init__(self, communicator: WorldCommunicator, run: Callable[[Coroutine[Any, Any, Any]], Any]) -> None:
        self._communicator, self._run = communicator, run

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._communicator, name)
        if not inspect.iscoroutinefunction(method):
            return method

        @functools.wraps(method)
        def wait(*args: Any, **kwargs: Any) -> Any:
            return self._run(method(*args, **kwargs))

        return wait

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *(name for name in dir(self._communicator) if not name.startswith("_"))})


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Return a new event loop, uvloop's when that is installed."""
    with contextlib.suppress(ImportError):
        loop: asyncio.AbstractEventLoop = importlib.import_module("uvloop").new_event_loop()
        return loop
    return asyncio.new_event_loop()


def run(work: Coroutine[Any, Any, T]) -> T:
    """Do what `asyncio.run` does, with uvloop when that is installed."""
    runner: Callable[[Coroutine[Any, Any, T]], T] = asyncio.run
    with contextlib.suppress(ImportError, AttributeError):  # uvloop has it since 0.18
        runner = importlib.import_module("uvloop").run
    return runner(work)
