"""A file that is read in ranges over a network: several blocks on their way at a time, delivered in order."""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from ms_recover.errors import VerificationError
from ms_recover.model.actions import FileState
from ms_recover.stores.atomic import FileForm
from ms_recover.stores.network_store import NetworkStore
from ms_recover.stores.store import FileInfo, OpenFile, Stop, never

BLOCK = 4 << 20
"""Bytes of one request."""

IN_FLIGHT = 4
"""Requests of one file on their way at a time."""

_LEAST_AHEAD = 64 << 10


class RangedFile(OpenFile):
    """A file of a `NetworkStore` that was `info` when it was opened; consecutive small reads are requested ahead.

    Raises
    ------
    VerificationError
        When it is not as `expected`, where that is given.
    """

    near = False
    mode = 0o600
    """Permissions of a copy, where the store knows none: those of a private file."""

    def __init__(self, store: NetworkStore, path: str, info: FileInfo, expected: FileState | None) -> None:
        super().__init__(store.name(path), info.size)
        self._store, self._path, self._info = store, path, info
        self._block, self._start, self._ahead = b"", 0, _LEAST_AHEAD
        if expected is not None and info.state != expected:
            raise self.changed(info.state, expected)

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
                    first, ahead = ahead, min(ahead + BLOCK, end)
                    begun.append((first, ahead, self._store.begin(self.fetch, first, ahead)))
                first, last, future = begun.popleft()
                data = self._store.finish(future, "reading", self._path, self.fetch, first, last, stop=stop)
                take(memoryview(data))
            self.check_read()
        finally:
            for _, _, future in begun:
                future.cancel()

    def check_read(self) -> None:
        """Check behind a range that its bytes are those of the one version."""

    def read(self, offset: int, into: memoryview) -> int:
        """Read from the block at hand, or ask for the next one; see `OpenFile.read`."""
        within = offset - self._start
        if not 0 <= within < len(self._block):
            follows = 0 <= within - len(self._block) < self._ahead
            self._ahead = min(2 * self._ahead, BLOCK) if follows else _LEAST_AHEAD
            block = bytearray()
            self.read_range(offset, min(offset + max(self._ahead, len(into)), self.size), block.extend, never)
            self._block, self._start, within = bytes(block), offset, 0
        part = self._block[within : within + len(into)]
        into[: len(part)] = part
        return len(part)

    def check_unchanged(self) -> None:
        """Compare the state of the file now; see `OpenFile.check_unchanged`."""
        self.compare(self._store.stat(self._path))

    def compare(self, now: FileInfo) -> None:
        """Raise a VerificationError unless the file is as it was opened."""
        if now.state != self._info.state or now.version != self._info.version:
            raise self.changed(now.state, self._info.state)

    def form(self) -> FileForm:
        """Return the time of the file, and permissions for its owner alone."""
        return FileForm(self.mode, self._info.mtime_ns)

    def changed(self, now: FileState, then: FileState) -> VerificationError:
        """Return the error of a file that is another than it was."""
        return VerificationError(
            f"{self.name} is not what the plan saw (now {now.bytes} bytes, modified {now.mtime_ns} ns; "
            f"then {then.bytes} bytes, modified {then.mtime_ns} ns): plan again"
        )
