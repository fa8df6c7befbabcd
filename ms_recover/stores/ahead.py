"""Small reads of a distant file, for which few and ever larger ranges are asked."""

from __future__ import annotations

from ms_recover.stores.store import OpenFile, never

_WHOLE = 256 << 10
"""A file up to this long is read at once."""

_FIRST = 64 << 10
_LEAST = 16 << 10
_MOST = 4 << 20
"""Bytes of the first range, of one behind a gap, and of the largest where reads follow each other."""


class ReadAhead:
    """Reads of a file, mostly forwards, as those of a header are.

    A read behind a gap smaller than the last range asks for twice as much, because a request costs more than the bytes
    between; one behind a larger gap asks for little.
    """

    def __init__(self, file: OpenFile) -> None:
        self._file = file
        self._block, self._start = b"", 0
        self._ahead = _FIRST

    def read_at(self, offset: int, length: int) -> bytes:
        """Read `length` bytes, fewer only where the file ends; errors as for `OpenFile.read_range`."""
        end = min(offset + length, self._file.size)
        if offset >= end:
            return b""
        stop = self._start + len(self._block)
        if not (self._start <= offset and end <= stop):
            if self._block:
                self._ahead = min(2 * self._ahead, _MOST) if 0 <= offset - stop < self._ahead else _LEAST
            kept = self._block[offset - self._start :] if self._start <= offset < stop else b""
            begin = offset + len(kept)
            most = self._file.size if self._file.size <= _WHOLE else max(end, begin + self._ahead)
            data = bytearray(kept)
            self._file.read_range(begin, min(most, self._file.size), data.extend, never)
            self._block, self._start = bytes(data), offset
        return self._block[offset - self._start : end - self._start]
