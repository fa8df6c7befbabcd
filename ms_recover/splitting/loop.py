"""A thread with the event loop of a splitter, for callers without one."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from ms_recover.errors import UsageError
from ms_recover.splitting.engine import Engine

T = TypeVar("T")


class LoopThread:
    """A thread with an event loop in which an engine runs."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="ms_recover.splitting", daemon=True)
        self._thread.start()
        self._engine: Engine | None = None

    @property
    def here(self) -> bool:
        """Whether this is the thread itself."""
        return threading.current_thread() is self._thread

    def begin(self, engine: Engine) -> None:
        """Run the engine until `close`."""
        self._engine = engine
        self.run(engine.begin())

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine and wait for its result; Ctrl-C cancels it.

        Raises
        ------
        UsageError
            When the loop is closed.
        """
        if self._loop.is_closed():
            work.close()
            raise UsageError("this splitter is closed")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        _restore_interrupt_handler()
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        """End the engine and the thread."""
        if self._loop.is_closed():
            return
        try:
            if self._engine is not None:
                self.run(self._engine.close())
            self.run(self._loop.shutdown_default_executor())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()


def _restore_interrupt_handler() -> None:
    """Restore Python's handler of Ctrl-C: MindSpore installs one that ends the process."""
    if threading.current_thread() is threading.main_thread():
        handler = signal.getsignal(signal.SIGINT)
        if callable(handler):
            signal.signal(signal.SIGINT, handler)
