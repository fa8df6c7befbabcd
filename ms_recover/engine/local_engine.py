"""Tasks in threads of this process."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from ms_recover.engine.context import TaskContext, cores, running
from ms_recover.engine.engine import Engine
from ms_recover.engine.requests import Reply, Request, answer
from ms_recover.engine.roots import look_at, roots_from_environment
from ms_recover.engine.workers import Node, WorkerReport
from ms_recover.version import __version__

_T = TypeVar("_T")


def _ignore(count: int) -> None:
    pass


class LocalEngine(Engine):
    """One worker for this host, or several that see other disks each.

    Parameters
    ----------
    threads : int, optional
        Tasks at once; by default as many as there are cores.
    workers : mapping, optional
        By name of a worker where roots lie for it.
    """

    def __init__(self, *, threads: int | None = None, workers: Mapping[str, Mapping[str, str]] | None = None) -> None:
        self._threads = threads or cores()
        self._workers = dict(workers) if workers is not None else {socket.gethostname(): roots_from_environment()}
        self._several = workers is not None
        self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="task")
        self._ended = threading.Event()

    def look(self, root: str) -> tuple[WorkerReport, ...]:
        """Look at the root."""
        return tuple(
            WorkerReport(
                address=name,
                name=name,
                host=name if self._several else socket.gethostname(),
                version=__version__,
                threads=self._threads,
                root=look_at(root, roots),
            )
            for name, roots in self._workers.items()
        )

    def submit(
        self,
        function: Callable[..., _T],
        /,
        *arguments: object,
        where: Node | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> Future[_T]:
        """Run a function in a thread; see `Engine.submit`."""
        name = where.workers[0].address if where is not None else next(iter(self._workers))
        future: Future[_T]

        def stop() -> bool:
            return self._ended.is_set()

        def run() -> _T:
            context = TaskContext(stop=stop, count=progress or _ignore, roots=self._workers[name], ask=self._ask)
            with running(context):
                return function(*arguments)

        future = self._pool.submit(run)
        return future

    def close(self) -> None:
        """End the tasks."""
        self._ended.set()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _ask(self, node: Node, request: Request, stop: Callable[[], bool]) -> Reply:
        return answer(request, self._workers[node.workers[0].address])
