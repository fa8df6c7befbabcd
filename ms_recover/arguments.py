"""Checks of the arguments that programs give (pure): a wrong one raises UsageError before anything else is done.

`is_whole` and `is_number` say what counts as a number, for rooms that have words of their own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from numbers import Integral, Real
from typing import Any, TypeGuard

from ms_recover.errors import UsageError


def is_number(value: Any) -> bool:
    """Whether a value is a number of Python or numpy; a bool is none."""
    return isinstance(value, Real) and not isinstance(value, bool)


def is_whole(value: Any, least: int | None = None, kind: Any = Integral) -> TypeGuard[int]:
    """Whether a value is a whole number, of Python alone where `kind` is int, and not below the `least`."""
    return is_number(value) and isinstance(value, kind) and (least is None or value >= least)


def check_type(name: str, value: Any, kind: type | tuple[type, ...], words: str) -> None:
    """Raise UsageError, which says that the argument must be `words`, when it is of another type."""
    if not isinstance(value, kind):
        _refuse_type(name, value, words)


def whole_number(name: str, value: Any, least: int | None = None) -> int:
    """Return an argument as an int; UsageError when it is no whole number, or below the `least`."""
    if not is_whole(value):
        _refuse_type(name, value, "a whole number")
    if not is_whole(value, least):
        raise UsageError(f"{name}={value}: it must be at least {least}")
    return int(value)


def texts(name: str, value: Any) -> tuple[str, ...]:
    """Return one text or several; UsageError when they are none."""
    if isinstance(value, str):
        return (value,)
    check_type(name, value, Iterable, "a text or a list of texts")
    listed = tuple(value)
    for one in listed:
        check_type(name, one, str, "a text or a list of texts")
    return listed


def ranks(name: str, value: Any) -> list[int]:
    """Return ranks, sorted; UsageError when they are no collection of whole numbers."""
    check_type(name, value, Collection, "a list of ranks")
    return sorted(whole_number(f"{name}: a rank", one) for one in value)


def _refuse_type(name: str, value: Any, words: str) -> None:
    raise UsageError(f"{name}={value!r}: it must be {words}, and is of type {type(value).__name__}")
