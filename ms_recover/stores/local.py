"""Reading local files."""

from __future__ import annotations

import os

from ms_recover.errors import FormatError
from ms_recover.system_errors import explained

READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
"""Flags for opening a file of unknown kind: opening a pipe would wait for a writer otherwise."""


class StoppedError(Exception):
    """Reading or copying was asked to stop."""


def read_text(path: str, most: int = 1 << 30) -> str:
    """Read a small text file; a FormatError when it is longer than `most` bytes or not UTF-8.

    Errors of the operating system are those of `explained`.
    """
    with explained("reading", path), open(path, "rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise FormatError(f"{path} is longer than {most} bytes: it is not a text file of ms_recover")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise FormatError(f"{path} is not text") from None
