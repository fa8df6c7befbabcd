"""One task at a time beside the training, whose failure is kept until it is asked for."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

_log = logging.getLogger(__name__)


class Background:
    """A task in a thread of its own, which ends with it; the interpreter waits for it at its end."""

    def __init__(self) -> None:
        self._future: Future[None] | None = None

    def begin(self, work: Callable[[], None], name: str) -> None:
        """Start a task in a named thread; the outcome of the task before must have been asked for."""
        assert self._future is None
        pool = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._future = pool.submit(_run, work)
        pool.shutdown(wait=False)

    def do_now(self, work: Callable[[], None]) -> None:
        """Run a task at once, and keep its exception until the outcome is asked for."""
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
        """Wait for the task; return its exception, None when it had none or there was no task."""
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
        _log.error("%s; the next save or the end of the training raises this error", error)
        raise
