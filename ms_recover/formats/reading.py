"""Reading bytes of a local file, with errors that name it."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ms_recover.errors import FormatError, MissingInputError, MsRecoverError
from ms_recover.system_errors import from_os_error

ReadAt = Callable[[int, int], bytes]
"""``read_at(offset, length)``: up to ``length`` bytes from ``offset``; fewer only where the file ends."""

MAX_SMALL_FILE = 16 << 20
"""Largest ``group_info.pb`` or strategy file that is read, in bytes.

Enough for groups of millions of ranks, or the layouts of 100,000 parameters.
"""

_HINT = "check the permissions and the device"
_MISSING = (FileNotFoundError, NotADirectoryError)


@contextmanager
def open_regular(path: str | os.PathLike[str], what: str) -> Iterator[tuple[int, int]]:
    """Open a regular file, `what` in messages; gives its descriptor and its size in bytes.

    Any ``OSError`` of the body is reported as a failure to read this file.

    Raises
    ------
    MissingInputError
        When nothing has that name.
    FormatError
        When it is a directory, a pipe, a device.
    PermissionDeniedError
        When this user may not open it.
    StorageError
        When opening or reading it fails otherwise.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe would wait for a writer
    except _MISSING:
        raise MissingInputError(f"{os.fspath(path)}: no such file; {what} was expected there, check the path") from None
    except ValueError:
        raise MissingInputError(f"{os.fspath(path)!r}: not a path, it holds a null character") from None
    except OSError as error:
        raise from_os_error(error, f"reading {what}", path, _HINT) from error
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            kind = "a directory" if stat.S_ISDIR(status.st_mode) else "no regular file"
            raise FormatError(f"{os.fspath(path)}: this is {kind}, {what} was expected; name the file itself")
        yield descriptor, status.st_size
    except MsRecoverError:
        raise
    except OSError as error:
        raise from_os_error(error, f"reading {what}", path, _HINT) from error
    finally:
        os.close(descriptor)


def pread(descriptor: int) -> ReadAt:
    """Return a `ReadAt` over an open file."""

    def read_at(offset: int, length: int) -> bytes:
        data = os.pread(descriptor, length, offset)
        while data and len(data) < length:  # network file systems may answer short before the end
            more = os.pread(descriptor, length - len(data), offset + len(data))
            if not more:
                break
            data += more
        return data

    return read_at


def read_small(path: str | os.PathLike[str], what: str, limit: int = MAX_SMALL_FILE) -> bytes:
    """Return the bytes of a file, `what` in messages.

    Raises
    ------
    FormatError
        When it is no regular file, or larger than `limit` bytes.
    MissingInputError, StorageError
        As `open_regular`.
    """
    with open_regular(path, what) as (descriptor, size):
        if size > limit:
            raise FormatError(
                f"{os.fspath(path)}: {size} bytes, and {what} never has more than {limit}; check the path"
            )
        return pread(descriptor)(0, size)
