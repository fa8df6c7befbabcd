"""Whether a new file could be written, found out without writing it: for dry runs."""

from __future__ import annotations

import errno
import os

from ms_recover.file_names import temporary_name
from ms_recover.system_errors import explained


def check_writable(path: str, size: int = 0) -> None:
    """Raise the error by which writing a file of `size` bytes at an absolute path would end, as far as it can be seen.

    Directories that are missing would be made.

    Raises
    ------
    PermissionDeniedError
        When this user may not write there.
    StorageError
        When something else than a directory lies in the way, the name is too long, or there is no room.
    """
    folder = nearest(os.path.dirname(path))
    with explained("writing", path):
        if not os.path.isdir(folder):
            raise _error(errno.ENOTDIR)
        if not os.access(folder, os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids):
            raise _error(errno.EROFS if os.statvfs(folder).f_flag & os.ST_RDONLY else errno.EACCES)
        longest = max(map(len, map(os.fsencode, [temporary_name(os.path.basename(path)), *_missing(folder, path)])))
        if longest > os.pathconf(folder, "PC_NAME_MAX"):
            raise _error(errno.ENAMETOOLONG)
        if size > free_bytes(folder):
            raise _error(errno.ENOSPC)


def nearest(folder: str) -> str:
    """Return a folder, or the nearest one above that is there."""
    while not os.path.lexists(folder):
        folder = os.path.dirname(folder)
    return folder


def free_bytes(folder: str) -> int:
    """Return the bytes that are free on the file system of a folder, or the nearest one above that is there."""
    folder = nearest(folder)
    with explained("looking at", folder):
        status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize


def _missing(folder: str, path: str) -> list[str]:
    """Return the names of the directories between a folder and a path below it."""
    return os.path.relpath(os.path.dirname(path), folder).split("/")


def _error(number: int) -> OSError:
    return OSError(number, os.strerror(number))
