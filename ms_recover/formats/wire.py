"""Bounded reading of protobuf's wire format.

Contents are skipped by arithmetic and never read: a walk over a slice of any size reads a few KiB per parameter, by
``pread`` and not through a memory map (docs/decisions/0005-bounded-reading.md).

Source of the format: https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

from ms_recover.errors import FormatError
from ms_recover.formats.reading import ReadAt

VARINT = 0
LEN = 2

WINDOW = 4096
"""Bytes read at once: the header of one parameter, or many whole small ones."""

_LONGEST_VARINT = 10
_LONGEST_FIELD_HEAD = 2 * _LONGEST_VARINT


Field = tuple[int, int, int, int]
"""A field's offset, its key (``number << 3 | wire type``), its value, and the offset behind it.

The value is the number of a varint, or the offset of the first byte of a length-delimited field, whose end may lie
behind the end of the file.
"""


class WireError(FormatError):
    """Bytes that are no protobuf message of the kind being read, for a reason, from an offset of the file on."""

    def __init__(self, offset: int, reason: str) -> None:
        super().__init__(f"offset {offset}: {reason}")
        self.offset = offset
        self.reason = reason


class WireReader:
    """Fields of protobuf messages, up to `size`: the end of the file, or where something else follows."""

    __slots__ = ("_base", "_data", "_read_at", "_safe", "_window", "size")

    def __init__(self, read_at: ReadAt, size: int, window: int = WINDOW) -> None:
        self.size = size
        self._read_at = read_at
        self._window = max(window, _LONGEST_FIELD_HEAD)
        self._base = 0
        self._data = b""
        self._safe = -1  # the last offset at which the window holds any field head in full

    def fields(self, at: int, end: int, most: int) -> list[Field]:
        """Read the heads of up to `most` fields from `at` on; fewer end at `end`, where their message does.

        One call reads a whole message, because calls are what a walk over small records spends its time on.

        Raises
        ------
        WireError
            When the file ends inside a head, a field is longer than its message, a number does not end, or a wire
            type is one that MindSpore's files never use.
        """
        found: list[Field] = []
        data, base, safe = self._data, self._base, self._safe
        while at < end and len(found) < most:
            if at < base or at > safe:
                data = self._fill(at)
                base, safe = at, self._safe
            index = at - base
            try:
                key = data[index]
                value = data[index + 1]
                index += 2
                if key >= 0x80:
                    key, index = _varint(data, index - 2, at)
                    value = data[index]
                    index += 1
                if value >= 0x80:
                    value, index = _varint(data, index - 1, at)
            except IndexError:
                if base + len(data) < self.size:
                    raise WireError(at, "a number does not end within ten bytes") from None
                raise WireError(self.size, "the file ends inside the head of a field") from None
            after = base + index
            if key & 7 == LEN:
                value, after = after, after + value
            elif key & 7 != VARINT:
                raise WireError(at, f"wire type {key & 7} does not occur in such files")
            if after > end:
                raise WireError(at, f"a field ends {after - end} bytes behind the message it is in")
            found.append((at, key, value, after))
            at = after
        return found

    def numbers(self, at: int, end: int) -> list[int]:
        """Return the varints from `at` to `end`, a packed field whose length has been capped.

        A WireError says that the file ends inside, or that the last varint does not end at `end`.
        """
        data = self.take(at, end)
        values = []
        index = 0
        try:
            while index < len(data):
                value, index = _varint(data, index, at)
                values.append(value)
        except IndexError:
            raise WireError(at, "a number runs over the end of its field") from None
        return values

    def text(self, start: int, end: int, most: int) -> str:
        """Return the UTF-8 text from `start` to `end`.

        A WireError says that it is longer than `most` bytes, that the file ends inside, or that it is not UTF-8.
        """
        if end - start > most:
            raise WireError(start, f"a text of {end - start} bytes where none is longer than {most}")
        try:
            return self.take(start, end).decode()
        except UnicodeDecodeError:
            raise WireError(start, "a text that is not UTF-8") from None

    def take(self, start: int, end: int) -> bytes:
        """Return the bytes from `start` to `end`, whose number has been capped; a WireError where the file ends."""
        base = self._base
        if base <= start and end <= base + len(self._data):
            return self._data[start - base : end - base]
        if end > self.size:
            raise WireError(self.size, f"the file ends {end - self.size} bytes too early")
        return self._read(start, end - start)

    def _fill(self, at: int) -> bytes:
        self._data = data = self._read(at, min(self._window, max(self.size - at, 0)))
        self._base = at
        self._safe = at + len(data) - _LONGEST_FIELD_HEAD
        return data

    def _read(self, start: int, length: int) -> bytes:
        data = self._read_at(start, length)
        if len(data) < length:
            raise WireError(start + len(data), "the file shrank while it was read")
        return data


def _varint(data: bytes, index: int, at: int) -> tuple[int, int]:
    """Decode a varint; an ``IndexError`` means that the data end inside it."""
    begin = index
    value = byte = data[index]
    shift = 0
    while byte >= 0x80:
        index += 1
        shift += 7
        byte = data[index]
        value += (byte - 1) << shift  # minus the continuation bit of the byte before
    index += 1
    if value >> 64 or index - begin > _LONGEST_VARINT:
        raise WireError(at, "a number does not fit into 64 bits")
    return value, index


def varint(data: bytes) -> int:
    """Return the number that a whole varint encodes."""
    return _varint(data, 0, 0)[0]


def encode_varint(value: int) -> bytes:
    """Return an unsigned number as a varint."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*out, value))


def encode_field(number: int, value: int | bytes) -> bytes:
    """Return a field of a message, a varint or length-delimited."""
    if isinstance(value, int):
        return encode_varint(number << 3 | VARINT) + encode_varint(value)
    return encode_varint(number << 3 | LEN) + encode_varint(len(value)) + value


def signed(value: int) -> int:
    """Return a varint as the int64 it encodes."""
    return value - (1 << 64) if value >> 63 else value
