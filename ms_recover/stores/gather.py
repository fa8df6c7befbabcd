"""Read one parameter's contents out of the slices that hold its pieces, in order and in bounded memory."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate

from ms_recover.model.compose import Piece, Runs
from ms_recover.model.slices import ByteRange

WINDOW = 1 << 20
"""Bytes of the parameter that are put together at a time, and the most that is read at once."""

_BYTES_WORTH_A_READ = 8 << 10
"""Reading so many bytes more takes about as long as another call of ``pread``."""


class Contents:
    """The contents of one parameter, whose pieces lie at `ranges` of an open slice.

    `read` reads from an offset of the slice into memory and returns the number of bytes, 0 only at the end.
    """

    def __init__(self, read: Callable[[int, memoryview], int], ranges: Sequence[ByteRange]) -> None:
        self._read = read
        self._ranges = [piece for piece in ranges if piece.length] or [ByteRange(0, 0)]
        self._starts = [0, *accumulate(piece.length for piece in self._ranges)]

    @property
    def bytes(self) -> int:
        """Their length."""
        return self._starts[-1]

    def read(self, offset: int, into: memoryview) -> None:
        """Fill `into` with the bytes from `offset` of the contents on; an EOFError when the file ends before."""
        while into:
            index = bisect_right(self._starts, offset) - 1
            if offset >= self.bytes:
                raise EOFError
            within = offset - self._starts[index]
            place = self._ranges[index]
            count = self._read(place.start + within, into[: place.length - within])
            if not count:
                raise EOFError
            into = into[count:]
            offset += count


def gather(pieces: Sequence[Piece], nbytes: int, contents_of: Callable[[Piece], Contents]) -> Iterator[memoryview]:
    """Yield a parameter of `nbytes` bytes in order, `WINDOW` bytes at a time; errors as for `Contents.read`.

    `contents_of` returns the contents that a piece is taken from. The memory is used again for the next window.
    """
    flows = [_Flow(piece.runs, contents_of(piece)) for piece in pieces]
    buffer = memoryview(bytearray(min(WINDOW, nbytes)))
    for start in range(0, nbytes, WINDOW):
        window = buffer[: min(WINDOW, nbytes - start)]
        for flow in flows:
            flow.fill(window, start)
        yield window


class _Flow:
    """One piece's runs, taken window by window; they come in the order of the target's bytes."""

    def __init__(self, runs: Runs, contents: Contents) -> None:
        self._contents = contents
        self._length = runs.length
        self._runs = iter(runs)
        self._next = next(self._runs, None)
        self._done = 0
        self._scratch = memoryview(b"")

    def fill(self, window: memoryview, start: int) -> None:
        """Write this piece's bytes of a window that begins at byte `start` of the parameter."""
        end = start + len(window)
        batch: list[tuple[int, int, int]] = []
        while self._next is not None and self._next[1] + self._done < end:
            source, target = self._next[0] + self._done, self._next[1] + self._done
            count = min(self._length - self._done, end - target)
            if batch and source + count - batch[0][0] > WINDOW:
                self._read(batch, window)
                batch = []
            batch.append((source, target - start, count))
            self._done += count
            if self._done == self._length:
                self._next, self._done = next(self._runs, None), 0
        if batch:
            self._read(batch, window)

    def _read(self, batch: list[tuple[int, int, int]], window: memoryview) -> None:
        first = batch[0][0]
        span = batch[-1][0] + batch[-1][2] - first
        if len(batch) == 1 or span > len(batch) * (_BYTES_WORTH_A_READ + self._length):
            for source, target, count in batch:
                self._contents.read(source, window[target : target + count])
            return
        if len(self._scratch) < span:
            self._scratch = memoryview(bytearray(WINDOW))
        self._contents.read(first, self._scratch[:span])
        for source, target, count in batch:
            window[target : target + count] = self._scratch[source - first : source - first + count]
