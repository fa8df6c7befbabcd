"""One piece of work at a time beside the training, whose failure is not lost."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

_log = logging.getLogger(__name__)


class Background:
    """Work in a thread that ends with it; an interpreter that ends waits for it."""

    def __init__(self) -> None:
        self._future: Future[None] | None = None

    def begin(self, work: Callable[[], None], name: str) -> None:
        """Begin work; the last one's outcome must have been asked for.

        Parameters
        ----------
        work : callable
            What to do.
        name : str
            Of the thread.
        """
        assert self._future is None
        pool = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._future = pool.submit(_run, work)
        pool.shutdown(wait=False)

    def do_now(self, work: Callable[[], None]) -> None:
        """Do work at once, and keep what it fails with until the outcome is asked for."""
        assert self._future is None
        done: Future[None] = Future()
        try:
            work()
        except Exception as error:
            done.set_exception(error)
        else:
            done.set_result(None)
        self._future = done

    def outcome(self) -> Exception | None:
        """Wait until the work is done; return what it failed with, None when it did not or nothing was begun."""
        if self._future is None:
            return None
        error, self._future = self._future.exception(), None
        if error is not None and not isinstance(error, Exception):
            raise error
        return error


def _run(work: Callable[[], None]) -> None:
    try:
        work()
    except Exception as error:
        _log.error("%s; the training is told when it saves next, or ends", error)
        raise
