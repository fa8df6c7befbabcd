"""The body of an answer, read from its connection: what it costs is bounded by the bytes that it brings."""

from __future__ import annotations

import http.client
import re
import time
from typing import Any

from ms_recover.errors import AnswerError

_SIZE = re.compile(rb"[0-9A-Fa-f]{1,15}", re.ASCII)
_MOST_LINE = 1024
_MOST_PIECES, _PIECES_PER_SECOND, _BYTES_PER_PIECE = 16_384, 64, 128
"""An answer may come in so many pieces, more for each second, and more where they have so many bytes on average."""


class Body:
    """The bytes of an answer, by its length, in chunks (RFC 9112, section 7.1), or up to the end of the connection.

    Attributes
    ----------
    left : int or None
        Bytes that are still to come; None where that is not known. 0 at the end, when the connection may be used again.
    """

    def __init__(self, raw: Any, name: str) -> None:
        self._stream, self._name = raw.fp, name
        self._chunked: bool = raw.chunked
        self.left: int | None = None if raw.chunked else raw.length
        self._chunk = 0
        self._pieces, self._bytes, self._began = 0, 0, time.monotonic()
        self.keeps = True

    def read_into(self, buffer: memoryview) -> int:
        """Read the next bytes, 0 at the end.

        Raises
        ------
        OSError, http.client.HTTPException
            When the connection breaks, the answer ends early, or is none that can be.
        AnswerError
            When it comes in too many pieces.
        """
        if self.left == 0:
            return 0
        if self._chunked and self._chunk == 0 and not self._next_chunk():
            self.left = 0
            return 0
        most = self._chunk if self._chunked else self.left
        count: int = self._stream.readinto1(buffer if most is None else buffer[:most])
        self._check_pieces(count)
        if self._chunked:
            self._chunk -= count
            if count == 0:
                raise http.client.IncompleteRead(b"")
            if self._chunk == 0 and self._stream.read(2) != b"\r\n":
                raise http.client.HTTPException("a chunk has another length than it says")
        elif self.left is None:
            self.left = None if count else 0
            self.keeps = False
        else:
            if count == 0:
                raise http.client.IncompleteRead(b"", self.left)
            self.left -= count
        return count

    def _next_chunk(self) -> bool:
        """Read the length of the next chunk; whether there is one. Fields behind the last one are not read."""
        line: bytes = self._stream.readline(_MOST_LINE + 1)
        size = _SIZE.fullmatch(line.partition(b";")[0].strip())
        if not line:
            raise http.client.IncompleteRead(b"")
        if size is None or not line.endswith(b"\n"):
            raise http.client.HTTPException("a chunk has no length")
        self._chunk = int(size[0], 16)
        if self._chunk == 0:
            self.keeps = self._stream.readline(_MOST_LINE) in (b"\r\n", b"\n")
        return self._chunk > 0

    def _check_pieces(self, count: int) -> None:
        self._pieces += 1
        self._bytes += count
        if self._pieces > _MOST_PIECES:
            seconds = time.monotonic() - self._began
            if self._pieces > _MOST_PIECES + self._bytes // _BYTES_PER_PIECE + _PIECES_PER_SECOND * seconds:
                raise AnswerError(f"{self._name} sends an answer in pieces of a few bytes: see what is in between")
