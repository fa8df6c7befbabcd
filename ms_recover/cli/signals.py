"""SIGINT and SIGTERM as exceptions, so that every ``with`` and ``finally`` cleans up."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_RETRY_S = 0.005
_MOST_RETRIES = 200


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
    before = {number: signal.signal(number, _interrupt) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _interrupt(number: int, frame: FrameType | None, retries: int = 0) -> None:
    """Raise, but not inside the import system: its callbacks swallow exceptions and print a traceback."""
    if _is_importing(frame) and retries < _MOST_RETRIES:
        signal.signal(signal.SIGALRM, lambda _, later: _interrupt(number, later, retries + 1))
        signal.setitimer(signal.ITIMER_REAL, _RETRY_S)
        return
    raise Terminated if number == signal.SIGTERM else KeyboardInterrupt


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False
