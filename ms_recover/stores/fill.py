"""Read a file into memory that stays: each byte once, several blocks at a time, and seen in order meanwhile."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from ms_recover.errors import VerificationError
from ms_recover.stores.direct import aligned_buffer
from ms_recover.stores.local import StoppedError
from ms_recover.stores.local_store import LocalFile
from ms_recover.stores.store import OpenFile, Stop, never

BLOCK = 1 << 20
"""Bytes read at a time: what was read is still in the cache of the processor when it is digested."""

ARENA = 64 << 20
"""Contents are put together into memory of about this size; what remains in use keeps no more than this alive."""

_ALIGNMENT = 64
_MOST_PARTS = 512
_MOST_THREADS = 4
_BYTES_WORTH_A_THREAD = 8 << 20


def take_memory(sizes: Sequence[int]) -> list[memoryview]:
    """Return writable memory of so many bytes each, at multiples of 64 bytes.

    Neighbours share one piece of memory up to `ARENA` bytes. It is given back when nothing refers to any of them. Its
    pages are of the usual size: huge ones cost half of them at best, and four times as much on a virtual machine that
    has given free memory back to its host.
    """
    views: list[memoryview] = []
    group: list[int] = []
    total = 0
    for size in sizes:
        taken = -(-size // _ALIGNMENT) * _ALIGNMENT
        if group and total + taken > ARENA:
            views += _split(group, total)
            group, total = [], 0
        group.append(size)
        total += taken
    return views + _split(group, total)


def _split(sizes: Iterable[int], total: int) -> list[memoryview]:
    arena = aligned_buffer(total, huge=False)
    views, start = [], 0
    for size in sizes:
        views.append(arena[start : start + size])
        start += -(-size // _ALIGNMENT) * _ALIGNMENT
    return views


def fill(opened: OpenFile, parts: Iterable[memoryview], see: Callable[[memoryview], None], stop: Stop = never) -> None:
    """Read an open file from its start into `parts`, one behind the other, and show each byte to `see` in order.

    Threads share the reading of a large local file: while one digests, another reads on.

    Raises
    ------
    VerificationError
        When the file ends before the parts are full.
    StoppedError
        When `stop` returns True.
    MsRecoverError
        When it cannot be read.
    """
    blocks = _blocks(parts)
    if not opened.near:
        _receive(opened, blocks, see, stop)
        return
    filling = _Filling(opened, blocks, see, stop)
    size = blocks[-1].offset if blocks else 0
    jobs = min(_MOST_THREADS, len(os.sched_getaffinity(0)), size // _BYTES_WORTH_A_THREAD)
    filling.run(jobs if isinstance(opened, LocalFile) else 1)


class _Block(NamedTuple):
    """Parts that one call reads."""

    offset: int
    parts: list[memoryview]


def _blocks(parts: Iterable[memoryview]) -> list[_Block]:
    blocks: list[_Block] = []
    offset = left = 0
    for part in parts:
        view = part
        while view:
            if not left or len(blocks[-1].parts) == _MOST_PARTS:
                blocks.append(_Block(offset, []))
                left = BLOCK
            piece = view[:left]
            blocks[-1].parts.append(piece)
            offset, left, view = offset + len(piece), left - len(piece), view[len(piece) :]
    return blocks


def _receive(opened: OpenFile, blocks: Sequence[_Block], see: Callable[[memoryview], None], stop: Stop) -> None:
    """Read a file over a network: its bytes arrive in order, in memory that is used again."""
    places = iter([part for block in blocks for part in block.parts])
    end = blocks[-1].offset + sum(map(len, blocks[-1].parts)) if blocks else 0
    place = memoryview(b"")
    arrived = 0

    def take(data: memoryview) -> None:
        nonlocal place, arrived
        see(data)
        arrived += len(data)
        while data:
            place = place or next(places)
            count = min(len(place), len(data))
            place[:count] = data[:count]
            place, data = place[count:], data[count:]

    opened.read_range(0, end, take, stop)
    if arrived < end:
        raise _too_short(opened)


class _Filling:
    """Blocks that threads read in any order, and that are seen in their order."""

    def __init__(
        self, opened: OpenFile, blocks: Sequence[_Block], see: Callable[[memoryview], None], stop: Stop
    ) -> None:
        self._opened, self._blocks, self._see, self._stop = opened, blocks, see, stop
        self._numbers = iter(range(len(blocks)))
        self._read = bytearray(len(blocks))
        self._seen = 0
        self._taking, self._seeing = threading.Lock(), threading.Lock()
        self._error: BaseException | None = None

    def run(self, jobs: int) -> None:
        """Read everything with so many threads, of which this is one; the first error ends all of them."""
        others = [threading.Thread(target=self._work, name=f"fill-{number}") for number in range(1, jobs)]
        try:
            for other in others:
                other.start()
            self._work()
            for other in others:
                other.join()
        except BaseException as error:
            self._error = self._error or error
            raise
        finally:
            for other in others:
                if other.ident is not None:
                    other.join()
        if self._error is not None:
            raise self._error
        assert self._seen == len(self._blocks)

    def _work(self) -> None:
        try:
            while self._error is None:
                with self._taking:
                    number = next(self._numbers, None)
                if number is None:
                    break
                if self._stop():
                    raise StoppedError
                self._fill(self._blocks[number])
                self._read[number] = 1
                self._see_on()
        except BaseException as error:  # raised where all threads have ended
            self._error = self._error or error

    def _fill(self, block: _Block) -> None:
        offset, parts = block
        while parts:
            count = self._opened.read_parts(offset, parts)
            if not count:
                raise _too_short(self._opened)
            offset += count
            left = []
            for part in parts:
                if count < len(part):
                    left.append(part[count:])
                count = max(0, count - len(part))
            parts = left

    def _see_on(self) -> None:
        """Show what was read and not seen yet, unless another thread is at it: that one looks again at its end."""
        while self._seen < len(self._blocks) and self._read[self._seen] and self._seeing.acquire(blocking=False):
            try:
                while self._seen < len(self._blocks) and self._read[self._seen]:
                    for part in self._blocks[self._seen].parts:
                        self._see(part)
                    self._seen += 1
            finally:
                self._seeing.release()


def _too_short(opened: OpenFile) -> VerificationError:
    return VerificationError(f"{opened.name} ends too early: it changes while it is read; is training writing it?")
