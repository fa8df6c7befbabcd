"""The calls of a client, and how they are put together into tasks (pure)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from ms_recover.engine.workers import Node

MOST_CALLS = 64
"""Of one task."""
MOST_LOSSES = 4
"""Workers that may be lost at one call, before it counts as their end."""
_TASKS_PER_THREAD = 2


@dataclass(eq=False)
class Call:
    """One call of `submit`."""

    future: Future[Any]
    function: Callable[..., Any]
    arguments: tuple[object, ...]
    node: Node | None
    progress: Callable[[int], None] | None
    counted: int = 0
    """Bytes that `progress` got."""
    losses: int = 0
    since: float = 0.0
    """When it began to wait for a worker."""

    @property
    def team(self) -> tuple[str, str]:
        """Which team it waits for: that of its node, or of all workers."""
        return (self.node.label, self.node.root) if self.node is not None else ("", "")

    def count(self, total: int) -> None:
        """Take the bytes that the call has counted; after a loss it begins anew, and what was counted stays."""
        if self.progress is not None and total > self.counted:
            more, self.counted = total - self.counted, total
            self.progress(more)


@dataclass(eq=False)
class Chunk:
    """Calls that are one task on a worker."""

    calls: list[Call]
    address: str
    task: Any
    """The future of the client."""


@dataclass(eq=False)
class Seat:
    """A worker of a team, and its chunks."""

    threads: int
    chunks: set[int] = field(default_factory=set)

    @property
    def free(self) -> int:
        """How many more tasks keep it busy."""
        return _TASKS_PER_THREAD * self.threads - len(self.chunks)


@dataclass(eq=False)
class Team:
    """The workers of a node, and the calls that wait for them."""

    node: Node | None
    seats: dict[str, Seat] = field(default_factory=dict)
    waiting: deque[Call] = field(default_factory=deque)

    def next_seat(self) -> str | None:
        """Return the worker that gets the next chunk: the one with the most room."""
        if not self.waiting or not self.seats:
            return None
        address = max(sorted(self.seats), key=lambda one: self.seats[one].free)
        return address if self.seats[address].free > 0 else None

    def take(self) -> list[Call]:
        """Take the calls of the next chunk: many while many wait, single ones at the end, so that all end together."""
        threads = sum(seat.threads for seat in self.seats.values())
        size = min(MOST_CALLS, max(1, len(self.waiting) // (2 * _TASKS_PER_THREAD * threads)))
        return [self.waiting.popleft() for _ in range(min(size, len(self.waiting)))]
