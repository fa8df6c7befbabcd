"""Short lists in messages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

MOST_NAMED = 5


def name_some(names: Sequence[str], most: int = MOST_NAMED) -> str:
    """Return some names in quotes, and how many more there are."""
    return list_some([repr(name) for name in names], most)


def list_some(items: Iterable[object], most: int = MOST_NAMED, *, separator: str = ", ") -> str:
    """Return the first of some items, and how many more there are."""
    texts = [str(item) for item in items]
    shown = separator.join(texts[:most])
    return f"{shown} and {len(texts) - most:,} more" if len(texts) > most else shown
