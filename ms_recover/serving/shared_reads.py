"""Digests for several clients: a file is read once in one state, however many of them ask."""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ms_recover.model.actions import FileState
from ms_recover.model.contents import NOTHING_READ, Contents
from ms_recover.model.manifest import Digests

KEPT_S = 600.0
"""Seconds for which digests answer for a file that looks the same; then it is read again: bytes on a disk may rot."""

_MOST_KEPT = 1 << 18
"""Digests that are kept, of files and of parameters."""

_POLL_S = 0.2


class SeenFile(NamedTuple):
    """A file as it was when somebody asked for it; another one under its name, or other bytes in it, differ in this."""

    path: str
    state: FileState
    changed_ns: int
    inode: int
    beside: FileState | None
    """Of its state file, None without one."""

    @classmethod
    def of(cls, path: str, status: os.stat_result, beside: os.stat_result | None) -> SeenFile:
        """Return it by what the operating system says of it and of its state file."""
        own = FileState(status.st_size, status.st_mtime_ns)
        other = None if beside is None else FileState(beside.st_size, beside.st_mtime_ns)
        return cls(path, own, status.st_ctime_ns, status.st_ino, other)


class _Kept(NamedTuple):
    digests: Digests
    problem_of_state: str | None
    until: float


class _Reading:
    """Files that one client's request reads; others wait for it."""

    def __init__(self) -> None:
        self.ended = threading.Event()
        self.bytes = 0
        self._lock = threading.Lock()

    def count(self, count: int) -> None:
        with self._lock:
            self.bytes += count


Read = Callable[[Sequence[SeenFile], Callable[[int], None]], Contents]


class SharedReads:
    """What was read, and is being read; threads share it.

    Attributes
    ----------
    bytes : int
        Bytes that were read, in all.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._kept: OrderedDict[SeenFile, _Kept] = OrderedDict()
        self._held = 0
        self._running: dict[SeenFile, _Reading] = {}
        self.bytes = 0

    def contents(self, files: Sequence[SeenFile], read: Read, progress: Callable[[int], None]) -> Contents:
        """Return the digests of files; what nobody has read or reads is read here.

        Parameters
        ----------
        read : callable
            Reads files, and calls what it is given with the bytes read since the last call.
        progress : callable
            Is given the bytes that are read for this call, here or elsewhere; what it raises ends the call.
        """
        found, left = NOTHING_READ, list(files)
        while left:
            known, mine, others = self._claim(left)
            found = found.merged(known)
            if mine:
                found = found.merged(self._read(mine, read, progress))
            for reading in dict.fromkeys(others.values()):
                _wait(reading, progress)
            left = list(others)  # kept by now, unless whoever read them has failed
        return found

    def _claim(self, files: Sequence[SeenFile]) -> tuple[Contents, list[SeenFile], dict[SeenFile, _Reading]]:
        """Return what is kept, the files that this call reads from now on, and those that another call reads."""
        digests: dict[str, Digests] = {}
        states: dict[str, str] = {}
        mine: list[SeenFile] = []
        others: dict[SeenFile, _Reading] = {}
        reading, now = _Reading(), self._clock()
        with self._lock:
            for file in files:
                kept = self._kept.get(file)
                if kept is not None and now < kept.until:
                    digests[file.path] = kept.digests
                    if kept.problem_of_state is not None:
                        states[file.path] = kept.problem_of_state
                elif file in self._running:
                    others[file] = self._running[file]
                else:
                    mine.append(file)
            self._running |= dict.fromkeys(mine, reading)
        return Contents(digests, {}, states), mine, others

    def _read(self, files: Sequence[SeenFile], read: Read, progress: Callable[[int], None]) -> Contents:
        reading, found = self._running[files[0]], NOTHING_READ

        def count(count: int) -> None:
            reading.count(count)
            progress(count)

        try:
            found = read(files, count)
        finally:
            with self._lock:
                for file in files:
                    del self._running[file]
                    if file.path in found.digests:
                        self._keep(file, found)
                self.bytes += reading.bytes
            reading.ended.set()
        return found

    def _keep(self, file: SeenFile, found: Contents) -> None:
        if (before := self._kept.pop(file, None)) is not None:
            self._held -= _size(before)
        kept = _Kept(found.digests[file.path], found.states.get(file.path), self._clock() + KEPT_S)
        self._kept[file] = kept
        self._held += _size(kept)
        while self._held > _MOST_KEPT and len(self._kept) > 1:
            self._held -= _size(self._kept.popitem(last=False)[1])


def _size(kept: _Kept) -> int:
    return 1 + len(kept.digests.parameters)


def _wait(reading: _Reading, progress: Callable[[int], None]) -> None:
    """Wait until another call has read its files, and count their bytes meanwhile."""
    seen = 0
    while True:
        ended = reading.ended.wait(_POLL_S)
        now = reading.bytes
        progress(now - seen)
        seen = now
        if ended:
            return
