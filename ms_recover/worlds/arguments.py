"""Checks of arguments that users give (pure): a wrong one is refused before anything is sent."""

from __future__ import annotations

import operator
from typing import Any

from ms_recover.arguments import is_number
from ms_recover.errors import UsageError

LONGEST_S = 1e9
"""Longest time limit in seconds, about 30 years; an infinite one is as good as this."""


def whole(name: str, value: Any) -> int:
    """Return a whole number of Python or numpy as an int; raises `UsageError` for anything else."""
    if type(value) is int:
        return value
    try:
        if isinstance(value, bool):
            raise TypeError
        return operator.index(value)
    except TypeError:
        raise UsageError(f"invalid {name} {value!r:.80}: it must be a whole number") from None


def seconds(name: str, value: Any) -> float:
    """Return a time limit in seconds; raises `UsageError` when it is not more than 0."""
    if not is_number(value):
        raise UsageError(f"invalid {name} {value!r:.80}: it must be a number of seconds")
    limit = min(value, LONGEST_S) if isinstance(value, int) else float(value)
    if not limit > 0:
        raise UsageError(f"invalid {name} of {value} s: it must be more than 0 s")
    return min(float(limit), LONGEST_S)


def optional_seconds(name: str, value: Any) -> float | None:
    """Return a time limit in seconds, or None for none; raises as `seconds`."""
    return None if value is None else seconds(name, value)


def text(name: str, value: Any) -> str:
    """Return a text; raises `UsageError` when it is none, or none that UTF-8 can encode."""
    if not isinstance(value, str):
        raise UsageError(f"invalid {name} {value!r:.80}: it must be a text")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"invalid {name} {value!r:.80}: {error.reason}") from None
    return value
