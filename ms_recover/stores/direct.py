"""Read and write a file past the page cache.

A cached page proves nothing about the device. Filling the cache only to digest or copy costs more than reading or
writing itself.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cache

BLOCK = 4 << 20
"""Bytes read or written at a time; enough to keep a device busy, and two huge pages."""

LARGE = 64 << 20
"""A file of this many bytes keeps the device busy alone; smaller ones are copied several at a time."""

ALIGNMENT = 4096
"""Direct reads and writes start and end at multiples of this; no block device in use asks for more."""

REFUSED = (errno.EINVAL, errno.EOPNOTSUPP)
_AHEAD = 2
_HUGE_PAGE = 2 << 20
_HUGE_PAGES_SETTING = "/sys/kernel/mm/transparent_hugepage/enabled"


@contextmanager
def opened_direct(descriptor: int, flags: int) -> Iterator[int | None]:
    """Open a file again for direct reads or writes; None where that is not possible or would be slow.

    It has its own position and flags: ``O_DIRECT`` would apply to every user of `descriptor`. `flags` are
    ``os.O_RDONLY`` or ``os.O_WRONLY``.
    """
    direct = None
    if huge_pages():
        try:
            direct = os.open(f"/proc/self/fd/{descriptor}", flags | os.O_DIRECT | os.O_CLOEXEC)
        except OSError:
            direct = None
    try:
        yield direct
    finally:
        if direct is not None:
            os.close(direct)


def read_direct(descriptor: int) -> Generator[memoryview, None, None]:
    """Yield a file from its start as far as direct reads go; the rest must be read through the cache.

    Some file systems (tmpfs, some network file systems) allow no direct reads: nothing is yielded then. A thread reads
    the next blocks of a large file meanwhile; it ends with the generator. Position and flags of `descriptor` stay. Each
    piece has at most `BLOCK` bytes, and its memory is used again for a later one. An OSError when the device fails.
    """
    with opened_direct(descriptor, os.O_RDONLY) as direct:
        if direct is None:
            return
        size = os.fstat(direct).st_size
        yield from _ahead(direct) if size >= LARGE else _one_by_one(direct, size)


def _one_by_one(direct: int, size: int) -> Iterator[memoryview]:
    buffer = aligned_buffer(min(BLOCK, -(-size // ALIGNMENT) * ALIGNMENT or ALIGNMENT))
    count, offset = len(buffer), 0
    while count == len(buffer):  # after a shorter read, usually at the end, the offset is not aligned any more
        count = _read(direct, buffer, offset)
        if count:
            yield buffer[:count]
        offset += count


def _ahead(direct: int) -> Iterator[memoryview]:
    memory = aligned_buffer((_AHEAD + 1) * BLOCK)
    buffers = [memory[i * BLOCK : (i + 1) * BLOCK] for i in range(_AHEAD + 1)]
    with ThreadPoolExecutor(1, thread_name_prefix="read-ahead") as reader:
        pending: deque[Future[int]] = deque(reader.submit(_read, direct, buffers[i], i * BLOCK) for i in range(_AHEAD))
        count, number = BLOCK, 0
        while count == BLOCK:
            count = pending.popleft().result()
            after = number + _AHEAD
            pending.append(reader.submit(_read, direct, buffers[after % len(buffers)], after * BLOCK))
            if count:
                yield buffers[number % len(buffers)][:count]
            number += 1


def _read(direct: int, buffer: memoryview, offset: int) -> int:
    """Read, or return 0 where direct reads are refused after all."""
    try:
        return os.preadv(direct, [buffer], offset)
    except OSError as error:
        if error.errno in REFUSED:
            return 0
        raise


class DirectWriting:
    """Write from the start of a file past the cache; a last partial block and refused writes go through the cache.

    `direct` is the same file from `opened_direct`.
    """

    def __init__(self, descriptor: int, direct: int) -> None:
        self._descriptor = descriptor
        self._direct: int | None = direct
        self._written = 0

    def write(self, data: memoryview) -> None:
        """Write the next bytes, fast from memory of `aligned_buffer`; an OSError when they cannot be written."""
        done = 0
        while done < len(data):
            done += self._write_some(data[done:])

    def _write_some(self, data: memoryview) -> int:
        whole = len(data) // ALIGNMENT * ALIGNMENT
        if self._direct is None or not whole or self._written % ALIGNMENT:
            descriptor = self._descriptor
        else:
            descriptor, data = self._direct, data[:whole]
        os.lseek(descriptor, self._written, os.SEEK_SET)
        try:
            count = os.write(descriptor, data)
        except OSError as error:
            if descriptor != self._direct or error.errno not in REFUSED:
                raise
            self._direct = None
            return 0
        self._written += count
        return count


def aligned_buffer(size: int, *, huge: bool = True) -> memoryview:
    """Return `size` bytes of memory that start at a huge page, if `huge` in huge pages where the kernel has some."""
    memory = mmap.mmap(-1, size + _HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if huge:
        with suppress(OSError):  # a kernel without them
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
