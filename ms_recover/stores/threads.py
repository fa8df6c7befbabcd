"""The same work on many files, in threads."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from threading import Event
from typing import TypeVar

_T = TypeVar("_T")
_R = TypeVar("_R")


def in_threads(jobs: int, work: Callable[[_T], _R], items: Iterable[_T], stop: Event | None = None) -> list[_R]:
    """Return the results of `work` in the order of the items.

    After the first error, or Ctrl-C, no further item is begun, and `stop` is set, so that those that were begun may
    end; they are waited for.
    """
    # Not by futures: a signal that interrupts waiting for them may leave one locked, and its thread waits for ever.
    ended: SimpleQueue[tuple[int, _R | None, BaseException | None]] = SimpleQueue()

    def run(number: int, item: _T) -> None:
        try:
            ended.put((number, work(item), None))
        except BaseException as error:  # raised where all is waited for
            ended.put((number, None, error))

    pool = ThreadPoolExecutor(max(1, jobs), thread_name_prefix="recover")
    results: dict[int, _R] = {}
    errors: dict[int, BaseException] = {}
    count, finished = 0, False
    try:
        for number, item in enumerate(items):
            pool.submit(run, number, item)
            count += 1
        while len(results) < count and not (errors and ended.empty()):
            number, result, error = ended.get()
            if error is None:
                results[number] = result  # type: ignore[assignment]
            else:
                errors[number] = error
        if errors:
            raise errors[min(errors)]
        finished = True
        return [results[number] for number in range(count)]
    finally:
        if stop is not None and not finished:
            stop.set()
        pool.shutdown(wait=True, cancel_futures=True)
