"""A file of another host: small reads ask for few and ever larger ranges."""

from __future__ import annotations

from ms_recover.stores.store import OpenFile, never

_WHOLE = 256 << 10
"""A file up to this long is read at once."""

_FIRST = 64 << 10
_LEAST = 16 << 10
_MOST = 4 << 20
"""Bytes of the first range, of one behind a gap, and of the largest where reads follow each other."""


class DistantFile(OpenFile):
    """Reads go mostly forwards, as those of a header and of the parts of a slice do.

    A read behind a gap smaller than the last range asks for twice as much, because a request costs more than the bytes
    between; one behind a larger gap asks for little.
    """

    near = False

    def __init__(self, name: str, size: int) -> None:
        super().__init__(name, size)
        self._block, self._start, self._ahead = b"", 0, _FIRST

    def read(self, offset: int, into: memoryview) -> int:
        """Read from the block at hand, or ask for more; see `OpenFile.read`."""
        data = self.read_at(offset, len(into))
        into[: len(data)] = data
        return len(data)

    def read_at(self, offset: int, length: int) -> bytes:
        """Read `length` bytes, fewer only where the file ends; errors as for `read_range`."""
        end = min(offset + length, self.size)
        if offset >= end:
            return b""
        stop = self._start + len(self._block)
        if not (self._start <= offset and end <= stop):
            if self._block:
                self._ahead = min(2 * self._ahead, _MOST) if 0 <= offset - stop < self._ahead else _LEAST
            kept = self._block[offset - self._start :] if self._start <= offset < stop else b""
            begin = offset + len(kept)
            most = self.size if self.size <= _WHOLE else max(end, begin + self._ahead)
            data = bytearray(kept)
            self.read_range(begin, min(most, self.size), data.extend, never)
            self._block, self._start = bytes(data), offset
        return self._block[offset - self._start : end - self._start]
