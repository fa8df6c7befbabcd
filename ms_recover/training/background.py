"""One task at a time beside the training, whose failure is kept until it is asked for."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from threading import Thread

_log = logging.getLogger(__name__)


class _Task(Thread):
    """The thread of a task; Python knows all of the process that are under way."""


def wait_for_tasks() -> int:
    """Wait for the tasks of this process that are under way, and return their number.

    A task whose training failed goes on writing; whoever resumes in the same process waits for it first. Its outcome
    stays with its `Background`.
    """
    waiting = [thread for thread in threading.enumerate() if isinstance(thread, _Task)]
    for thread in waiting:
        thread.join()
    return len(waiting)


class Background:
    """A task in a thread of its own, which ends with it; the interpreter waits for it at its end."""

    def __init__(self) -> None:
        self._thread: Thread | None = None
        self._failure: BaseException | None = None

    def begin(self, work: Callable[[], None], name: str) -> None:
        """Start a task in a named thread; the outcome of the task before must have been asked for."""

        def run() -> None:
            try:
                work()
            except BaseException as error:  # the panic of an extension module is no Exception
                self._failure = error
                _log.error("%s; the next save or the end of the training raises this error", error)

        assert self._thread is None
        self._thread = _Task(target=run, name=name)
        self._thread.start()

    def do_now(self, work: Callable[[], None]) -> None:
        """Run a task at once, unless one before it failed, and keep its exception until the outcome is asked for."""
        if self._failure is not None:
            return
        try:
            work()
        except Exception as error:
            self._failure = error

    def raise_failure(self) -> None:
        """Wait for the task, and raise its exception if it had one."""
        failure = self.outcome()
        if failure is not None:
            raise failure

    def outcome(self) -> Exception | None:
        """Wait for the task; return its exception, None when it had none or there was no task."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        failure, self._failure = self._failure, None
        if failure is not None and not isinstance(failure, Exception):
            raise failure
        return failure
