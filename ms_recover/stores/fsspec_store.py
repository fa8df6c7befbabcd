"""The files below a URL that fsspec knows: ``memory://``, ``webdav://``, ``gs://``, ``abfs://``, what is installed.

``s3://`` and ``sftp://`` have stores of their own, `s3_store` and `sftp_store`: they pin versions, commit, and check
the keys of hosts, none of which fsspec's interface can ask for.
"""

from __future__ import annotations

import hashlib
import posixpath
import secrets
import tempfile
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from datetime import datetime, timezone
from queue import SimpleQueue
from typing import IO, Any

import fsspec

from ms_recover.errors import FormatError, MissingInputError, MsRecoverError, StorageError, UsageError
from ms_recover.file_names import temporary_name
from ms_recover.model.actions import FileState
from ms_recover.stores.atomic import FileForm
from ms_recover.stores.leftovers import remove_leftovers
from ms_recover.stores.network_store import NetworkStore, without_secrets
from ms_recover.stores.paths import check_path, is_name, join
from ms_recover.stores.ranged_file import RangedFile
from ms_recover.stores.store import Entry, EntryKind, FileInfo, NewFile
from ms_recover.stores.url_parts import UrlParts
from ms_recover.stores.webdav import WEBDAV, webdav_system
from ms_recover.system_errors import explained

THREADS = 8
"""Calls of one store at a time."""

_TIMES = ("mtime", "LastModified", "last_modified", "updated", "modified", "created")
_VERSIONS = ("ETag", "etag", "generation", "md5Hash", "content_md5", "contentHash", "checksum", "version")
_KINDS: Mapping[str, EntryKind] = {"file": "file", "directory": "folder", "link": "link"}

WHOLE = ("gs", "gcs", "abfs", "abfss", "az", "adl", "oss", "oci", "obs", "tos", "cos")
"""Schemes of object stores: what is sent gets its name when it has arrived whole, and nothing else is needed."""
_SECONDS_A_MIB = 1.0


