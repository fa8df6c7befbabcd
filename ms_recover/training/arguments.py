"""Checks of the types of arguments, before anything is trained."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from numbers import Integral
from typing import Any

from ms_recover.errors import UsageError


def check_type(name: str, value: Any, kind: type | tuple[type, ...], words: str) -> None:
    """Raise UsageError, which says that the argument must be `words`, when it is of another type.

    A bool is no number.
    """
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is Integral):
        raise UsageError(f"{name}={value!r}: it must be {words}, and is of type {type(value).__name__}")


def whole_number(name: str, value: Any, least: int | None = None) -> int:
    """Return an argument as an int; UsageError when it is no whole number, or below the `least`."""
    check_type(name, value, Integral, "a whole number")
    if least is not None and value < least:
        raise UsageError(f"{name}={value}: it must be at least {least}")
    return int(value)


def path_text(name: str, value: Any) -> str:
    """Return a path as text, with the home directory for ``~``; UsageError when it is none."""
    check_type(name, value, (str, os.PathLike), "a path")
    text = os.fspath(value)
    if not isinstance(text, str):
        raise UsageError(f"{name}={text!r}: it must be a path of text")
    if not text or "\0" in text:
        raise UsageError(f"{name}={text!r}: it is not a path")
    return os.path.expanduser(text)


def path_texts(name: str, value: Any) -> tuple[str, ...]:
    """Return one path or several as texts, as `path_text` does."""
    if isinstance(value, (str, os.PathLike)):
        return (path_text(name, value),)
    check_type(name, value, Iterable, "a path or a list of paths")
    return tuple(path_text(name, one) for one in value)


def source_texts(name: str, value: Any) -> tuple[str, ...]:
    """Return one source or several as texts; what is a path by its type stays one, and is never taken for a host."""
    listed = (value,) if isinstance(value, (str, os.PathLike)) else value
    check_type(name, listed, Iterable, "a source or a list of sources")
    pairs = [(one, path_text(name, one)) for one in listed]
    return tuple(os.path.abspath(text) if isinstance(one, os.PathLike) else text for one, text in pairs)


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
