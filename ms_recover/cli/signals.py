"""SIGINT and SIGTERM as exceptions, so that every ``with`` and ``finally`` cleans up."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

_RETRY_S = 0.005
_MOST_RETRIES = 200
_LOCKING = {"threading": ("start", "__enter__"), "concurrent.futures._base": ("__enter__", "__exit__")}
"""By module, the functions of which an interrupted one leaves a lock taken."""


class Terminated(KeyboardInterrupt):
    """SIGTERM; a subclass, because all that cleans up after Ctrl-C cleans up after SIGTERM."""


@contextmanager
def interruptible() -> Iterator[None]:
    """Raise KeyboardInterrupt on SIGINT and `Terminated` on SIGTERM; put the former handlers back afterwards.

    A SIGINT that is ignored, as in a background job of a shell without job control, stays ignored. Outside the main
    thread nothing is changed.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = [signal.SIGTERM]
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        numbers.append(signal.SIGINT)
    late, lost = _Late(), sys.unraisablehook

    def again(given: sys.UnraisableHookArgs) -> None:
        if isinstance(given.exc_value, KeyboardInterrupt):
            late.again(signal.SIGTERM if isinstance(given.exc_value, Terminated) else signal.SIGINT)
        else:
            lost(given)

    before = {number: signal.signal(number, late.receive) for number in numbers}
    sys.unraisablehook = again
    try:
        yield
    finally:
        sys.unraisablehook = lost
        for number, handler in before.items():
            signal.signal(number, handler)
        late.close()


class _Late:
    """Raises for a signal, but behind what must not be cut short.

    Callbacks of the import system swallow exceptions and print them. A condition of `threading` that is interrupted
    while it takes its lock never gives it back, so that a thread that is being started waits for ever, and the end of
    the program for the thread (https://github.com/python/cpython/issues/74174). So it is with `concurrent.futures`,
    which takes and gives back the locks of all futures that are waited for one after the other.

    What is swallowed all the same, there behind a second of waiting or in an object's ``__del__``, is raised again.
    """

    def __init__(self) -> None:
        self._number: int | None = None
        self._retries = 0
        self._alarm = signal.getsignal(signal.SIGALRM)

    def receive(self, number: int, frame: FrameType | None) -> None:
        """Handle SIGINT or SIGTERM."""
        self._number = number
        self._raise_behind_imports(frame)

    def again(self, number: int) -> None:
        """Raise once more a little later."""
        self._number, self._retries = number, 1
        self._wait()

    def close(self) -> None:
        """Raise for a signal that still waits for the end of an import."""
        if self._number is not None and self._retries:
            self._raise()

    def _raise_behind_imports(self, frame: FrameType | None) -> None:
        if not _must_end_first(frame) or self._retries >= _MOST_RETRIES:
            self._raise()
        self._retries += 1
        self._wait()

    def _wait(self) -> None:
        signal.signal(signal.SIGALRM, lambda _, later: self._raise_behind_imports(later))
        signal.setitimer(signal.ITIMER_REAL, _RETRY_S)

    def _raise(self) -> NoReturn:
        number, self._number = self._number, None
        if self._retries:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, self._alarm)
            self._retries = 0
        raise Terminated if number == signal.SIGTERM else KeyboardInterrupt


def _must_end_first(frame: FrameType | None) -> bool:
    """Whether an import is under way, a thread is being started, or locks of conditions are taken or given back."""
    while frame is not None:
        code = frame.f_code
        if code.co_filename.startswith("<frozen importlib"):
            return True
        if code.co_name in _LOCKING.get(frame.f_globals.get("__name__", ""), ()):
            return True
        frame = frame.f_back
    return False
