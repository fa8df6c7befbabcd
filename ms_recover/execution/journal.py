"""What an interrupted recovery had finished, so that the next one does not do it again."""

from __future__ import annotations

import json
import os
import threading
from contextlib import suppress

from ms_recover.file_names import JOURNAL_NAME

_MOST_BYTES = 1 << 28


class Journal:
    """An append-only file in the root, one finished action a line; removed when everything is done.

    A line is believed only while the target still is the very file it tells of.

    Parameters
    ----------
    root : str
        The tree.
    """

    def __init__(self, root: str) -> None:
        self._path = os.path.join(root, JOURNAL_NAME)
        self._lock = threading.Lock()
        self._done: dict[str, tuple[int, int, int, str]] = {}
        with suppress(OSError), open(self._path, "rb") as file:
            for line in file.read(_MOST_BYTES).splitlines():
                self._read(line)

    def _read(self, line: bytes) -> None:
        with suppress(ValueError, TypeError, KeyError, RecursionError):  # a line that was cut off tells nothing
            entry = json.loads(line)
            self._done[str(entry["target"])] = (entry["inode"], entry["bytes"], entry["mtime_ns"], str(entry["digest"]))

    def digest_of(self, target: str, path: str) -> str | None:
        """Return the digest of a finished target that is still in place, None otherwise."""
        told = self._done.get(target)
        if told is None:
            return None
        try:
            status = os.stat(path)
        except OSError:
            return None
        return told[3] if (status.st_ino, status.st_size, status.st_mtime_ns) == told[:3] else None

    def finished(self, target: str, path: str, digest: str) -> None:
        """Note that a target is complete; where it cannot be noted, the next run looks for itself."""
        with suppress(OSError):
            status = os.stat(path)
            entry = {
                "target": target,
                "inode": status.st_ino,
                "bytes": status.st_size,
                "mtime_ns": status.st_mtime_ns,
                "digest": digest,
            }
            with self._lock, open(self._path, "ab") as file:
                file.write(json.dumps(entry).encode() + b"\n")

    def close(self, complete: bool) -> None:
        """Remove the journal when everything is done; keep it for the next run otherwise."""
        if complete:
            with suppress(OSError):
                os.unlink(self._path)
