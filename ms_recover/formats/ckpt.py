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

import os
import zlib
from collections.abc import Callable, Collection
from dataclasses import replace

from ms_recover.formats import encrypted
from ms_recover.formats.identify import DESCRIPTIONS, HEAD, classify
from ms_recover.formats.records import MAP, RecordWalk
from ms_recover.formats.source import ReadAt, open_regular, pread
from ms_recover.formats.wire import WireReader
from ms_recover.model.slices import SliceHeader

TRAILER = len(encrypted.TRAILER_MARK) + 10
"""Length of the CRC trailer in bytes."""

_CHUNK = 1 << 20


def read_header(path: str | os.PathLike[str], *, expected: Collection[str] | None = None) -> SliceHeader:
    """Walk over a slice and prove its structure; contents are not read.

    Damage does not raise. The walk lists every parameter it can, notes what is wrong, and stops where the next record
    cannot be found any more.

    Parameters
    ----------
    path : str or path-like
        The slice.
    expected : collection of str, optional
        Parameter names that must occur. Without them a file cut exactly between two parameters cannot be told from a
        whole one.

    Returns
    -------
    SliceHeader
        A map parameter has dtype ``MapTensor(keys,values,status)``, the shape of its values and three ranges per
        piece; a scalar and a string have shape ``()``.

    Raises
    ------
    MissingInputError
        When nothing has that name.
    FormatError
        When it is a directory, a pipe, a device.
    StorageError
        When the system refuses to open or to read it.
    """
    with open_regular(path, "a slice") as (descriptor, size):
        header = parse_header(pread(descriptor), size, expected=expected)
        now = os.fstat(descriptor).st_size
    if now == size:
        return header
    change = f"the file changed its size from {size} to {now} bytes while it was read; is somebody writing it?"
    return replace(header, problems=(*header.problems, change))


def parse_header(read_at: ReadAt, size: int, *, expected: Collection[str] | None = None) -> SliceHeader:
    """Do what `read_header` does for ``size`` bytes that come from ``read_at``."""
    crc, end, problems = _trailer(read_at, size)
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
    if expected is not None and walk.finished:
        walk.compare(expected)
    return SliceHeader(
        "ckpt", size, tuple(walk.parameters), tuple(walk.contents), crc, None, (*problems, *walk.problems)
    )


def check_crc(
    path: str | os.PathLike[str], header: SliceHeader, *, stop: Callable[[], bool] | None = None
) -> str | None:
    """Compare the contents of a slice with the CRC-32 of its trailer.

    Parameters
    ----------
    path : str or path-like
        The slice.
    header : SliceHeader
        What `read_header` returned for it.
    stop : callable, optional
        Asked once per MiB; the check ends as soon as it answers True.

    Returns
    -------
    str or None
        What is wrong; None when the CRC agrees or the file has none.

    Raises
    ------
    MissingInputError, FormatError, StorageError
        As `read_header`.
    """
    if header.crc is None:
        return None
    with open_regular(path, "a slice") as (descriptor, size):
        if size != header.size:
            return f"the file had {header.size} bytes and has {size} now"
        found = 0
        for start, end in _covered(header):
            at = start
            while at < end:
                if stop is not None and stop():
                    return "the CRC check was stopped before its end"
                data = os.pread(descriptor, min(_CHUNK, end - at), at)
                if not data:
                    return "the file shrank while it was read"
                found = zlib.crc32(data, found)
                at += len(data)
    if found == header.crc:
        return None
    return f"CRC-32 of the contents is {found:#010x}, the trailer says {header.crc:#010x}: bytes have changed"


def _covered(header: SliceHeader) -> list[tuple[int, int]]:
    """Return the byte ranges that the CRC covers: all records but those of map parameters."""
    ranges = []
    at = record = 0
    for parameter, contents in zip(header.parameters, header.contents, strict=True):
        end = contents[-1].end
        if parameter.dtype.startswith(MAP):
            ranges.append((at, record))
            at = end
        record = end
    return [*ranges, (at, header.size - TRAILER)]


def _trailer(read_at: ReadAt, size: int) -> tuple[int | None, int, tuple[str, ...]]:
    """Return the CRC of the trailer, where the records end, and what is wrong with the trailer."""
    tail = read_at(size - TRAILER, TRAILER) if size >= TRAILER else b""
    if not tail.startswith(encrypted.TRAILER_MARK):
        return None, size, ()
    crc = int.from_bytes(tail[len(encrypted.TRAILER_MARK) :], "big")
    if crc >> 32:
        return None, size - TRAILER, (f"offset {size - TRAILER}: the CRC trailer holds {crc:#x}, no 32-bit number",)
    return crc, size - TRAILER, ()
