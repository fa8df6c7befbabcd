"""Read a file from its device past the page cache.

A cached page proves nothing about the device, and filling the cache only to digest costs more than the reading itself.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from collections.abc import Iterator
from functools import cache

BLOCK = 4 << 20
"""Bytes read at a time; enough to keep a device busy, and two huge pages."""

_HUGE_PAGE = 2 << 20
_HUGE_PAGES_SETTING = "/sys/kernel/mm/transparent_hugepage/enabled"


def read_direct(descriptor: int) -> Iterator[memoryview]:
    """Read from the start of a file as far as direct reads go; what is not yielded has to be read another way.

    That is all of it where the file system (tmpfs, some network file systems) or the process cannot.

    Parameters
    ----------
    descriptor : int
        Open for reading; its position and its flags stay.

    Yields
    ------
    memoryview
        At most `BLOCK` bytes; the memory is used again for the next piece.

    Raises
    ------
    OSError
        When the device cannot be read.
    """
    if not huge_pages():
        return
    try:  # a file description of our own: the flag would concern everyone who has this one open
        direct = os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC)
    except OSError:
        return
    try:
        buffer = aligned_buffer(BLOCK)
        count, offset = BLOCK, 0
        while count == BLOCK:  # after a shorter read, usually at the end, the offset is not aligned any more
            try:
                count = os.preadv(direct, [buffer], offset)
            except OSError as error:
                if error.errno in (errno.EINVAL, errno.EOPNOTSUPP):
                    return
                raise
            if count:
                yield buffer[:count]
            offset += count
    finally:
        os.close(direct)


def aligned_buffer(size: int) -> memoryview:
    """Return memory that starts at a huge page, in huge pages where the kernel has some.

    Parameters
    ----------
    size : int
        Bytes.
    """
    memory = mmap.mmap(-1, size + _HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    start = -ctypes.addressof(ctypes.c_char.from_buffer(memory)) % _HUGE_PAGE
    return memoryview(memory)[start : start + size]


@cache
def huge_pages() -> bool:
    """Whether the kernel gives huge pages on request.

    In small pages a direct read goes to the device in 4 KiB pieces, which can take longer than reading ahead.
    """
    try:
        with open(_HUGE_PAGES_SETTING, "rb") as file:
            return b"[never]" not in file.read()
    except OSError:
        return False
