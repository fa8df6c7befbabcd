"""The actions that an interrupted recovery finished, so that the next one need not repeat them."""

from __future__ import annotations

import json
import os
import stat
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import xxhash

from ms_recover.file_names import JOURNAL_NAME, MANIFEST_SUFFIX
from ms_recover.model.compose import ComposeAction
from ms_recover.model.plan import Action
from ms_recover.stores.digest import holds
from ms_recover.stores.local import READ

_APPEND = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_MOST_BYTES = 1 << 28

_Entry = tuple[str, int, int, int, str]


class Journal:
    """An append-only file in the root, one finished action a line; removed when everything is done.

    A line is no proof: it says which bytes an action wrote, and the target is read and compared with them.
    """

    def __init__(self, root: str) -> None:
        self._root = root
        self._path = os.path.join(root, JOURNAL_NAME)
        self._lock = threading.Lock()
        self._done: dict[str, _Entry] = {}
        with suppress(OSError):
            for line in _read_regular(self._path).splitlines():
                self._read(line)

    def _read(self, line: bytes) -> None:
        with suppress(ValueError, TypeError, KeyError, RecursionError):  # a line that was cut off says nothing
            entry = json.loads(line)
            fields = (entry["action"], entry["inode"], entry["bytes"], entry["mtime_ns"], entry["digest"])
            self._done[str(entry["target"])] = fields

    def proven_digest(self, action: Action, stop: Callable[[], bool]) -> str | None:
        """Return the digest of a target that this same action finished and that still holds its bytes, by reading it.

        A StoppedError when `stop` returns True.
        """
        entry, path = self._done.get(action.target), os.path.join(self._root, action.target)
        if entry is None or entry[0] != _identity(action) or not isinstance(entry[4], str):
            return None
        with suppress(OSError):
            status = os.stat(path)
            same = (status.st_ino, status.st_size, status.st_mtime_ns) == entry[1:4]
            if same and os.path.exists(path + MANIFEST_SUFFIX):
                return holds(path, status.st_size, entry[4], stop)
        return None

    def finished(self, action: Action, digest: str) -> None:
        """Note that a target is complete; where it cannot be noted, the next run does the action again."""
        with suppress(OSError):
            status = os.stat(os.path.join(self._root, action.target))
            entry = {
                "target": action.target,
                "action": _identity(action),
                "inode": status.st_ino,
                "bytes": status.st_size,
                "mtime_ns": status.st_mtime_ns,
                "digest": digest,
            }
            with self._lock:
                _append_regular(self._path, json.dumps(entry).encode() + b"\n")

    def close(self, complete: bool) -> None:
        """Remove the journal when everything is done; keep it for the next run otherwise."""
        if complete:
            with suppress(OSError):
                os.unlink(self._path)


def _identity(action: Action) -> str:
    """Return a digest of everything that decides the bytes an action writes."""
    plain = action.because("") if isinstance(action, ComposeAction) else replace(action, reason="")
    return xxhash.xxh3_128_hexdigest(repr(plain).encode())


def _read_regular(path: str) -> bytes:
    with open(os.open(path, READ | os.O_NOFOLLOW), "rb") as file:
        return file.read(_MOST_BYTES) if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else b""


def _append_regular(path: str, data: bytes) -> None:
    descriptor = os.open(path, _APPEND, 0o644)
    try:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.write(descriptor, data)
    finally:
        os.close(descriptor)
