"""MindSpore's ``.ckpt`` slices: every parameter and its byte ranges, without touching the contents.

A slice is a plain concatenation of records, with no magic, no count and no end mark::

    record   0a <len> tag tensor|maptensor        Checkpoint.value
    tag      0a <len> utf-8 name
    tensor   12 <len> {08 <dim>} 12 <len> type 1a <len> content
    trailer  "crc_num" + CRC-32 as ten bytes big-endian, only with crc_check=True

MindSpore splits tensors above 512 MiB into consecutive records ("pieces") of one name, each with the dims of the whole
tensor. Its own loader takes most damaged files without a word, so the structure is proven here.

Source: ``mindspore/train/checkpoint_pb2.py`` and ``serialization.py`` of MindSpore 2.10; see ``docs/formats.md``.
"""

from __future__ import annotations

from ms_recover.formats import encrypted
from ms_recover.formats.identify import DESCRIPTIONS, HEAD, classify
from ms_recover.formats.reading import ReadAt
from ms_recover.formats.records import MAP, RecordWalk
from ms_recover.formats.wire import WireReader
from ms_recover.model.slices import SliceHeader

TRAILER = len(encrypted.TRAILER_MARK) + 10
"""Length of the CRC trailer in bytes."""


def parse_header(read_at: ReadAt, size: int) -> SliceHeader:
    """Walk over a ``.ckpt`` slice of `size` bytes and prove its structure; contents are not read.

    Damage does not raise. The walk lists every parameter it can, and the problems, and stops where the next record
    cannot be found. A map parameter has dtype ``MapTensor(keys,values,status)``, the shape of its values and three
    ranges per piece; a scalar and a string have shape ``()``.
    """
    crc, end, problems = parse_trailer(read_at, size)
    walk = RecordWalk(WireReader(read_at, end))
    walk.run()
    if walk.problems and not walk.parameters:
        head = read_at(0, min(size, HEAD))
        kind = classify(head, size)
        if kind == "encrypted-ckpt":
            mode = encrypted.MODES[head[:4]]
            return SliceHeader(kind, size, encryption=mode, problems=encrypted.walk(read_at, size, mode))
        if kind not in ("ckpt", "unknown"):
            return SliceHeader("ckpt", size, problems=(f"not a slice: the file is {DESCRIPTIONS[kind]}",))
    return SliceHeader(
        "ckpt", size, tuple(walk.parameters), tuple(walk.contents), crc, None, (*problems, *walk.problems)
    )


def crc_ranges(header: SliceHeader) -> list[tuple[int, int]]:
    """Return the byte ranges that the CRC of the trailer covers: all records but those of map parameters."""
    ranges: list[tuple[int, int]] = []
    at = record = 0
    for parameter, contents in zip(header.parameters, header.contents, strict=True):
        end = contents[-1].end
        if parameter.dtype.startswith(MAP):
            ranges.append((at, record))
            at = end
        record = end
    return [*ranges, (at, header.size - TRAILER)]


def parse_trailer(read_at: ReadAt, size: int) -> tuple[int | None, int, tuple[str, ...]]:
    """Return the CRC of the trailer, the end of the records, and the problems of the trailer."""
    tail = read_at(size - TRAILER, TRAILER) if size >= TRAILER else b""
    if not tail.startswith(encrypted.TRAILER_MARK):
        return None, size, ()
    crc = int.from_bytes(tail[len(encrypted.TRAILER_MARK) :], "big")
    if crc >> 32:
        return None, size - TRAILER, (f"offset {size - TRAILER}: the CRC trailer holds {crc:#x}, no 32-bit number",)
    return crc, size - TRAILER, ()
