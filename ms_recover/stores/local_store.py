"""The store of a local tree."""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Callable, Sequence

from ms_recover.errors import FormatError, MissingInputError, MsRecoverError
from ms_recover.model.actions import FileState
from ms_recover.stores.atomic import AtomicFile, FileForm
from ms_recover.stores.digest import digest_bytes
from ms_recover.stores.directories import make_directory, sync_directory
from ms_recover.stores.local import NO_LINKS, READ, StoppedError
from ms_recover.stores.paths import check_path
from ms_recover.stores.store import Entry, EntryKind, FileInfo, NewFile, OpenFile, Stop, Store, changed_error
from ms_recover.stores.system import read_ahead
from ms_recover.stores.transfer import copy_bytes
from ms_recover.system_errors import explained, from_os_error

_CHUNK = 1 << 20
_HINT = "check the path and the device, then plan again"
_GONE = (errno.ENOENT, errno.ENOTDIR)


class LocalFile(OpenFile):
    """A file of this host, by its absolute path; threads may share it. Errors are as for `Store.open`."""

    def __init__(self, path: str, expected: FileState | None = None) -> None:
        try:
            self._descriptor = os.open(path, READ)
        except (OSError, ValueError) as error:
            raise _unreadable(error, path) from error
        try:
            status = os.fstat(self._descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise _no_file(path, status)
            self.name, self.path, self.size = path, path, status.st_size
            self._expected = FileState(status.st_size, status.st_mtime_ns) if expected is None else expected
            self._compare(status)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)

    def read(self, offset: int, into: memoryview) -> int:
        """Read some bytes; see `OpenFile.read`."""
        return self.read_parts(offset, [into])

    def read_parts(self, offset: int, parts: Sequence[memoryview]) -> int:
        """Read some bytes into several parts; see `OpenFile.read_parts`."""
        try:
            return os.preadv(self._descriptor, parts, offset)
        except OSError as error:
            raise from_os_error(error, "reading", self.name, _HINT) from error

    def read_at(self, offset: int, length: int) -> bytes:
        """Read `length` bytes; see `OpenFile.read_at`."""
        try:
            data = os.pread(self._descriptor, length, offset)
            while data and len(data) < length:  # network file systems may answer short before the end
                more = os.pread(self._descriptor, length - len(data), offset + len(data))
                if not more:
                    break
                data += more
        except OSError as error:
            raise from_os_error(error, "reading", self.name, _HINT) from error
        return data

    def read_range(self, start: int, end: int, take: Callable[[memoryview], None], stop: Stop) -> None:
        """Read a range of bytes; see `OpenFile.read_range`."""
        if end - start > _CHUNK:
            read_ahead(self._descriptor)
        buffer = memoryview(bytearray(min(_CHUNK, max(0, end - start))))
        while start < end and (count := self.read(start, buffer[: end - start])):
            if stop():
                raise StoppedError
            take(buffer[:count])
            start += count

    def check_unchanged(self) -> None:
        """Compare the state of the open file; see `OpenFile.check_unchanged`."""
        try:
            status = os.fstat(self._descriptor)
        except OSError as error:
            raise from_os_error(error, "reading", self.name, _HINT) from error
        self._compare(status)

    def _compare(self, now: os.stat_result) -> None:
        then = self._expected
        if now.st_size != then.bytes or now.st_mtime_ns != then.mtime_ns:
            raise changed_error(self.name, FileState(now.st_size, now.st_mtime_ns), then)

    def form(self) -> FileForm:
        """Return the form of the open file."""
        with explained("reading", self.name, _HINT):
            status = os.fstat(self._descriptor)
        return FileForm(stat.S_IMODE(status.st_mode), status.st_mtime_ns, (status.st_uid, status.st_gid))

    def digest(self, stop: Stop) -> str:
        """Read the whole file; see `OpenFile.digest`."""
        with explained("reading", self.name, _HINT):
            return digest_bytes(self._descriptor, stop)

    def copy_to(self, descriptor: int, stop: Stop, progress: Callable[[int], None]) -> tuple[int, str]:
        """Copy as fast as the device allows; see `OpenFile.copy_to`."""
        return copy_bytes(self._descriptor, descriptor, stop, progress)


