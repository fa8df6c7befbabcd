"""The few Linux calls that Python's `os` lacks, and hints to the page cache; a missing call is passed over.

A correct copy needs none of them, so a file system that lacks one costs speed only. Errors that mean lost data or a
full disk are never passed over.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
from collections.abc import Callable
from contextlib import suppress
from functools import cache

FICLONE: int = getattr(fcntl, "FICLONE", 0x40049409)
"""``ioctl`` that shares the blocks of another file (``linux/fs.h``); in Python from 3.13."""

_SYNC_FILE_RANGE_WRITE = 2
_SYNC_FILE_RANGE_WRITE_AND_WAIT = 7
_MISSING_ERRNOS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL, errno.ESPIPE)
_FULL_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

_Call = Callable[..., int]


def clone(source: int, target: int) -> bool:
    """Let an empty file share all blocks of another.

    XFS, btrfs and others with reflinks can, within one file system. Writing to either file later leaves the other as
    it is. False when it does not work; the target is still empty then, and copying the bytes shows the cause.
    """
    try:
        fcntl.ioctl(target, FICLONE, source)
    except OSError:
        if os.fstat(target).st_size:
            os.ftruncate(target, 0)
        return False
    return True


def allocate(descriptor: int, size: int) -> None:
    """Reserve the blocks of a file that is about to be written, and set its size; an OSError when there is no room.

    A full disk is known before the first byte, and the file system need not find blocks piece by piece.
    ``posix_fallocate`` is of no use here: where the file system cannot reserve, glibc writes into every block instead.
    """
    function = _function("fallocate64") or _function("fallocate")
    if function is None or size <= 0:
        return
    if function(descriptor, 0, ctypes.c_int64(0), ctypes.c_int64(size)) and ctypes.get_errno() in _FULL_ERRNOS:
        raise _last_error()


def start_writing(descriptor: int, offset: int, length: int) -> None:
    """Start to write a range of a file to the device, without waiting; an OSError when the device refuses."""
    _sync_range(descriptor, offset, length, _SYNC_FILE_RANGE_WRITE)


def finish_writing(descriptor: int, offset: int, length: int) -> None:
    """Wait until a range of a file is on the device; its metadata and the device's own cache still need an fsync.

    An OSError means lost data. The kernel reports it only once, so that an fsync afterwards would succeed.
    """
    _sync_range(descriptor, offset, length, _SYNC_FILE_RANGE_WRITE_AND_WAIT)


def drop_cached(descriptor: int, offset: int = 0, length: int = 0) -> None:
    """Drop the cached pages of a range (length 0: up to the end) that are written already.

    The next read comes from the device. Pages that are not written yet stay.
    """
    with suppress(OSError):
        os.posix_fadvise(descriptor, offset, length, os.POSIX_FADV_DONTNEED)


def read_ahead(descriptor: int) -> None:
    """Let the kernel read further ahead: the file is about to be read from end to end."""
    with suppress(OSError):
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_SEQUENTIAL)


def _sync_range(descriptor: int, offset: int, length: int, flags: int) -> None:
    function = _function("sync_file_range")
    if function is None:
        return
    if function(descriptor, ctypes.c_int64(offset), ctypes.c_int64(length), ctypes.c_uint(flags)):
        error = _last_error()
        if error.errno not in _MISSING_ERRNOS:
            raise error


@cache
def _function(name: str) -> _Call | None:
    """Return a function of the C library, None where it has none of that name."""
    try:
        function = getattr(ctypes.CDLL(None, use_errno=True), name)
    except (AttributeError, OSError):
        return None
    return function  # type: ignore[no-any-return]


def _last_error() -> OSError:
    code = ctypes.get_errno()
    return OSError(code, os.strerror(code))
