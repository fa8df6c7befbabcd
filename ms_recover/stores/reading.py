"""Read a file from its start to its end, cached or as the device holds it."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator
from contextlib import closing

from ms_recover.stores.direct import read_direct
from ms_recover.stores.local import StoppedError
from ms_recover.stores.system import drop_cached, read_ahead

CHUNK = 1 << 20
"""Bytes read and written at a time; 256 KiB to 1 MiB copies fastest."""

_SMALL = 4 << 10

WINDOW = 4 << 20
"""Bytes after which writing to the device is started, and pages that were read back are dropped."""


def read_through(
    descriptor: int, stop: Callable[[], bool], *, from_device: bool = False, buffer: memoryview | None = None
) -> Iterator[memoryview]:
    """Read a file from its start to its end; the position of the descriptor does not matter and stays.

    Parameters
    ----------
    from_device : bool
        Read from the device, not from the cache. Pages that are not written yet stay in the cache: fsync before.
    buffer : memoryview, optional
        Memory for cached bytes.

    Yields
    ------
    memoryview
        A few MiB at most; the memory is used again for the next piece.

    Raises
    ------
    StoppedError
        When `stop` returns True.
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
    for piece in _cached(descriptor, offset):  # the rest that direct reads do not give: often nothing
        yield piece
        offset += len(piece)
        if offset - dropped >= WINDOW:
            drop_cached(descriptor, dropped, offset - dropped)
            dropped = offset
    drop_cached(descriptor, dropped)


def _cached(descriptor: int, offset: int, buffer: memoryview | None = None) -> Generator[memoryview, None, None]:
    read_ahead(descriptor)
    if buffer is None:
        left = os.fstat(descriptor).st_size - offset
        buffer = memoryview(bytearray(min(CHUNK, max(left, _SMALL))))
    while count := os.preadv(descriptor, [buffer], offset):
        yield buffer[:count]
        offset += count
