"""One training at a time in a directory: a lock that a dead process does not hold.

It is ``flock`` on the directory itself, so that nothing is left behind; where a file system has that for files only, on
a hidden file in it. The lock belongs to this process: all its parts share it, and child processes do not keep it.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import time
from collections.abc import Callable
from contextlib import suppress
from threading import Lock

from ms_recover.errors import StorageError
from ms_recover.file_names import LOCK_NAME
from ms_recover.system_errors import explained

_log = logging.getLogger(__name__)

GRACE_SECONDS = 5.0
"""A training that was killed may take as long to end."""

_POLL_SECONDS = 0.1
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)
_FILES_ONLY = (errno.EBADF, errno.EINVAL, errno.EISDIR)
_held: dict[str, DirectoryLock] = {}


class DirectoryLock:
    """The lock of a directory, for as long as this process has users of it; see `lock_directory`."""

    def __init__(self, folder: str, descriptor: int) -> None:
        self.folder = folder
        self.writing = Lock()
        """Held by the part of this process that writes there: one at a time."""
        self._descriptor = descriptor
        self._users = 0

    def take(self) -> None:
        """Count one more user."""
        self._users += 1

    def release(self) -> None:
        """Count one user less, and give the lock back after the last one."""
        self._users -= 1
        if self._users > 0 or _held.get(self.folder) is not self:
            return
        del _held[self.folder]
        path = os.path.join(self.folder, LOCK_NAME)
        with suppress(OSError):
            if os.path.samestat(os.stat(path), os.fstat(self._descriptor)):
                os.unlink(path)
        self.close()

    def close(self) -> None:
        """Close the file; in a child process that leaves the lock with its parent."""
        os.close(self._descriptor)


def lock_directory(
    folder: str, grace: float | None = None, sleep: Callable[[float], None] = time.sleep
) -> DirectoryLock:
    """Lock a directory for this process, or share the lock that it has; every user releases it once.

    A training that is ending is waited for, `grace` seconds at most, by default GRACE_SECONDS. Where the file system
    has no locks, a warning says so and nothing is locked.

    Raises
    ------
    StorageError
        When another process has the lock, or the directory cannot be written.
    MissingInputError
        When the directory is gone.
    """
    folder = os.path.realpath(folder)
    lock = _held.get(folder)
    if lock is None:
        lock = _held[folder] = DirectoryLock(
            folder, _open_locked(folder, GRACE_SECONDS if grace is None else grace, sleep)
        )
    lock.take()
    return lock


def is_held(folder: str) -> bool:
    """Whether this process has the lock of a directory."""
    return os.path.realpath(folder) in _held


def _open_locked(folder: str, grace: float, sleep: Callable[[float], None]) -> int:
    tries, of_file = int(grace / _POLL_SECONDS), False
    path = os.path.join(folder, LOCK_NAME)
    while True:
        descriptor = _open_file(path) if of_file else _open_directory(folder)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not of_file or os.path.samestat(os.stat(path), os.fstat(descriptor)):
                return descriptor
        except FileNotFoundError:
            pass  # its holder has removed it meanwhile: make it again
        except OSError as error:
            if error.errno in _NO_LOCKS:
                _log.warning("%s: no locks on this file system: a second training there would not be noticed", folder)
                return descriptor
            if error.errno in _FILES_ONLY and not of_file:
                of_file = True
            elif error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                os.close(descriptor)
                raise StorageError(f"locking {folder}: {error.strerror}") from error
            elif tries <= 0:
                holder = _holder(os.fstat(descriptor))
                os.close(descriptor)
                raise StorageError(
                    f"another training saves to {folder}{holder}: stop it first, or save to another directory"
                ) from None
            else:
                tries -= 1
                sleep(_POLL_SECONDS)
        os.close(descriptor)


def _open_directory(folder: str) -> int:
    with explained("locking", folder):
        return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def _open_file(path: str) -> int:
    with explained("locking", path):
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def _holder(status: os.stat_result) -> str:
    """Return the process on this machine that has the lock of a file, in brackets; empty when that is not known."""
    place = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    try:
        with open("/proc/locks", encoding="ascii", errors="replace") as locks:
            rows = [line.split() for line in locks]
    except OSError:
        return ""
    return next((f" (process {row[4]})" for row in rows if row[1:2] == ["FLOCK"] and row[5:6] == [place]), "")


def _forget_in_child() -> None:
    for lock in _held.values():
        with suppress(OSError):
            lock.close()
    _held.clear()


os.register_at_fork(after_in_child=_forget_in_child)
