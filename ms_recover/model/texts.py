"""Short lists in messages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

MOST_NAMED = 5
MOST_SHOWN = 200
"""Characters of a reason that a table shows; JSON has all of it."""
_CUT = " ..."
_LEAST_CLAUSE = 60


def name_some(names: Sequence[str], most: int = MOST_NAMED) -> str:
    """Return some names in quotes, and how many more there are."""
    return list_some([repr(name) for name in names], most)


def list_some(items: Iterable[object], most: int = MOST_NAMED, *, separator: str = ", ") -> str:
    """Return the first of some items, and how many more there are."""
    texts = [str(item) for item in items]
    shown = separator.join(texts[:most])
    return f"{shown} and {len(texts) - most:,} more" if len(texts) > most else shown


def many(count: int, name: str) -> str:
    """Return a number with its noun, such as ``1 rank`` or ``1,024 switches``."""
    return f"{count:,} {name}" if count == 1 else f"{count:,} {plural(name)}"


def plural(name: str) -> str:
    """Return the plural of a regular noun."""
    return f"{name}es" if name.endswith(("s", "x", "ch", "sh")) else f"{name}s"


def ranks_text(ranks: Iterable[int]) -> str:
    """Return ranks with runs folded, such as ``0-3, 7``."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def name_ranks(ranks: Sequence[int], most: int = 12) -> str:
    """Return ranks with their noun and runs folded, such as ``ranks 0-3, 7``; of many runs the first."""
    pieces = ranks_text(ranks).split(", ")
    more = f" and more ({len(ranks):,} in all)" if len(pieces) > most else ""
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {', '.join(pieces[:most])}{more}"


def shorten(text: str, most: int = MOST_SHOWN) -> str:
    """Return a text of clauses in at most so many characters: the longest clause is cut, else the last ones go."""
    clauses = text.split("; ")
    while len(text) > most:
        longest = max(clauses, key=len)
        room = len(longest) - (len(text) - most) - len(_CUT)
        if room >= _LEAST_CLAUSE or len(clauses) == 1:
            beginning = longest[: max(room, 0) + 1].rpartition(" ")[0] or longest[:room]
            clauses[clauses.index(longest)] = beginning.rstrip(" ,:(") + _CUT
            return "; ".join(clauses)
        del clauses[-1]
        clauses[-1] = clauses[-1].removesuffix(_CUT) + _CUT
        text = "; ".join(clauses)
    return text
