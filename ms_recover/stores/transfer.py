"""Copy and digest the bytes of a slice, as fast as the device allows; the figures are in ``benchmarks/copy.md``.

Blocks are shared where the file system can. Otherwise they are reserved at once, digested while they are copied, and
written to the device without waiting for the final fsync. A large file goes through the cache, and the written pages
are dropped every few MiB: the kernel uses the same few pages again, which is faster than fresh ones. Several smaller
files are copied at a time; they go past the cache, which takes half the processor time. Either way a recovery of many
GiB evicts nothing that other processes have cached.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import nullcontext

import xxhash

from ms_recover.stores.digest import name_digest
from ms_recover.stores.direct import BLOCK, LARGE, DirectWriting, aligned_buffer, opened_direct
from ms_recover.stores.reading import WINDOW, read_through
from ms_recover.stores.system import allocate, clone, drop_cached, finish_writing, start_writing

WINDOWS_IN_FLIGHT = 4
"""Windows on their way to the device before the copy waits for the oldest."""


def copy_bytes(source: int, target: int, stop: Callable[[], bool], progress: Callable[[int], None]) -> tuple[int, str]:
    """Copy a file into an empty one, and return the number of bytes and their digest; the caller syncs.

    `progress` is given the bytes copied since the last call. An OSError says that reading or writing fails, a
    StoppedError that `stop` returned True.
    """
    size = os.fstat(source).st_size
    if clone(source, target):
        return _pass_on(read_through(source, stop), None, progress)
    allocate(target, size)
    with opened_direct(target, os.O_WRONLY) if size < LARGE else nullcontext() as direct:
        writing = Writing(target) if direct is None else DirectWriting(target, direct)
        buffer = None if direct is None else aligned_buffer(BLOCK)
        pieces = read_through(source, stop, buffer=buffer)
        total, digest = _pass_on(pieces, writing.write, progress)
    if total < size:
        os.ftruncate(target, total)  # reserved for bytes that the source no longer has
    return total, digest


def _pass_on(
    pieces: Iterator[memoryview], write: Callable[[memoryview], None] | None, progress: Callable[[int], None]
) -> tuple[int, str]:
    digest = xxhash.xxh3_128()
    total = 0
    for piece in pieces:
        digest.update(piece)
        if write is not None:
            write(piece)
        total += len(piece)
        progress(len(piece))
    return total, name_digest(digest)


class Writing:
    """Write from the start of an open file, and keep the device busy meanwhile."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._written = 0
        self._started = 0
        self._finished = 0

    def write(self, data: memoryview) -> None:
        """Write the next bytes; an OSError when these or earlier ones cannot be written."""
        done = 0
        while done < len(data):
            done += os.write(self._descriptor, data[done:])
        self._written += done
        if self._written - self._started >= WINDOW:
            start_writing(self._descriptor, self._started, self._written - self._started)
            self._started = self._written
        while self._started - self._finished > WINDOW * WINDOWS_IN_FLIGHT:
            finish_writing(self._descriptor, self._finished, WINDOW)
            drop_cached(self._descriptor, self._finished, WINDOW)
            self._finished += WINDOW

    def rewind(self, offset: int) -> None:
        """Go back, to write once more from `offset` on."""
        os.lseek(self._descriptor, offset, os.SEEK_SET)
        self._written = offset
        self._started, self._finished = min(self._started, offset), min(self._finished, offset)
