"""Move and digest the bytes of a slice, as fast as the device allows; the figures are in ``benchmarks/copy.md``.

Blocks are shared where the file system can. Otherwise they are reserved at once, digested while they are copied, and
written to the device at once instead of all of them at the final fsync. A large file goes through the cache, and
every few MiB the written pages are dropped: the kernel hands the same few out again, which is faster than fresh ones.
Smaller ones, of which several are copied at a time, go past the cache, which takes half the processor time. Either way
a recovery of many GiB evicts nothing that other processes have cached.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, nullcontext

import xxhash

from ms_recover.storage.direct import BLOCK, LARGE, DirectWriting, aligned_buffer, opened_direct, read_direct
from ms_recover.storage.local import CHUNK, DIGEST, StoppedError
from ms_recover.storage.system import allocate, clone, drop_cached, finish_writing, read_ahead, start_writing

WINDOW = 4 << 20
"""Bytes after which writing to the device is started, and pages that were read back are dropped."""

WINDOWS_IN_FLIGHT = 4
"""Windows on their way to the device before the copy waits for the oldest."""


def copy_bytes(
    source: int,
    target: int,
    stop: Callable[[], bool],
    progress: Callable[[int], None],
    also: Callable[[memoryview], None] | None = None,
) -> tuple[int, str]:
    """Copy a file into an empty one and digest on the way; the caller syncs.

    Parameters
    ----------
    source, target : int
        Descriptors.
    stop : callable
        True ends it.
    progress : callable
        Told the bytes copied since the last call.
    also : callable, optional
        Given every piece, in file order; the memory is used again afterwards.

    Returns
    -------
    (int, str)
        Bytes copied and their digest.

    Raises
    ------
    StoppedError
        When `stop` says so.
    OSError
        When reading or writing fails.
    """
    size = os.fstat(source).st_size
    if clone(source, target):
        return _pass_on(read_through(source, stop), [also] if also else [], progress)
    allocate(target, size)
    with opened_direct(target, os.O_WRONLY) if size < LARGE else nullcontext() as direct:
        writing = Writing(target) if direct is None else DirectWriting(target, direct)
        buffer = None if direct is None else aligned_buffer(BLOCK)
        pieces = read_through(source, stop, buffer=buffer)
        total, digest = _pass_on(pieces, [also, writing.write] if also else [writing.write], progress)
    if total < size:
        os.ftruncate(target, total)  # reserved for bytes that the source no longer has
    return total, digest


def _pass_on(
    pieces: Iterator[memoryview], takers: Sequence[Callable[[memoryview], None]], progress: Callable[[int], None]
) -> tuple[int, str]:
    digest = xxhash.xxh3_128()
    total = 0
    for piece in pieces:
        digest.update(piece)
        for take in takers:
            take(piece)
        total += len(piece)
        progress(len(piece))
    return total, _name(digest)


class Writing:
    """Write from the start of a file, and keep the device busy meanwhile.

    Parameters
    ----------
    descriptor : int
        Open for writing, at its start.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._written = 0
        self._started = 0
        self._finished = 0

    def write(self, data: memoryview) -> None:
        """Write the next bytes.

        Raises
        ------
        OSError
            When they cannot be written, or those before could not.
        """
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


def digest_bytes(descriptor: int, stop: Callable[[], bool], *, from_device: bool = False) -> str:
    """Digest a file from its start.

    Parameters
    ----------
    descriptor : int
        Open for reading.
    stop : callable
        True ends it.
    from_device : bool
        See `read_through`.

    Raises
    ------
    StoppedError
        When `stop` says so.
    OSError
        When reading fails.
    """
    digest = xxhash.xxh3_128()
    for piece in read_through(descriptor, stop, from_device=from_device):
        digest.update(piece)
    return _name(digest)


def read_through(
    descriptor: int, stop: Callable[[], bool], *, from_device: bool = False, buffer: memoryview | None = None
) -> Iterator[memoryview]:
    """Read a file from its start to its end.

    Parameters
    ----------
    descriptor : int
        Open for reading; its position does not matter and stays.
    stop : callable
        True ends it.
    from_device : bool
        Read what the device holds, not what is cached. Pages that are not written yet stay in the cache: fsync before.
    buffer : memoryview, optional
        Where cached bytes are read into.

    Yields
    ------
    memoryview
        A few MiB at most; the memory is used again for the next piece.

    Raises
    ------
    StoppedError
        When `stop` says so.
    OSError
        When reading fails.
    """
    with closing(_from_device(descriptor) if from_device else _cached(descriptor, 0, buffer)) as pieces:
        for piece in pieces:
            if stop():
                raise StoppedError
            yield piece


def _from_device(descriptor: int) -> Generator[memoryview, None, None]:
    drop_cached(descriptor)  # a file system may serve direct reads from the cache
    offset = dropped = 0
    with closing(read_direct(descriptor)) as pieces:
        for piece in pieces:
            yield piece
            offset += len(piece)
    for piece in _cached(descriptor, offset):  # what could not be read directly: all of it, or nothing
        yield piece
        offset += len(piece)
        if offset - dropped >= WINDOW:
            drop_cached(descriptor, dropped, offset - dropped)
            dropped = offset
    drop_cached(descriptor, dropped)


def _cached(descriptor: int, offset: int, buffer: memoryview | None = None) -> Generator[memoryview, None, None]:
    read_ahead(descriptor)
    if buffer is None:
        buffer = memoryview(bytearray(CHUNK))
    while count := os.preadv(descriptor, [buffer], offset):
        yield buffer[:count]
        offset += count


def _name(digest: xxhash.xxh3_128) -> str:
    return f"{DIGEST}:{digest.hexdigest()}"
