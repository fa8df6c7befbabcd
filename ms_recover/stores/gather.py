"""Read one parameter's contents out of the slices that hold its pieces, in order and in bounded memory."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from math import gcd
from typing import Literal

import xxhash

from ms_recover.model.compose import Piece, Runs
from ms_recover.model.slices import ByteRange
from ms_recover.stores.digest import name_digest

WINDOW = 1 << 20
"""Bytes of the parameter that are put together at a time, and the most that is read at once."""

_BYTES_WORTH_A_READ = 8 << 10
"""Reading so many bytes more takes about as long as another call of ``pread``."""

_MOST_COLUMNS = 16
"""Runs of more elements are copied one by one: that is quicker."""

_UNITS: dict[int, Literal["B", "H", "I", "Q"]] = {1: "B", 2: "H", 4: "I", 8: "Q"}


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


def gather(
    pieces: Sequence[Piece],
    nbytes: int,
    contents_of: Callable[[Piece], Contents],
    prove: Callable[[Piece, str], None] | None = None,
) -> Iterator[memoryview]:
    """Yield a parameter of `nbytes` bytes in order, `WINDOW` bytes at a time; errors as for `Contents.read`.

    `contents_of` returns the contents that a piece is taken from. The memory is used again for the next window.
    Before the last window `prove` gets the digest of each piece that is all of its source's parameter and no plain run.
    """
    scratch = bytearray()
    flows = [_Flow(piece, contents_of(piece), prove, scratch) for piece in pieces]
    buffer = memoryview(bytearray(min(WINDOW, nbytes)))
    for start in range(0, nbytes, WINDOW):
        window = buffer[: min(WINDOW, nbytes - start)]
        for flow in flows:
            flow.fill(window, start)
        yield window


class _Flow:
    """One piece's runs, taken window by window; they come in the order of the target's bytes.

    Runs at one distance from each other go together: they are read in one go, gaps included where these are small, and
    spread by the element where they are short.
    """

    def __init__(
        self, piece: Piece, contents: Contents, prove: Callable[[Piece, str], None] | None, scratch: bytearray
    ) -> None:
        *outer, inner = _joined(piece.runs.loops) or ((1, piece.runs.length, piece.runs.length),)
        self._contents = contents
        self._length = piece.runs.length
        self._count, self._source_stride, self._target_stride = inner
        self._rows = iter(Runs(piece.runs.source, piece.runs.target, 0, tuple(outer)))
        self._row = next(self._rows, None)
        self._index = self._done = 0
        self._scratch = scratch
        self._piece, self._prove = piece, prove
        self._digest = xxhash.xxh3_128() if prove is not None and piece.reads_all else None

    def fill(self, window: memoryview, start: int) -> None:
        """Write this piece's bytes of a window that begins at byte `start` of the parameter."""
        end = start + len(window)
        while self._row is not None:
            source = self._row[0] + self._index * self._source_stride + self._done
            target = self._row[1] + self._index * self._target_stride + self._done
            if target >= end:
                return
            if self._done or target + self._length > end:  # a run that windows cut
                count = min(self._length - self._done, end - target)
                self._read(source, window[target - start : target - start + count])
                self._done = (self._done + count) % self._length
                self._index += not self._done
            else:
                count = min(self._count - self._index, (end - target - self._length) // self._target_stride + 1)
                self._read_runs(source, window[target - start :], count)
                self._index += count
            if self._index == self._count:
                self._row, self._index = next(self._rows, None), 0
        if self._digest is not None and self._prove is not None:
            self._prove(self._piece, name_digest(self._digest))
            self._digest = None

    def _read_runs(self, source: int, window: memoryview, count: int) -> None:
        """Read so many runs into a window that begins with the first."""
        length, stride, step = self._length, self._source_stride, self._target_stride
        together = max(1, (WINDOW - length) // stride + 1) if stride <= length + _BYTES_WORTH_A_READ else 1
        if length == stride == step:
            self._read(source, window[: count * length])
            return
        for first in range(0, count, together):
            runs = min(together, count - first)
            at, into = source + first * stride, window[first * step :]
            if runs == 1:
                self._read(at, into[:length])
                continue
            span = (runs - 1) * stride + length
            if len(self._scratch) < span:
                self._scratch.extend(bytes(span - len(self._scratch)))
            with memoryview(self._scratch) as whole, whole[:span] as read:
                self._read(at, read)
                _spread(read, stride, into[: (runs - 1) * step + length], step, length, runs)

    def _read(self, source: int, into: memoryview) -> None:
        self._contents.read(source, into)
        if self._digest is not None:
            self._digest.update(into)


def _joined(loops: Sequence[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Return the same loops with those put together that go on at the same distances."""
    joined: list[tuple[int, int, int]] = []
    for count, source, target in loops:
        if joined and joined[-1][1:] == (count * source, count * target):
            joined[-1] = (joined[-1][0] * count, source, target)
        else:
            joined.append((count, source, target))
    return joined


def _spread(source: memoryview, stride: int, target: memoryview, step: int, length: int, count: int) -> None:
    """Copy runs from one distance to another: run by run, or where that is less, column by column."""
    unit = gcd(length, stride, step, 8)
    if length // unit > min(count, _MOST_COLUMNS):
        for index in range(count):
            target[index * step : index * step + length] = source[index * stride : index * stride + length]
        return
    stride, step = stride // unit, step // unit
    with source.cast(_UNITS[unit]) as column:
        place = target.cast(_UNITS[unit])
        for index in range(length // unit):
            place[index::step][:count] = column[index::stride][:count]
