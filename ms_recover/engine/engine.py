"""The interface of everything that runs tasks, shaped as `concurrent.futures.Executor`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from typing import TypeVar

from ms_recover.engine.workers import Node, WorkerReport

DASK = "dask://"
DASK_TLS = "tls://"
_POLL_SECONDS = 0.2
_T = TypeVar("_T")


class Engine(ABC):
    """Runs functions on workers; a context manager.

    A function is one of a module, so that every worker finds it, and may run again where a worker was lost: it changes
    nothing that a second run would spoil. Within, `ms_recover.engine.context.current` is what it may ask of the worker.
    """

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abstractmethod
    def look(self, root: str) -> tuple[WorkerReport, ...]:
        """Ask every worker what it sees at a root, an absolute path.

        A worker that cannot answer has a problem in its report. Errors are those of `submit`'s results.
        """

    @abstractmethod
    def submit(
        self,
        function: Callable[..., _T],
        /,
        *arguments: object,
        where: Node | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> Future[_T]:
        """Run ``function(*arguments)`` on a worker of a node, by default on any; return the future result.

        Parameters
        ----------
        *arguments
            Values that can be pickled. Results are small: digests, headers and outcomes, never slices.
        where : Node, optional
            The node whose disk the function reads or writes.
        progress : callable, optional
            Given the bytes that the function counts, from any thread, each once even if it runs again.

        Returns
        -------
        Future
            Its error is that of the function, where it is one of ms_recover; a StorageError when the workers were lost
            or the engine cannot be reached any more.
        """

    @abstractmethod
    def close(self) -> None:
        """End the tasks that still run, and let go of the workers; it waits until they have cleaned up."""


def gather(futures: Sequence[Future[_T]]) -> list[_T]:
    """Wait for all, and return their results in order; after an error, or Ctrl-C, the others are cancelled."""
    try:
        pending = set(futures)
        while pending:  # with a time limit, so that Ctrl-C arrives
            ended = wait(pending, timeout=_POLL_SECONDS, return_when=FIRST_EXCEPTION)
            pending = ended.not_done
            for future in ended.done:
                future.result()
        return [future.result() for future in futures]
    except BaseException:
        _cancel(futures)
        raise


def settle(futures: Sequence[Future[_T]]) -> None:
    """Wait for all, whatever becomes of them; after Ctrl-C those that still run are cancelled."""
    try:
        pending = set(futures)
        while pending:
            pending = wait(pending, timeout=_POLL_SECONDS).not_done
    except BaseException:
        _cancel(futures)
        raise


def _cancel(futures: Iterable[Future[_T]]) -> None:
    for future in futures:
        future.cancel()
