"""Write a file through fsspec: collected in a local temporary file, sent whole, and named at the end."""

from __future__ import annotations

import posixpath
import secrets
import tempfile
from contextlib import suppress
from typing import IO, TYPE_CHECKING

from ms_recover.errors import MsRecoverError, StorageError
from ms_recover.file_names import temporary_name
from ms_recover.stores.atomic import FileForm
from ms_recover.stores.leftovers import remove_leftovers
from ms_recover.stores.paths import join
from ms_recover.stores.store import NewFile
from ms_recover.system_errors import explained

if TYPE_CHECKING:
    from ms_recover.stores.fsspec_store import FsspecStore

WHOLE = ("gs", "gcs", "abfs", "abfss", "az", "adl", "oss", "oci", "obs", "tos", "cos")
"""Schemes of object stores: what is sent gets its name when it has arrived whole, and nothing else is needed."""

_SECONDS_A_MIB = 1.0


class FsspecNewFile(NewFile):
    """A file that is sent at its commit.

    Object stores show it when it is whole. Memory gets it in one assignment. Elsewhere it is sent under a temporary
    name and moved, which is as atomic as the server's move.
    """

    def __init__(self, store: FsspecStore, path: str) -> None:
        self._store, self._path, self._size = store, path, 0
        self._file: IO[bytes] | None = None

    def __enter__(self) -> FsspecNewFile:
        with explained("writing", tempfile.gettempdir()):
            self._file = tempfile.NamedTemporaryFile(prefix="ms_recover.", suffix=".upload")
        return self

    def __exit__(self, *_: object) -> None:
        assert self._file is not None
        self._file.close()

    def write(self, data: bytes | memoryview) -> None:
        """Append bytes to the local file."""
        assert self._file is not None
        with explained("writing", self._file.name, "set TMPDIR to a folder with more room"):
            self._file.write(data)
        self._size += len(data)

    def commit(self, form: FileForm | None = None) -> None:
        """Send the file and give it its name; permissions and time are not kept."""
        assert self._file is not None
        with explained("writing", self._file.name, "set TMPDIR to a folder with more room"):
            self._file.flush()
        store, target = self._store, self._store.at(self._path)
        limit, store.time_limit = store.time_limit, store.time_limit + _SECONDS_A_MIB * self._size / (1 << 20)
        try:
            if store.scheme == "memory":
                self._file.seek(0)
                store.call("writing", self._path, store.fs.pipe_file, target, self._file.read())
            elif store.scheme in WHOLE:
                store.call("writing", self._path, store.fs.put_file, self._file.name, target)
            else:
                self._move_there(target)
        finally:
            store.time_limit = limit
        if (size := store.stat(self._path).size) != self._size:
            raise StorageError(f"{store.name(self._path)} has {size} bytes instead of {self._size}: write it again")

    def _move_there(self, target: str) -> None:
        assert self._file is not None
        store, (folder, name) = self._store, posixpath.split(target)
        temporary = posixpath.join(folder, temporary_name(f"{name}.{secrets.token_hex(4)}"))
        if folder.strip("/"):
            store.call("writing", self._path, lambda: store.fs.makedirs(folder, exist_ok=True))
        try:
            store.call("writing", self._path, store.fs.put_file, self._file.name, temporary)
            remove_leftovers(store, join(posixpath.dirname(self._path), posixpath.basename(temporary)))
            store.call("writing", self._path, self._move, temporary, target)
        except BaseException:
            with suppress(MsRecoverError):
                store.call("removing", self._path, store.fs.rm_file, temporary)
            raise

    def _move(self, temporary: str, target: str) -> None:
        fs = self._store.fs
        if not fs.exists(temporary) and fs.exists(target) and fs.info(target).get("size") == self._size:
            return  # moved, and the answer was lost
        if hasattr(getattr(fs, "client", None), "move"):  # WebDAV's own, which fsspec's interface does not use
            fs.client.move(temporary, target, overwrite=True)
        else:
            fs.mv(temporary, target)
