"""The directories that a resume holds, so that no other training saves to them meanwhile."""

from __future__ import annotations

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


def hold_directories(folders: Iterable[str]) -> None:
    """Lock directories until `holding_directories` ends; StorageError when another training saves to one."""
    for folder in sorted(folders):
        _held[-1].callback(lock_directory(folder).release)
