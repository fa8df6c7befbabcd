"""An event loop in a thread of its own, for code without one."""

from __future__ import annotations

import asyncio
import os
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
        self._process = 0

    def __enter__(self) -> LoopThread:
        loop = self._loop_factory()
        thread = threading.Thread(target=_run, args=(loop,), name=f"ms_recover {self._owner}", daemon=True)
        thread.start()
        self._running = loop, thread
        self._process = os.getpid()
        return self

    def __exit__(self, *_: object) -> None:
        if self._running is None:
            return
        (loop, thread), self._running = self._running, None
        if self._process != os.getpid():
            return  # a forked child shares the loop's descriptors with its parent: closing them would stop the parent's
        loop.call_soon_threadsafe(loop.stop)
        thread.join(_END_S)
        if not thread.is_alive():
            loop.close()

    @property
    def here(self) -> bool:
        """Whether the caller is the thread itself."""
        return self._running is not None and self._running[1] is threading.current_thread()

    def run(self, make: Callable[[], Coroutine[Any, Any, T]], check: Callable[[], None] | None = None) -> T:
        """Run the coroutine that `make` returns in the loop and wait for its result, from any other thread.

        It is made in the loop's thread, which no Ctrl-C interrupts. An interrupt here, or an error of `check`, which is
        called several times a second, cancels the work and is raised when the work has ended: only then may its caller
        close or reuse what the work writes to. Raises UsageError when the loop does not run, is closed meanwhile, this
        is its thread, or a child that was forked from its process.
        """
        if self._running is None:
            raise UsageError(f"{self._owner} is not open: use it as a context manager")
        if self._process != os.getpid():
            raise UsageError(
                f"this {self._owner} belongs to process {self._process}, and no thread survives a fork: make "
                f"another in this process, {os.getpid()}"
            )
        if self.here:
            raise UsageError(
                f"{self._owner} cannot be used from its own event loop, in which callbacks run: call it from another "
                "thread"
            )
        loop, thread = self._running
        tasks: list[asyncio.Task[T]] = []
        errors: list[BaseException] = []
        wanted = True
        ended = threading.Event()

        def begin() -> None:
            if not wanted:
                ended.set()
                return
            try:
                tasks.append(loop.create_task(make()))
                tasks[0].add_done_callback(lambda _: ended.set())
            except Exception as error:  # of `make`
                errors.append(error)
                ended.set()

        def cancel() -> None:
            if tasks:
                tasks[0].cancel()
            else:  # interrupted before `begin` was scheduled
                ended.set()

        try:
            loop.call_soon_threadsafe(begin)
            while not ended.wait(_POLL_S):
                if not thread.is_alive():
                    raise UsageError(f"{self._owner} was closed during a call")
                if check is not None:
                    check()
            if errors:
                raise errors[0]
            if tasks[0].cancelled() and self._running is None:
                raise UsageError(f"{self._owner} was closed during a call")
            return tasks[0].result()
        finally:
            if not ended.is_set() and thread.is_alive():
                wanted = False
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
