"""Slices that another node serves, read range by range."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from ms_recover.errors import MissingInputError, VerificationError
from ms_recover.execution.slice_source import OpenSlice, SliceSource, Stop, never
from ms_recover.model.actions import FileState
from ms_recover.model.inventory import Inventory, SliceFile
from ms_recover.model.manifest import Manifest
from ms_recover.remote.messages import SliceRequest
from ms_recover.remote.peer import Peer
from ms_recover.stores.atomic import FileForm

if TYPE_CHECKING:
    from ms_recover.remote.client import Peers

_LEAST_AHEAD = 64 << 10
_MOST_AHEAD = 4 << 20


class RemoteSource(SliceSource):
    """The slices that the inventory of one server lists."""

    def __init__(self, peer: Peer, inventory: Inventory, peers: Peers) -> None:
        self.host = peer.name
        self._peer, self._peers = peer, peers
        self._files = {file.path: file for file in inventory.slices}

    def list_paths(self) -> list[str]:
        """Return the paths of the served slices."""
        return sorted(self._files)

    def stat(self, path: str) -> FileState:
        """Return the state that the server named, once it confirms it."""
        file = self._file(path)
        state = FileState(file.size, file.mtime_ns)
        self.open(path, state).check_unchanged()
        return state

    def open(self, path: str, expected: FileState) -> RemoteSlice:
        """Open a slice; the server compares its state at each request."""
        return RemoteSlice(self._peer, self._peers, self._file(path), expected)

    def manifest(self, path: str) -> Manifest | None:
        """Return the manifest that came with the inventory."""
        return self._file(path).manifest

    def _file(self, path: str) -> SliceFile:
        if path not in self._files:
            raise MissingInputError(f"{self.host} serves no slice {path}: plan again")
        return self._files[path]


class RemoteSlice(OpenSlice):
    """A slice of another node, `file` as its server listed it; consecutive reads are requested ahead."""

    near = False

    def __init__(self, peer: Peer, peers: Peers, file: SliceFile, expected: FileState) -> None:
        super().__init__(f"{peer.name}/{file.path}", expected.bytes)
        self._peer, self._peers, self._file, self._expected = peer, peers, file, expected
        self._mode: int | None = None
        self._block, self._start, self._ahead = b"", 0, _LEAST_AHEAD

    def read_range(self, start: int, end: int, take: Callable[[memoryview], None], stop: Stop) -> None:
        """Ask for a range of bytes; see `OpenSlice.read_range`."""
        request = SliceRequest(self._file.path, self._expected, start, end)
        self._mode = self._peers.wait(lambda: self._peer.fetch(request, take), stop)

    def read(self, offset: int, into: memoryview) -> int:
        """Read from the block at hand, or ask for the next one; see `OpenSlice.read`."""
        within = offset - self._start
        if not 0 <= within < len(self._block):
            follows = 0 <= within - len(self._block) < self._ahead
            self._ahead = min(2 * self._ahead, _MOST_AHEAD) if follows else _LEAST_AHEAD
            block = bytearray()
            self.read_range(offset, min(offset + max(self._ahead, len(into)), self.size), block.extend, never)
            self._block, self._start, within = bytes(block), offset, 0
        part = self._block[within : within + len(into)]
        into[: len(part)] = part
        return len(part)

    def check_unchanged(self) -> None:
        """Let the server compare; see `OpenSlice.check_unchanged`."""
        self.read_range(self.size, self.size, lambda data: None, never)

    def form(self) -> FileForm:
        """Return the permissions that the server names, for the owner of the directory here."""
        if self._mode is None:
            self.check_unchanged()
        assert self._mode is not None
        return FileForm(self._mode, self._expected.mtime_ns)

    def digest(self, stop: Stop) -> str:
        """Let the server read the slice; see `OpenSlice.digest`."""
        file = replace(self._file, size=self._expected.bytes, mtime_ns=self._expected.mtime_ns)
        contents = self._peers.wait(lambda: self._peer.digests([file], None), stop)
        if file.path not in contents.digests:
            raise VerificationError(f"{self.name} cannot be read: {contents.problems.get(file.path)}")
        return contents.digests[file.path].file
