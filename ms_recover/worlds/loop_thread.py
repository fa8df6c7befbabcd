"""An event loop in a thread of its own, for code without one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from ms_recover.errors import UsageError

T = TypeVar("T")
_POLL_S = 0.2
_END_S = 10.0


class LoopThread:
    """Runs coroutines in an event loop of its own thread; a context manager that may be entered again.

    Messages and the thread have the name of the `owner`, the class whose coroutines run here.
    """

    def __init__(
        self, owner: str, loop_factory: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
    ) -> None:
        self._owner = owner
        self._loop_factory = loop_factory
        self._running: tuple[asyncio.AbstractEventLoop, threading.Thread] | None = None

    def __enter__(self) -> LoopThread:
        loop = self._loop_factory()
        thread = threading.Thread(target=_run, args=(loop,), name=f"ms_recover {self._owner}", daemon=True)
        thread.start()
        self._running = loop, thread
        return self

    def __exit__(self, *_: object) -> None:
        if self._running is None:
            return
        (loop, thread), self._running = self._running, None
        loop.call_soon_threadsafe(loop.stop)
        thread.join(_END_S)
        if not thread.is_alive():
            loop.close()

    @property
    def here(self) -> bool:
        """Whether the caller is the thread itself."""
        return self._running is not None and self._running[1] is threading.current_thread()

    def run(self, work: Coroutine[Any, Any, T], check: Callable[[], None] | None = None) -> T:
        """Run a coroutine in the loop and wait for its result, from any other thread.

        An interrupt (Ctrl-C), or an error of `check`, which is called several times a second, cancels the work and is
        raised when the work has ended: only then may its caller close or reuse what the work writes to. Raises
        UsageError when the loop does not run, is closed meanwhile, or this is its thread.
        """
        if self._running is None or self.here:
            work.close()
            raise UsageError(f"use {self._owner} as a context manager, and not from its own event loop")
        loop, thread = self._running
        tasks: list[asyncio.Task[T]] = []
        ended = threading.Event()

        def begin() -> None:
            tasks.append(loop.create_task(work))
            tasks[0].add_done_callback(lambda _: ended.set())

        def cancel() -> None:
            if tasks:
                tasks[0].cancel()
            else:  # interrupted before `begin` was scheduled
                work.close()
                ended.set()

        try:
            loop.call_soon_threadsafe(begin)
            while not ended.wait(_POLL_S):
                if not thread.is_alive():
                    raise UsageError(f"{self._owner} was closed during a call")
                if check is not None:
                    check()
            if tasks[0].cancelled() and self._running is None:
                raise UsageError(f"{self._owner} was closed during a call")
            return tasks[0].result()
        finally:
            if not ended.is_set() and thread.is_alive():
                loop.call_soon_threadsafe(cancel)
                while not ended.wait(_POLL_S) and thread.is_alive():
                    pass


def _run(loop: asyncio.AbstractEventLoop) -> None:
    """Run the loop until it is stopped, then cancel what still runs in it and wait for the end of that."""
    loop.run_forever()
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        loop.run_until_complete(asyncio.wait(tasks))
