"""Reading local files."""

from __future__ import annotations

import errno
import os

from ms_recover.errors import FormatError
from ms_recover.system_errors import explained

READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
"""Flags for opening a file of unknown kind: opening a pipe would wait for a writer otherwise."""

NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EXDEV, errno.EMLINK)
"""Where a hard link cannot be made though a copy may be."""

_MOST_TEXT = 1 << 30


class StoppedError(Exception):
    """Reading or copying was asked to stop."""


def read_text(path: str) -> str:
    """Read a small text file; a FormatError when it is longer than 1 GiB or not UTF-8.

    Errors of the operating system are those of `explained`.
    """
    with explained("reading", path), open(path, "rb") as file:
        data = file.read(_MOST_TEXT + 1)
    if len(data) > _MOST_TEXT:
        raise FormatError(f"{path} is longer than {_MOST_TEXT} bytes: it is not a text file of ms_recover")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise FormatError(f"{path} is not text") from None