class FsspecStore(NetworkStore):
    """The files below a URL, by fsspec's own interface.

    A file is pinned by size, time and version as far as the file system has them, compared again behind each range.
    """

    def __init__(self, url: str) -> None:
        parts = UrlParts.of(url)
        super().__init__(parts.shown)
        self.scheme = parts.scheme
        options: dict[str, Any] = {"use_listings_cache": False, "skip_instance_cache": True}
        try:
            if parts.scheme in WEBDAV:
                self.fs, path = webdav_system(parts), parts.path
            else:
                self.fs, path = fsspec.url_to_fs(parts.given, **options)
        except (ValueError, TypeError) as error:
            raise UsageError(f"{self.url}: {without_secrets(str(error))}; docs/stores.md has the schemes") from None
        self._root = path.rstrip("/")
        self._calls: SimpleQueue[tuple[Future[Any], Callable[..., Any], tuple[Any, ...]] | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []

    def close(self) -> None:
        """End the threads that wait for calls, and close connections."""
        for _ in self._threads:
            self._calls.put(None)
        self._threads.clear()
        if self.scheme in WEBDAV:
            self.fs.client.http.close()

    def at(self, path: str) -> str:
        """Return a path as fsspec names it."""
        if self.scheme in WEBDAV and not set("#?%").isdisjoint(path):
            raise UsageError(f"{self.url}: {path!r} has one of # ? %, which WebDAV clients do not name alike")
        return f"{self._root}/{check_path(path)}" if path else self._root or str(self.fs.root_marker)

    def begin(self, call: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Begin a call in one of a few threads, which do not keep the process when a call never returns."""
        future: Future[Any] = Future()
        if len(self._threads) < THREADS:
            thread = threading.Thread(target=self._serve, name="recover-fsspec", daemon=True)
            self._threads.append(thread)
            thread.start()
        self._calls.put((future, call, arguments))
        return future

    def _serve(self) -> None:
        while (item := self._calls.get()) is not None:
            future, call, arguments = item
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(call(*arguments))
                except BaseException as error:
                    future.set_exception(error)

    def list(self, folder: str) -> list[Entry]:
        """List a folder, as the server has it now."""
        at = self.at(folder)

        def ask() -> list[dict[str, Any]]:
            self.fs.invalidate_cache()
            found: list[dict[str, Any]] = self.fs.ls(at, detail=True)
            return found

        entries = []
        for info in self.call("listing", folder, ask):
            name = str(info["name"]).rstrip("/")
            if name.strip("/") == at.strip("/"):
                if _KINDS.get(info.get("type", "")) == "file":
                    raise MissingInputError(f"listing {self.name(folder)}: it is a file; name the folder")
                continue
            entries.append(Entry(name=name.rpartition("/")[2], kind=_KINDS.get(info.get("type", ""), "other")))
        if len({entry.name for entry in entries}) < len(entries):
            raise StorageError(f"listing {self.name(folder)}: the list has a name twice; repeat the command")
        return sorted((entry for entry in entries if is_name(entry.name)), key=lambda entry: entry.name)

    def stat(self, path: str) -> FileInfo:
        """Return the state of a file, as the server has it now."""
        return self.info_of(path, self.call("reading", path, self.ask_info, path))

    def ask_info(self, path: str) -> dict[str, Any]:
        """Return what fsspec knows of a path."""
        self.fs.invalidate_cache()
        info: dict[str, Any] = self.fs.info(self.at(path))
        return info

    def info_of(self, path: str, info: Mapping[str, Any]) -> FileInfo:
        """Return the state that fsspec's words for a file state."""
        if info.get("type") != "file":
            raise FormatError(f"{self.name(path)} is no regular file: name the file itself")
        size = info.get("size")
        if not isinstance(size, int) or size < 0:
            raise StorageError(f"{self.name(path)}: the server names no size; it cannot be read safely")
        version = next((str(info[key]) for key in _VERSIONS if info.get(key)), None)
        moment = next((info[key] for key in _TIMES if info.get(key)), None)
        return FileInfo(size=size, mtime_ns=pinned_time(nanoseconds(moment), version), version=version)

    def open(self, path: str, expected: FileState | None = None) -> FsspecFile:
        """Open a file for reading in ranges."""
        return FsspecFile(self, path, self.stat(path), expected)

    def create(self, path: str) -> FsspecNewFile:
        """Return a file to write."""
        return FsspecNewFile(self, path)

    def remove(self, path: str) -> None:
        """Remove a file."""
        with suppress(MissingInputError):
            self.call("removing", path, self.fs.rm_file, self.at(path))


class FsspecFile(RangedFile):
    """A file that fsspec reads; its state is compared again behind each range."""

    _store: FsspecStore

    @property
    def fetch(self) -> Callable[[int, int], bytes]:
        """Read a range, whole."""
        return self._fetch

    def _fetch(self, start: int, end: int) -> bytes:
        data = bytes(self._store.fs.cat_file(self._store.at(self._path), start=start, end=end))
        if len(data) != end - start:
            self.compare(self._store.info_of(self._path, self._store.ask_info(self._path)))
            raise ConnectionError(f"{len(data)} bytes came instead of {end - start}")
        return data

    def check_read(self) -> None:
        """Compare the state of the file again."""
        self.check_unchanged()


def nanoseconds(moment: object) -> int:
    """Return a time that fsspec names, in nanoseconds; 0 for none."""
    if isinstance(moment, str):
        try:
            moment = datetime.fromisoformat(moment.replace("Z", "+00:00"))
        except ValueError:
            return 0
    if isinstance(moment, datetime):
        moment = moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)
        since = moment - datetime(1970, 1, 1, tzinfo=timezone.utc)
        return (since.days * 86_400 + since.seconds) * 10**9 + since.microseconds * 1000
    return int(moment * 1_000_000) * 1000 if isinstance(moment, (int, float)) else 0


def pinned_time(mtime_ns: int, version: str | None) -> int:
    """Return a time whose part below a second, where the store has a version, changes with it.

    Stores with versions have times of whole seconds, and a plan names a file by size and time: two versions of one
    second would be one file otherwise.
    """
    if version is None:
        return mtime_ns
    number = int.from_bytes(hashlib.blake2b(version.encode(), digest_size=8).digest(), "big")
    return mtime_ns // 10**9 * 10**9 + number % 10**9


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
