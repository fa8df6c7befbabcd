"""Items by what they have in common."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

_T = TypeVar("_T")
_K = TypeVar("_K", bound=Hashable)


def grouped(items: Iterable[_T], key: Callable[[_T], _K]) -> dict[_K, list[_T]]:
    """Return items by their key, in the order in which they come."""
    found: dict[_K, list[_T]] = defaultdict(list)
    for item in items:
        found[key(item)].append(item)
    return dict(found)
