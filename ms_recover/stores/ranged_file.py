"""A file that is read in ranges over a network: several blocks on their way at a time, delivered in order."""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from ms_recover.model.actions import FileState
from ms_recover.stores.atomic import FileForm
from ms_recover.stores.distant_file import DistantFile
from ms_recover.stores.network_store import NetworkStore
from ms_recover.stores.store import FileInfo, Stop, changed_error

BLOCK = 4 << 20
"""Bytes of one request, where a store says nothing else."""

_PIECE = 64 << 10
"""Bytes of one request after a break."""

IN_FLIGHT = 4
"""Requests of one file on their way at a time."""


class RangedFile(DistantFile):
    """A file of a `NetworkStore` that was `info` when it was opened.

    Raises
    ------
    VerificationError
        When it is not as `expected`, where that is given.
    """

    block = BLOCK
    """Bytes of one request."""

    mode = 0o600
    """Permissions of a copy, where the store knows none: those of a private file."""

    def __init__(self, store: NetworkStore, path: str, info: FileInfo, expected: FileState | None) -> None:
        super().__init__(store.name(path), info.size)
        self._store, self._path, self._info = store, path, info
        if expected is not None and info.state != expected:
            raise changed_error(self.name, info.state, expected)

    @property
    @abstractmethod
    def fetch(self) -> Callable[[int, int], Any]:
        """The call of the store that returns a range of the one version that was opened; fewer bytes are an error."""

    def read_range(self, start: int, end: int, take: Callable[[memoryview], None], stop: Stop) -> None:
        """Read a range of bytes; see `OpenFile.read_range`."""
        end = min(end, self.size)
        if start >= end:
            return
        begun: deque[tuple[int, int, Future[bytes]]] = deque()
        ahead = start
        try:
            while begun or ahead < end:
                while ahead < end and len(begun) < IN_FLIGHT:
                    first, ahead = ahead, min(ahead + self.block, end)
                    begun.append((first, ahead, self._store.begin(self.fetch, first, ahead)))
                first, last, future = begun.popleft()
                data = self._store.first_try(future, "reading", self._path, stop=stop)
                take(memoryview(self._in_pieces(first, last, stop) if data is None else data))
            self.check_read()
        finally:
            for _, _, future in begun:
                future.cancel()

    def _in_pieces(self, start: int, end: int, stop: Stop) -> bytearray:
        """Read a block once more, so that a connection that breaks at every chunk gets on as well."""
        data = bytearray()
        for first in range(start, end, _PIECE):
            last = min(first + _PIECE, end)
            data += self._store.call("reading", self._path, self.fetch, first, last, stop=stop)
        return data

    def check_read(self) -> None:
        """Check behind a range that its bytes are those of the one version."""

    def check_unchanged(self) -> None:
        """Compare the state of the file now; see `OpenFile.check_unchanged`."""
        self.compare(self._store.stat(self._path))

    def compare(self, now: FileInfo) -> None:
        """Raise a VerificationError unless the file is as it was opened."""
        if now.state != self._info.state or now.version != self._info.version:
            raise changed_error(self.name, now.state, self._info.state)

    def form(self) -> FileForm:
        """Return the time of the file, and permissions for its owner alone."""
        return FileForm(self.mode, self._info.mtime_ns)
