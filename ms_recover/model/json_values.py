"""Values of plain JSON, checked while they are read: nothing a file says is believed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

_T = TypeVar("_T")
MAX_RANKS = 1 << 24
"""No rank is as high."""


def text_or_none(data: Mapping[str, Any], key: str) -> str | None:
    """Return a text, or None where there is none."""
    return None if data[key] is None else get(data, key, str)


def as_kind(value: object, kind: type[_T]) -> _T:
    """Return a value that must be of some type; a bool is no int.

    Raises
    ------
    TypeError
        When it is not.
    """
    if not isinstance(value, kind) or isinstance(value, bool):
        raise TypeError(f"{value!r} is not of type {kind.__name__}")
    return value


def get(data: Mapping[str, Any], key: str, kind: type[_T]) -> _T:
    """Return a member that must be there and of some type; the error names it."""
    try:
        return as_kind(data[key], kind)
    except TypeError as error:
        raise TypeError(f"{key}: {error}") from None


def count(data: Mapping[str, Any], key: str, below: int = MAX_RANKS) -> int:
    """Return a number that is not negative, and below a limit."""
    value = get(data, key, int)
    if not 0 <= value < below:
        raise ValueError(f"{key} is {value}")
    return value


def choice(data: Mapping[str, Any], key: str, allowed: tuple[_T, ...]) -> _T:
    """Return a word of a closed set.

    Raises
    ------
    ValueError
        When it is another.
    """
    for word in allowed:
        if word == data[key]:
            return word
    raise ValueError(f"{key} is {data[key]!r}")


def inside(data: Mapping[str, Any], key: str) -> str:
    """Return a path that stays below the root, whatever the file says."""
    path = get(data, key, str)
    parts = path.split("/")
    if path.startswith("/") or "\0" in path or any(part in ("", ".", "..") for part in parts):
        raise ValueError(f"{key} {path!r} is not a path below the root")
    return path
