"""Notes of a scan: files that are reported and never used, many of a kind folded into one note."""

from __future__ import annotations

from dataclasses import dataclass, field

from ms_recover.model.inventory import Note

MOST_NAMED = 3
"""More files of one kind in one directory are folded into one note that names this many."""

_GENERAL = {
    "other rank": "the name says another rank than the directory does",
    "double": "holds the same as another slice of its rank and step",
}
"""Reasons of kinds whose reasons differ from file to file."""


@dataclass(slots=True)
class _Group:
    first: list[Note] = field(default_factory=list)
    count: int = 0


class Notes:
    """The notes of one scan."""

    def __init__(self) -> None:
        self._groups: dict[tuple[str, str], _Group] = {}

    def add(self, path: str, reason: str, kind: str = "") -> None:
        """Add a note; notes of one `kind` are folded, by default those of the same reason."""
        group = self._groups.setdefault((path.rpartition("/")[0], kind or reason), _Group())
        group.count += 1
        if len(group.first) < MOST_NAMED:
            group.first.append(Note(path, reason))

    def folded(self) -> tuple[Note, ...]:
        """Return the notes, sorted by path."""
        notes = []
        for (_, kind), group in self._groups.items():
            if group.count == len(group.first):
                notes += group.first
            else:
                reason = _GENERAL.get(kind, group.first[0].reason)
                paths = ", ".join(note.path for note in group.first)
                notes.append(Note(paths, f"{reason}; and {group.count - len(group.first):,} more like it"))
        return tuple(sorted(notes, key=lambda note: (note.path, note.reason)))
