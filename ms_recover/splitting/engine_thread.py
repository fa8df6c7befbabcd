"""The thread in which the engine of a splitter works, and the end of both."""

from __future__ import annotations

import os
import signal
import threading
import weakref
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from ms_recover.errors import UsageError
from ms_recover.splitting.engine import Engine
from ms_recover.splitting.slices import SliceStore
from ms_recover.worlds.loop_thread import LoopThread

T = TypeVar("T")


class EngineThread:
    """Runs the work of an engine for other threads, until it is closed or garbage; the `store` is closed with it.

    Messages have the name of the `owner`, the class of the splitter.
    """

    def __init__(self, owner: str, engine: Engine, store: SliceStore) -> None:
        self._loop_thread = LoopThread(owner)
        self._loop_thread.__enter__()
        # the arguments must not refer to this object, which would then never be garbage
        self._close = weakref.finalize(self, _close, self._loop_thread, engine, store, os.getpid())

    def run(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run work of the engine; Ctrl-C cancels it and is raised when it has ended."""
        if not self._close.alive:
            raise UsageError("this splitter is closed")
        _restore_interrupt_handler()
        return self._loop_thread.run(make)

    def close(self) -> None:
        """End the engine, the thread and the store; a second call does nothing."""
        self._close()


def _close(loop_thread: LoopThread, engine: Engine, store: SliceStore, process: int) -> None:
    if os.getpid() != process:
        return  # a forked child: the processes are its parent's
    if loop_thread.here:  # the garbage collector runs in the thread that has to end
        arguments = (loop_thread, engine, store, process)
        threading.Thread(target=_close, args=arguments, name="ms_recover.splitting.close").start()
        return
    try:
        _restore_interrupt_handler()
        loop_thread.run(engine.close)
    finally:
        loop_thread.__exit__()
        store.close()


def _restore_interrupt_handler() -> None:
    """Restore Python's handler of Ctrl-C: MindSpore installs one that ends the process."""
    if threading.current_thread() is threading.main_thread():
        handler = signal.getsignal(signal.SIGINT)
        if callable(handler):
            signal.signal(signal.SIGINT, handler)