class LocalNewFile(NewFile):
    """A file of a local tree that is written; folders that are missing are made."""

    def __init__(self, root: str, path: str) -> None:
        self._root = root
        self._file = AtomicFile(os.path.join(root, path))

    def __enter__(self) -> LocalNewFile:
        folder = os.path.dirname(self._file.target)
        with explained("making the directory of", self._file.target):
            make_directory(folder, self._root, self._root)
        self._file.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._file.__exit__()

    def write(self, data: bytes | memoryview) -> None:
        """Append bytes; see `NewFile.write`."""
        with explained("writing", self._file.target):
            self._file.write(data)

    def commit(self, form: FileForm | None = None) -> None:
        """Make the file durable and give it its name; see `NewFile.commit`."""
        with explained("writing", self._file.target):
            self._file.settle(form or FileForm(0o644, time.time_ns()))
            self._file.commit()


class LocalStore(Store):
    """A tree of this host, by its absolute path."""

    near = True

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self._ahead = os.path.join(root, "")

    def path(self, path: str) -> str:
        """Return the absolute path of a path in the tree; a UsageError when it leads out of it."""
        return self._ahead + path if check_path(path) else self.url

    def list(self, folder: str) -> list[Entry]:
        """List a folder, through links."""
        path = self.path(folder)
        try:
            with os.scandir(path) as entries:
                found = [Entry(entry.name, _kind(entry)) for entry in entries]
        except OSError as error:
            raise _unreadable(error, path, "folder") from error
        found.sort()  # by name: no two are equal
        return found

    def stat(self, path: str) -> FileInfo:
        """Return the state of a file."""
        full = self.path(path)
        try:
            status = os.stat(full)
        except OSError as error:
            raise _unreadable(error, full) from error
        if not stat.S_ISREG(status.st_mode):
            raise _no_file(full, status)
        return _info(status)

    def folder_inode(self, folder: str) -> tuple[int, int] | None:
        """Return device and inode of a folder."""
        path = self.path(folder)
        try:
            status = os.stat(path)
        except OSError as error:
            raise _unreadable(error, path, "folder") from error
        if not stat.S_ISDIR(status.st_mode):
            raise MissingInputError(f"{path} is not a directory")
        return status.st_dev, status.st_ino

    def open(self, path: str, expected: FileState | None = None) -> LocalFile:
        """Open a file."""
        return LocalFile(self.path(path), expected)

    def create(self, path: str) -> LocalNewFile:
        """Return a file to write; it is hidden until it is whole."""
        return LocalNewFile(self.url, check_path(path))

    def remove(self, path: str) -> None:
        """Remove a file."""
        full = self.path(path)
        try:
            os.unlink(full)
        except FileNotFoundError:
            return
        except OSError as error:
            raise from_os_error(error, "removing", full) from error

    def link(self, path: str, to: str) -> None:
        """Link a file, or copy it where the file system does not link it; `sync` makes the name durable."""
        full = self.path(path)
        try:
            os.link(full, self.path(to), follow_symlinks=False)
        except OSError as error:
            if error.errno not in NO_LINKS:
                raise from_os_error(error, "linking", full) from error
            super().link(path, to)

    def rename(self, path: str, to: str) -> None:
        """Rename a file; `sync` makes it durable."""
        full = self.path(path)
        with explained("renaming", full):
            os.rename(full, self.path(to))

    def sync(self, folder: str) -> None:
        """Sync a directory."""
        full = self.path(folder)
        with explained("syncing", full):
            sync_directory(full)


def _kind(entry: os.DirEntry[str]) -> EntryKind:
    if entry.is_file(follow_symlinks=False):
        return "file"
    if entry.is_dir(follow_symlinks=False):
        return "folder"
    return "link" if entry.is_symlink() else "other"


def _info(status: os.stat_result) -> FileInfo:
    return FileInfo(size=status.st_size, mtime_ns=status.st_mtime_ns, inode=(status.st_dev, status.st_ino))


def _no_file(path: str, status: os.stat_result) -> FormatError:
    kind = "a directory" if stat.S_ISDIR(status.st_mode) else "no regular file"
    return FormatError(f"{path}: this is {kind}; name the file itself")


def _unreadable(error: OSError | ValueError, path: str, what: str = "file") -> MsRecoverError:
    if not isinstance(error, OSError):
        return MissingInputError(f"{path!r}: not a path, {error}")
    if error.errno in _GONE:
        return MissingInputError(f"{path}: no such {what}; check the path")
    return from_os_error(error, "reading", path, _HINT)
