"""Whether something new may be written in a place, and could be, found out without writing it."""

from __future__ import annotations

import errno
import os

from ms_recover.errors import UsageError
from ms_recover.file_names import temporary_name
from ms_recover.stores.places import look_at_folder
from ms_recover.stores.urls import place_of
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
    folder, disk = look_at_folder(os.path.dirname(path))
    made = os.path.relpath(folder.real, folder.base).split("/")
    with explained("writing", path):
        if folder.fault is not None:
            raise _error(errno.ENOTDIR)
        if not folder.writable:
            raise _error(errno.EROFS if folder.read_only else errno.EACCES)
        if max(map(len, map(os.fsencode, [temporary_name(os.path.basename(path)), *made]))) > disk.longest_name:
            raise _error(errno.ENAMETOOLONG)
        if disk.free is not None and size > disk.free:
            raise _error(errno.ENOSPC)


def free_bytes(folder: str) -> int | None:
    """Return the bytes that are free where a folder lies, or would be made; None where the file system does not say."""
    return look_at_folder(folder)[1].free


def _error(number: int) -> OSError:
    return OSError(number, os.strerror(number))


def refuse_inside(root: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
    """Raise a UsageError when a target, a path or URL, is a tree or lies in it, where scans would find it."""
    inside, folder = place_of(root), place_of(target)
    if folder == inside or folder.startswith(f"{inside.rstrip('/')}/"):
        raise UsageError(f"{folder} lies in {inside}, where scans would find it: name a folder outside")
