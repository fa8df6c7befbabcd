"""What trainings share that no program hands from one to the other: held for a process, or for a thread, here alone.

A program makes savers before a resume or behind it, several for one training, and several trainings one after the
other, and gives none of them the others. Which savers belong to one run, which step was loaded that the next run goes
on from, and what a retry began with is therefore noted for the whole process. Where trainings run in threads beside
each other, the line of a resume, and samples that are not proven yet, are those of one thread.

Each module has a class for its own notes; a value that can be handed over is no note.
"""

from __future__ import annotations

import threading
from typing import Any, TypeVar, cast

Notes = TypeVar("Notes")


class _OfThread(threading.local):
    def __init__(self) -> None:
        self.notes: dict[type, Any] = {}


_of_process: dict[type, Any] = {}
_of_thread = _OfThread()


def of_process(kind: type[Notes]) -> Notes:
    """Return the notes of a class that this process has, made when they are first asked for."""
    found = _of_process.get(kind)
    return cast(Notes, _of_process.setdefault(kind, kind()) if found is None else found)


def of_thread(kind: type[Notes]) -> Notes:
    """Return the notes of a class that this thread has, made when they are first asked for."""
    notes = _of_thread.notes
    if kind not in notes:
        notes[kind] = kind()
    return cast(Notes, notes[kind])
