"""The interface of everything that runs tasks, and the threads of this process as one."""

from __future__ import annotations

import socket
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

from ms_recover.engine.context import TaskContext, carried, cores, ignore_count, running
from ms_recover.engine.requests import Reply, Request, answer
from ms_recover.engine.roots import look_at, roots_from_environment
from ms_recover.engine.workers import Node, WorkerReport
from ms_recover.model.progress import Progress
from ms_recover.version import __version__

_POLL_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Task:
    """A function that runs on a worker of a node, whose disk it reads or writes.

    It is one of a module, so that every worker finds it, and may run again where a worker was lost: it changes nothing
    that a second run would spoil. Arguments can be pickled. Results are small: digests, headers and outcomes, never
    slices. Within, `ms_recover.engine.context.current` is what it may ask of the worker.
    """

    node: Node
    function: Callable[..., Any]
    arguments: tuple[object, ...] = ()


class Engine(ABC):
    """Runs tasks on workers; a context manager."""

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abstractmethod
    def look(self, root: str) -> tuple[WorkerReport, ...]:
        """Ask every worker what it sees at a root, an absolute path.

        A worker that cannot answer has a problem in its report. Errors are those of `run`.
        """

    @abstractmethod
    def run_each(
        self, tasks: Sequence[Task], *, progress: Progress | None = None, until_error: bool = False
    ) -> list[Any]:
        """Run tasks, each on a worker of its node; return their results or errors in order.

        Parameters
        ----------
        progress : callable, optional
            Given the bytes that the tasks count, each once even if a task runs again.
        until_error : bool
            After an error the others are ended; their results are None. Ctrl-C ends all.

        Returns
        -------
        list
            An error is a MsRecoverError: that of the function, or a StorageError when the workers were lost or the
            engine cannot be reached any more.
        """

    def run(self, tasks: Sequence[Task], *, progress: Progress | None = None) -> list[Any]:
        """Run tasks as `run_each` does, and return their results in order.

        Raises
        ------
        MsRecoverError
            The first error; the other tasks are ended.
        """
        results = self.run_each(tasks, progress=progress, until_error=True)
        for result in results:
            if isinstance(result, Exception):
                raise result
        return results

    @abstractmethod
    def close(self) -> None:
        """End the tasks that still run, and let go of the workers; it waits until they have cleaned up."""


class LocalEngine(Engine):
    """One worker for this host, or several that see other disks each; their tasks are threads of this process.

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

    def run_each(
        self, tasks: Sequence[Task], *, progress: Progress | None = None, until_error: bool = False
    ) -> list[Any]:
        """Run tasks in threads; see `Engine.run_each`."""
        given_up = threading.Event()
        futures = [self._pool.submit(self._run, task, progress or ignore_count, given_up) for task in tasks]
        try:
            pending = set(futures)
            while pending:  # with a time limit, so that Ctrl-C arrives
                ended, pending = wait(pending, timeout=_POLL_SECONDS, return_when=FIRST_COMPLETED)
                if until_error and any(isinstance(future.result(), Exception) for future in ended):
                    break
            return [None if future in pending else future.result() for future in futures]
        finally:
            given_up.set()
            for future in futures:
                future.cancel()

    def _run(self, task: Task, progress: Progress, given_up: threading.Event) -> Any:
        def stop() -> bool:
            return given_up.is_set() or self._ended.is_set()

        roots = self._workers[task.node.workers[0].address]
        context = TaskContext(stop=stop, count=progress, threads=self._threads, roots=roots, ask=self._ask)
        try:
            with running(context):
                return task.function(*task.arguments)
        except Exception as error:
            return carried(error)

    def close(self) -> None:
        """End the tasks."""
        self._ended.set()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _ask(self, node: Node, request: Request, stop: Callable[[], bool]) -> Reply:
        return answer(request, self._workers[node.workers[0].address])
