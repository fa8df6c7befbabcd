"""Phrases that messages and reports share."""

from __future__ import annotations

from collections.abc import Sequence

MOST_NAMED = 8
"""Items that a message names before it counts the rest."""


def name_some(items: Sequence[object], most: int = MOST_NAMED, separator: str = ", ") -> str:
    """Return the first items as text, and the number of the others, such as ``a, b and 3 more``."""
    shown = separator.join(str(item) for item in items[:most])
    more = len(items) - most
    return f"{shown} and {more} more" if more > 0 else shown
