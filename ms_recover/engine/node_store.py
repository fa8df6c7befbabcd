"""The tree of another node, read through one of its workers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ms_recover.engine.context import Ask
from ms_recover.engine.requests import MOST_BYTES, Reply, Request
from ms_recover.engine.workers import Node
from ms_recover.errors import MsRecoverError, StorageError
from ms_recover.model.actions import FileState
from ms_recover.stores.atomic import FileForm
from ms_recover.stores.distant_file import DistantFile
from ms_recover.stores.local import StoppedError
from ms_recover.stores.store import Entry, FileInfo, Stop, Store, never


class NodeStore(Store):
    """The tree of one node; every request carries the identity of the tree that it is about."""

    def __init__(self, node: Node, ask: Ask) -> None:
        super().__init__(f"node://{node.label}{node.root}")
        self.host = node.label
        self._node, self._ask = node, ask

    def list(self, folder: str) -> list[Entry]:
        """List a folder."""
        return list(self.ask(self._request(folder, kind="list"), never).entries)

    def stat(self, path: str) -> FileInfo:
        """Return the state of a file."""
        return _known(self.ask(self._request(path), never).info)

    def open(self, path: str, expected: FileState | None = None) -> NodeFile:
        """Open a file; its worker compares its state and its inode at each request."""
        return NodeFile(self, self._request(path, expected=expected))

    def _request(self, path: str, **fields: object) -> Request:
        values = {"kind": "read", "root": self._node.root, "identities": self._node.identities, "path": path, **fields}
        return Request(**values)  # type: ignore[arg-type]

    def ask(self, request: Request, stop: Stop) -> Reply:
        """Send a request; errors name the node.

        Raises
        ------
        MsRecoverError
            As the worker raises it, or StorageError when none of the node answers.
        StoppedError
            When `stop` returns True.
        """
        try:
            return self._ask(self._node, request, stop)
        except MsRecoverError as error:
            raise _named(error, self._node.label) from error


class NodeFile(DistantFile):
    """A file of another node."""

    def __init__(self, store: NodeStore, request: Request) -> None:
        first = store.ask(request, never)
        info = _known(first.info)
        super().__init__(f"{store.url}/{request.path}", info.size)
        self._store = store
        self._request = replace(request, expected=info.state, inode=info.inode)
        self._form = first.form

    def read_range(self, start: int, end: int, take: Callable[[memoryview], None], stop: Stop) -> None:
        """Request a range, block by block; see `OpenFile.read_range`."""
        while start < end:
            if stop():
                raise StoppedError
            data = self._store.ask(replace(self._request, start=start, end=min(end, start + MOST_BYTES)), stop).data
            if not data:
                return
            take(memoryview(data))
            start += len(data)

    def check_unchanged(self) -> None:
        """Let the worker compare; see `OpenFile.check_unchanged`."""
        self._form = self._store.ask(self._request, never).form

    def form(self) -> FileForm:
        """Return permissions and time, for the owner of the directory here."""
        if self._form is None:
            raise StorageError(f"{self.name}: its worker names no permissions: run this again")
        return self._form


def _known(info: FileInfo | None) -> FileInfo:
    if info is None:
        raise StorageError("a worker answers without the state of a file: run this again")
    return info


def _named(error: MsRecoverError, label: str) -> MsRecoverError:
    """Return an error of another node with its name ahead."""
    return type(error)(f"{label}: {error}")
