"""Files that are complete under their final name, or not there at all: how everything is committed, and why.

This order survives a crash at any moment, of the process or of the machine:

1. Write a temporary file in the target's directory, because a rename is atomic within one file system only. Its name is
   hidden: neither MindSpore nor a scan takes it for a slice. A lock that dies with its process keeps two writers from
   one target, and distinguishes leftovers from work in progress.
2. Reserve its size at once, so that a full disk is known before the first byte, and compare the bytes that were written
   with those that should have been.
3. fsync it. A file system may make a new name durable before the bytes: a crash would leave an empty file otherwise.
4. Rename it over the target, which has its old bytes until then and the new ones from then on.
5. fsync the directory, which makes the name durable. Targets of one directory may wait for one sync of it, see
   `DirectorySyncs`; nothing is said to be done before.
6. What tells others that something is there comes last, by the same steps: the manifest after its slice, a list after
   the slices of its ranks, the tracker after the documents, the index of a backup after its objects. Whoever sees the
   marker sees all that it names; without it nothing of it counts, and the next run goes on. For a slice that training
   saves the marker is its own name: state and manifest come before.

Stores behind a URL promise the same by their own means, see `ms_recover.stores.store.NewFile`.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from contextlib import suppress
from dataclasses import dataclass

from ms_recover.errors import StorageError
from ms_recover.file_names import TEMPORARY_SUFFIX, temporary_name
from ms_recover.stores.directories import DirectorySyncs, sync_directory
from ms_recover.stores.local import READ
from ms_recover.stores.system import drop_cached
from ms_recover.system_errors import explained

_OPEN = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)


@dataclass(frozen=True, slots=True)
class FileForm:
    """Permissions, modification time in nanoseconds, and user and group; None for those of the directory."""

    mode: int
    mtime_ns: int
    owner: tuple[int, int] | None = None


class AtomicFile:
    """A file that gets its final name when it is complete, and otherwise leaves nothing; a context manager.

    Parameters
    ----------
    target : str
        Final name, absolute.

    Attributes
    ----------
    descriptor : int
        Open for reading and writing, empty at first.
    path : str
        Temporary name; the leftover of a killed process there is taken over.

    Raises
    ------
    StorageError
        On entering, when another process writes the same target, or the directory cannot be written.
    MissingInputError
        On entering, when the directory is gone.
    """

    def __init__(self, target: str) -> None:
        self.target, self.path, self.descriptor = target, temporary_path(target), -1

    def __enter__(self) -> AtomicFile:
        with explained("writing", self.path):
            self.descriptor = _open_locked(self.path, self.target)
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            if os.lstat(self.path).st_ino == os.fstat(self.descriptor).st_ino:
                os.unlink(self.path)
        os.close(self.descriptor)

    def write(self, data: bytes | memoryview) -> None:
        """Append bytes; an OSError when they cannot be written."""
        left = memoryview(data)
        while left:
            left = left[os.write(self.descriptor, left) :]

    def settle(self, form: FileForm) -> None:
        """Give the written file its mode, time and (for root) owner, make it durable, and drop its cached pages.

        An OSError when the file system or the device fails.
        """
        status = os.fstat(self.descriptor)
        if os.geteuid() == 0:
            os.fchown(self.descriptor, *(form.owner or _owner_of(os.path.dirname(self.path))))
        os.utime(self.descriptor, ns=(status.st_atime_ns, form.mtime_ns))
        os.fchmod(self.descriptor, form.mode & 0o7777)
        os.fsync(self.descriptor)
        drop_cached(self.descriptor)

    def commit(self, syncs: DirectorySyncs | None = None) -> None:
        """Give the durable file its final name, durably; a file of that name is replaced.

        `syncs` and errors are as for `sync_directory`.
        """
        os.rename(self.path, self.target)
        sync_directory(os.path.dirname(self.target), syncs)


def write_small(
    path: str | os.PathLike[str],
    data: bytes,
    *,
    mode: int = 0o644,
    owner_of: str | None = None,
    syncs: DirectorySyncs | None = None,
) -> None:
    """Write a small file, whole or not at all, and durably; one that is there is replaced.

    Written by root it gets the owner of the file or directory `owner_of`. `syncs` is as for `sync_directory`.

    Raises
    ------
    StorageError, MissingInputError
        When it cannot be written, or its directory is gone.
    """
    target = os.path.abspath(path)
    with AtomicFile(target) as file, explained("writing", target):
        file.write(data)
        if owner_of is not None and os.geteuid() == 0:
            os.fchown(file.descriptor, *_owner_of(owner_of))
        os.fchmod(file.descriptor, mode)
        os.fsync(file.descriptor)
        file.commit(syncs)


def temporary_path(target: str) -> str:
    """Return the temporary name of a target."""
    directory, name = os.path.split(target)
    return os.path.join(directory, temporary_name(name))


def leftovers(folder: str, ending: str = "") -> list[str]:
    """Return the temporary files in a directory of targets whose names have an ending; some may be in use."""
    ending += TEMPORARY_SUFFIX
    names = (name for name in os.listdir(folder) if name.startswith(".") and name[1:].endswith(ending))
    return [os.path.join(folder, name) for name in names]


def remove_unlocked(path: str) -> None:
    """Remove a temporary file unless a living process writes it; anything but a regular file stays."""
    try:
        descriptor = os.open(path, READ | os.O_NOFOLLOW)
    except FileNotFoundError:
        return
    try:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            _flock(descriptor)
            os.unlink(path)
    except BlockingIOError:
        pass
    finally:
        os.close(descriptor)


def _open_locked(path: str, target: str) -> int:
    while True:
        try:
            descriptor = os.open(path, _OPEN | os.O_RDWR | os.O_CREAT, 0o600)
            writable = True
        except PermissionError as denied:  # perhaps left behind with its final mode, which does not allow writing
            try:
                descriptor = os.open(path, _OPEN | os.O_RDONLY)
            except FileNotFoundError:
                raise denied from None
            writable = False
        try:
            opened = os.fstat(descriptor)
            if not stat.S_ISREG(opened.st_mode):
                raise StorageError(f"{path} is in the way of a temporary file and no regular file: move it away")
            _lock(descriptor, target)
            with suppress(FileNotFoundError):
                there = os.stat(path)
                ours = os.path.samestat(there, opened)
                if ours and writable:
                    if there.st_size:
                        os.ftruncate(descriptor, 0)
                    if stat.S_IMODE(there.st_mode) != 0o600:
                        os.fchmod(descriptor, 0o600)
                    return descriptor
                if ours:
                    os.unlink(path)
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # another process finished with it meanwhile: start again


def _lock(descriptor: int, target: str) -> None:
    try:
        _flock(descriptor)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            raise StorageError(
                f"another recovery is writing {target}: wait for it, then run the command again"
            ) from None
        if error.errno not in _NO_LOCKS:
            raise


def _flock(descriptor: int) -> None:
    """Lock a file at once; one that is not open for writing is only held against writers on NFS (flock(2))."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno != errno.EBADF:
            raise
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)


def _owner_of(path: str) -> tuple[int, int]:
    status = os.stat(path)
    return status.st_uid, status.st_gid
