"""The directories that a resume holds, so that no other training saves to them meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager

from ms_recover.execution.directory_lock import lock_directory

_held: list[ExitStack] = []


@contextmanager
def holding_directories(forget: Callable[[], None] | None = None) -> Iterator[None]:
    """Give back at the end the directories that `hold_directories` was called for, and call `forget`."""
    with ExitStack() as locks:
        if forget is not None:
            locks.callback(forget)
        _held.append(locks)
        try:
            yield
        finally:
            _held.remove(locks)


def hold_directories(folders: Iterable[str]) -> bool:
    """Lock directories until `holding_directories` ends; return whether another training was waited for until it ended.

    Raises StorageError when another training saves to one.
    """
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        time.sleep(seconds)

    for folder in sorted(folders):
        _held[-1].callback(lock_directory(folder, sleep=wait).release)
    return bool(waits)


def at_end(close: Callable[[], object]) -> None:
    """Call `close` when `holding_directories` ends."""
    _held[-1].callback(close)
