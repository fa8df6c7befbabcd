"""The same work on many files, in threads."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

_T = TypeVar("_T")
_R = TypeVar("_R")


def in_threads(jobs: int, work: Callable[[_T], _R], items: Iterable[_T]) -> list[_R]:
    """Return the results of `work` in the order of the items; after the first error no further item is begun."""
    pool = ThreadPoolExecutor(max(1, jobs), thread_name_prefix="recover")
    try:
        return list(pool.map(work, items))
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
