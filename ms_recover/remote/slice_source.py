"""Slices that another node serves, read range by range, and the manifests that came with its inventory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from ms_recover.errors import MissingInputError, VerificationError
from ms_recover.file_names import MANIFEST_SUFFIX
from ms_recover.formats.manifest import encode_manifest
from ms_recover.model.actions import FileState
from ms_recover.model.inventory import Inventory, SliceFile
from ms_recover.remote.messages import SliceRequest
from ms_recover.remote.peer import Peer
from ms_recover.stores.atomic import FileForm
from ms_recover.stores.paths import check_path
from ms_recover.stores.store import Entry, FileInfo, OpenFile, Stop, Store, never

if TYPE_CHECKING:
    from ms_recover.remote.client import Peers

_LEAST_AHEAD = 64 << 10
_MOST_AHEAD = 4 << 20


class RemoteSource(Store):
    """The slices that the inventory of one server lists."""

    def __init__(self, peer: Peer, inventory: Inventory, peers: Peers) -> None:
        super().__init__(peer.name)
        self.host = peer.name
        self._peer, self._peers = peer, peers
        self._files = {file.path: file for file in inventory.slices}

    def list(self, folder: str) -> list[Entry]:
        """List slices, manifests and the folders that hold them."""
        ahead = f"{check_path(folder)}/" if folder else ""
        paths = [*self._files, *(path + MANIFEST_SUFFIX for path, file in self._files.items() if file.manifest)]
        below = [path.removeprefix(ahead).partition("/") for path in paths if path.startswith(ahead)]
        if not below:
            raise MissingInputError(f"{self.host} serves nothing in {folder!r}: plan again")
        kinds = {name: bool(slash) for name, slash, _ in below}
        return [Entry(name=name, kind="folder" if kinds[name] else "file") for name in sorted(kinds)]

    def stat(self, path: str) -> FileInfo:
        """Return the state that the server named, once it confirms it."""
        with self.open(path) as opened:
            opened.check_unchanged()
            return FileInfo(size=opened.size, mtime_ns=opened.form().mtime_ns)

    def open(self, path: str, expected: FileState | None = None) -> OpenFile:
        """Open a slice, whose state the server compares at each request, or a manifest."""
        slice_path = check_path(path).removesuffix(MANIFEST_SUFFIX)
        file = self._file(slice_path)
        if slice_path == path:
            return RemoteSlice(self._peer, self._peers, file, expected or FileState(file.size, file.mtime_ns))
        if file.manifest is None:
            raise MissingInputError(f"{self.host} serves no manifest of {slice_path}")
        return _SentFile(f"{self.host}/{path}", encode_manifest(file.manifest), file.mtime_ns)

    def _file(self, path: str) -> SliceFile:
        if path not in self._files:
            raise MissingInputError(f"{self.host} serves no slice {path}: plan again")
        return self._files[path]


class _SentFile(OpenFile):
    """A small file that came with the inventory."""

    def __init__(self, name: str, data: bytes, mtime_ns: int) -> None:
        super().__init__(name, len(data))
        self._data, self._mtime_ns = data, mtime_ns

    def read_range(self, start: int, end: int, take: Callable[[memoryview], None], stop: Stop) -> None:
        """Give its bytes; see `OpenFile.read_range`."""
        take(memoryview(self._data)[start:end])

    def check_unchanged(self) -> None:
        """Do nothing: it cannot change."""

    def form(self) -> FileForm:
        """Return the time of its slice."""
        return FileForm(0o644, self._mtime_ns)


class RemoteSlice(OpenFile):
    """A slice of another node, `file` as its server listed it; consecutive reads are requested ahead."""

    near = False

    def __init__(self, peer: Peer, peers: Peers, file: SliceFile, expected: FileState) -> None:
        super().__init__(f"{peer.name}/{file.path}", expected.bytes)
        self._peer, self._peers, self._file, self._expected = peer, peers, file, expected
        self._mode: int | None = None
        self._block, self._start, self._ahead = b"", 0, _LEAST_AHEAD

    def read_range(self, start: int, end: int, take: Callable[[memoryview], None], stop: Stop) -> None:
        """Ask for a range of bytes; see `OpenFile.read_range`."""
        request = SliceRequest(self._file.path, self._expected, start, end)
        self._mode = self._peers.wait(lambda: self._peer.fetch(request, take), stop)

    def read(self, offset: int, into: memoryview) -> int:
        """Read from the block at hand, or ask for the next one; see `OpenFile.read`."""
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
        """Let the server compare; see `OpenFile.check_unchanged`."""
        self.read_range(self.size, self.size, lambda data: None, never)

    def form(self) -> FileForm:
        """Return the permissions that the server names, for the owner of the directory here."""
        if self._mode is None:
            self.check_unchanged()
        assert self._mode is not None
        return FileForm(self._mode, self._expected.mtime_ns)

    def digest(self, stop: Stop) -> str:
        """Let the server read the slice; see `OpenFile.digest`."""
        file = replace(self._file, size=self._expected.bytes, mtime_ns=self._expected.mtime_ns)
        contents = self._peers.wait(lambda: self._peer.digests([file], None), stop)
        if file.path not in contents.digests:
            raise VerificationError(f"{self.name} cannot be read: {contents.problems.get(file.path)}")
        return contents.digests[file.path].file
