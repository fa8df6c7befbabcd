"""What a task may ask of the worker that runs it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from ms_recover.engine.requests import Reply, Request, answer
from ms_recover.engine.roots import open_root, roots_from_environment
from ms_recover.engine.workers import Node
from ms_recover.errors import MsRecoverError
from ms_recover.stores.local import StoppedError

Ask = Callable[[Node, Request, Callable[[], bool]], Reply]
"""Sends a request to a worker of a node, until the last argument returns True."""


def ignore_count(count: int) -> None:
    """Take bytes that nobody wants to know."""


def _here(node: Node, request: Request, stop: Callable[[], bool]) -> Reply:
    return answer(request, roots_from_environment())


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskContext:
    """The means of one task; threads that it starts may use them too."""

    stop: Callable[[], bool] = lambda: False
    """True when the task is to end: its result is no longer wanted."""
    count: Callable[[int], None] = ignore_count
    """Given the bytes done since the last call."""
    threads: int = 1
    """How many this worker has for it."""
    roots: Mapping[str, str] = field(default_factory=roots_from_environment)
    """Where roots lie on this node."""
    ask: Ask = _here

    def progress(self, count: int) -> None:
        """Take the bytes done since the last call.

        Raises
        ------
        StoppedError
            When the task is to end.
        """
        if self.stop():
            raise StoppedError
        self.count(count)

    def open_root(self, node: Node) -> str:
        """Return where the root of a node lies here; errors as for `ms_recover.engine.roots.open_root`."""
        return open_root(node.root, node.identities, self.roots)


_context: ContextVar[TaskContext] = ContextVar("task")


def current() -> TaskContext:
    """Return the context of the task that runs in this thread."""
    return _context.get(None) or TaskContext()


@contextmanager
def running(context: TaskContext) -> Iterator[None]:
    """Let a block be a task."""
    token = _context.set(context)
    try:
        yield
    finally:
        _context.reset(token)


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


def carried(error: BaseException) -> Exception:
    """Return an error as it travels between processes: others than those of ms_recover as text."""
    if isinstance(error, MsRecoverError):
        return error
    if isinstance(error, StoppedError):
        return StoppedError()
    return MsRecoverError(f"{type(error).__name__}: {error}")
