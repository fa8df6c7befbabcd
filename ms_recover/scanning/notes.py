"""Notes of a scan: files that are reported and never used, many of a kind folded into one note."""

from __future__ import annotations

from collections import Counter, defaultdict

from ms_recover.model.inventory import Note
from ms_recover.scanning.naming import OUTVOTED

MOST_NAMED = 3
"""More files of one kind in one directory are folded into one note that names this many."""

_GENERAL = {
    "other rank": "the name says another rank than the directory does",
    "outvoted": f"{OUTVOTED}; docs/three-am.md has the commands that take it back or remove it",
    "double": "holds the same as another slice of its rank and step",
}
"""Reasons of kinds whose reasons differ from file to file."""


class Notes:
    """The notes of one scan."""

    def __init__(self) -> None:
        self._first: dict[tuple[str, str], list[Note]] = defaultdict(list)
        self._counts: Counter[tuple[str, str]] = Counter()

    def add(self, path: str, reason: str, kind: str = "") -> None:
        """Add a note; notes of one `kind` are folded, by default those of the same reason."""
        key = (path.rpartition("/")[0], kind or reason)
        self._counts[key] += 1
        if self._counts[key] <= MOST_NAMED:
            self._first[key].append(Note(path, reason))

    def folded(self) -> tuple[Note, ...]:
        """Return the notes, sorted by path."""
        notes = []
        for (directory, kind), first in self._first.items():
            more = self._counts[directory, kind] - len(first)
            if more:
                reason = _GENERAL.get(kind, first[0].reason)
                paths = ", ".join(note.path for note in first)
                notes.append(Note(paths, f"{reason}; and {more:,} more like it"))
            else:
                notes += first
        return tuple(sorted(notes, key=lambda note: (note.path, note.reason)))
