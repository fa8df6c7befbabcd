"""Checks of the paths that programs give: a wrong one raises UsageError before anything is read."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from ms_recover.arguments import check_type
from ms_recover.errors import UsageError

Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]


def path_text(name: str, value: Any, words: str = "a path") -> str:
    """Return a path or URL as text, ``~`` left as it is; UsageError when it is none."""
    check_type(name, value, (str, os.PathLike), words)
    text = os.fspath(value)
    if not isinstance(text, str):
        raise UsageError(f"{name}={text!r}: it must be a path of text")
    if not text or "\0" in text:
        raise UsageError(f"{name}={text!r}: it is not a path")
    return text


def home_path(name: str, value: Any) -> str:
    """Return a path as text, with the home directory for ``~``; UsageError when it is none."""
    return os.path.expanduser(path_text(name, value))


def path_texts(name: str, value: Any) -> tuple[str, ...]:
    """Return one path or several as texts, as `home_path` does."""
    if isinstance(value, (str, os.PathLike)):
        return (home_path(name, value),)
    check_type(name, value, Iterable, "a path or a list of paths")
    return tuple(home_path(name, one) for one in value)


def source_texts(name: str, value: Any) -> tuple[str, ...]:
    """Return one source or several as texts; what is a path by its type stays one, and is never taken for a host."""
    listed = (value,) if isinstance(value, (str, os.PathLike)) else value
    check_type(name, listed, Iterable, "a source or a list of sources")
    pairs = [(one, home_path(name, one)) for one in listed]
    return tuple(os.path.abspath(text) if isinstance(one, os.PathLike) else text for one, text in pairs)
