"""The same work on many files, in threads."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from threading import Event
from typing import TypeVar

_T = TypeVar("_T")
_R = TypeVar("_R")


def in_threads(jobs: int, work: Callable[[_T], _R], items: Iterable[_T], stop: Event | None = None) -> list[_R]:
    """Return the results of `work` in the order of the items.

    After the first error, or Ctrl-C, no further item is begun, and `stop` is set, so that those that were begun may
    end; they are waited for.
    """
    pool = ThreadPoolExecutor(max(1, jobs), thread_name_prefix="recover")
    futures: list[Future[_R]] = []
    try:
        futures += [pool.submit(work, item) for item in items]
        wait(futures, return_when=FIRST_EXCEPTION)
        for future in futures:
            if future.done():
                future.result()  # raises the error
        return [future.result() for future in futures]
    finally:
        if stop is not None and not all(future.done() for future in futures):
            stop.set()
        pool.shutdown(wait=True, cancel_futures=True)
