"""Remove large files without waiting for the file system to free their blocks."""

from __future__ import annotations

import os
from contextlib import suppress
from threading import Thread

from ms_recover.stores.local import READ

_LARGE = 1 << 20
"""Bytes from which freeing takes longer than starting a thread."""

_freeing: list[Thread] = []


def remove_large(path: str) -> None:
    """Remove the name of a file at once; a large one's blocks are freed in a thread, which closes the last descriptor.

    An OSError when the name cannot be removed.
    """
    try:
        descriptor = os.open(path, READ | os.O_NOFOLLOW)
    except OSError:  # unreadable, or no file: it is removed all the same
        os.unlink(path)
        return
    try:
        large = os.fstat(descriptor).st_size >= _LARGE
        os.unlink(path)
    except OSError:
        os.close(descriptor)
        raise
    if not large:
        os.close(descriptor)
        return
    thread = Thread(target=os.close, args=(descriptor,), name="free-blocks")
    try:
        thread.start()
    except RuntimeError:  # no thread is to be had
        os.close(descriptor)
    else:
        _freeing.append(thread)


def wait_until_freed() -> None:
    """Wait until the blocks of removed files are free for new ones."""
    for thread in tuple(_freeing):
        thread.join()
        with suppress(ValueError):  # somebody else has waited for it, too
            _freeing.remove(thread)
