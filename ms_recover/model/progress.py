"""Progress of work that reads or writes many bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable

Progress = Callable[[int], None]
"""Called with the bytes read or written since the last call, from any thread; an `Expecting` gets sums beforehand."""


@runtime_checkable
class Expecting(Protocol):
    """A progress callback that wants to know beforehand how many bytes will be read."""

    def __call__(self, count: int, /) -> None:
        """Take the bytes read since the last call, from any thread."""

    def expect(self, total: int, /) -> None:
        """Take the bytes that the next phase of the work reads."""


def expect_bytes(progress: Progress | None, total: int) -> None:
    """Announce a phase of work to a progress callback that wants to know; others are called with counts alone."""
    if total and isinstance(progress, Expecting):
        progress.expect(total)
