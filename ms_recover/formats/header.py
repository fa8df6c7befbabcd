"""The structure of a slice of either format, and whether its contents agree with the CRC in it.

The contents of a file decide which reader takes it, its name only where the contents are undecided. A name that belongs
to the other format is a problem, because MindSpore goes by the name.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace

from ms_recover.formats import ckpt, safetensors
from ms_recover.formats.identify import DESCRIPTIONS, HEAD, classify
from ms_recover.formats.reading import ReadAt, open_regular, pread
from ms_recover.formats.records import show
from ms_recover.model.slices import SliceHeader

_SUFFIXES = {".ckpt": ("ckpt", "encrypted-ckpt"), ".safetensors": ("safetensors",)}
_CHUNK = 1 << 20
_MOST_NAMED = 8


def read_header(path: str | os.PathLike[str], *, expected: Collection[str] | None = None) -> SliceHeader:
    """Read the names and places of a slice's parameters and prove its structure; contents are not read.

    Damage does not raise: readable parameters are listed, and so are the problems; see
    `ms_recover.formats.ckpt.parse_header` and `ms_recover.formats.safetensors.parse_header`. Parameters in `expected`
    must occur: without them a ``.ckpt`` cut exactly between two parameters looks like a whole one.

    Raises
    ------
    MissingInputError, FormatError, StorageError
        As `ms_recover.formats.reading.open_regular`.
    """
    with open_regular(path, "a slice") as (descriptor, size):
        header = parse_header(pread(descriptor), size, expected=expected, name=os.fspath(path))
        now = os.fstat(descriptor).st_size
    if now == size:
        return header
    change = f"the file changed its size from {size} to {now} bytes while it was read; is somebody writing it?"
    return replace(header, problems=(*header.problems, change))


def parse_header(read_at: ReadAt, size: int, *, expected: Collection[str] | None = None, name: str = "") -> SliceHeader:
    """Read the header, as `read_header`, of ``size`` bytes that come from ``read_at``; ``name`` is the file's."""
    kind = classify(read_at(0, min(size, HEAD)), size)
    suffix = os.path.splitext(name)[1]
    if kind == "safetensors" or (suffix == ".safetensors" and kind in ("empty", "zeros", "unknown")):
        header = safetensors.parse_header(read_at, size)
    else:
        header = ckpt.parse_header(read_at, size)
    if header.problems:
        return header
    missing = sorted(set(expected or ()) - {parameter.name for parameter in header.parameters})
    if missing:
        shown = ", ".join(map(show, missing[:_MOST_NAMED])) + (", ..." if len(missing) > _MOST_NAMED else "")
        count = f"{len(missing)} of {len(set(expected or ()))} expected parameters are missing"
        problem = f"{count}, the file may have been cut between two of them: {shown}"
    elif header.kind in _SUFFIXES.get(suffix, (header.kind,)):
        return header
    else:
        problem = f"the file is {DESCRIPTIONS[header.kind]}, and its name ends in {suffix}: MindSpore cannot load it"
    return replace(header, problems=(problem,))


def find_problem(
    path: str | os.PathLike[str],
    header: SliceHeader,
    *,
    crc: bool = True,
    stop: Callable[[], bool] | None = None,
) -> str | None:
    """Return the first problem of a slice, in its structure or, with `crc`, in its contents; None when it is sound.

    A slice that has a CRC is read from end to end for it; `stop` is asked once per MiB and ends that. It raises as
    `read_header`.
    """
    if header.problems:
        return header.problems[0]
    if not crc or header.crc is None:
        return None
    with open_regular(path, "a slice") as (descriptor, size):
        return crc_problem(pread(descriptor), size, header, stop=stop)


def counted(read_at: ReadAt, progress: Callable[[int], None] | None) -> ReadAt:
    """Return a reader that gives `progress`, where there is one, the bytes of each read."""

    def read(offset: int, count: int) -> bytes:
        data = read_at(offset, count)
        if progress is not None:
            progress(len(data))
        return data

    return read


def crc_problem(
    read_at: ReadAt, size: int, header: SliceHeader, *, stop: Callable[[], bool] | None = None
) -> str | None:
    """Compare contents, ``size`` bytes that come from ``read_at``, with the CRC-32 in a slice's trailer or metadata.

    Returns the problem, None when the CRC agrees or the slice has none. `stop` is asked once per MiB.
    """
    if header.crc is None:
        return None
    if size != header.size:
        return f"the file had {header.size} bytes and has {size} now"
    try:
        found = _crc(header, lambda start, end: _chunks(read_at, start, end, stop))
    except safetensors.DamageError as error:
        return str(error)
    if found == header.crc:
        return None
    where = "metadata say" if header.kind == "safetensors" else "trailer says"
    return _mismatch(where, found, header.crc)


class RunningCrc:
    """The CRC of a ``.ckpt`` slice, out of bytes that come in file order."""

    def __init__(self, header: SliceHeader) -> None:
        self._ranges = ckpt.crc_ranges(header)
        self._expected = header.crc
        self._found = self._offset = self._next = 0

    def update(self, data: memoryview) -> None:
        """Take the next bytes of the file."""
        start, end = self._offset, self._offset + len(data)
        while self._next < len(self._ranges):
            first, last = self._ranges[self._next]
            if first >= end:
                break
            self._found = zlib.crc32(data[max(first, start) - start : min(last, end) - start], self._found)
            if last > end:
                break
            self._next += 1
        self._offset = end

    def problem(self) -> str | None:
        """Return the problem of the whole file, None when the CRC agrees; as `crc_problem`."""
        return None if self._found == self._expected else _mismatch("trailer says", self._found, self._expected)


def _mismatch(where: str, found: int, expected: int | None) -> str:
    return f"CRC-32 of the contents is {found:#010x}, the {where} {expected or 0:#010x}: bytes have changed"


def _crc(header: SliceHeader, read: Callable[[int, int], Iterator[bytes]]) -> int:
    """Return the CRC-32 that should stand in a slice; a DamageError says why it cannot be computed."""
    found = 0
    if header.kind == "safetensors":
        pairs = zip(header.parameters, header.contents, strict=True)
        for parameter, ranges in sorted(pairs, key=lambda pair: pair[0].name):
            found = safetensors.update_crc(found, parameter, read(ranges[0].start, ranges[0].end))
    else:
        for start, end in ckpt.crc_ranges(header):
            for data in read(start, end):
                found = zlib.crc32(data, found)
    return found


def _chunks(read_at: ReadAt, start: int, end: int, stop: Callable[[], bool] | None) -> Iterator[bytes]:
    while start < end:
        if stop is not None and stop():
            raise safetensors.DamageError("the CRC check was stopped before its end")
        data = read_at(start, min(_CHUNK, end - start))
        if not data:
            raise safetensors.DamageError("the file shrank while it was read")
        yield data
        start += len(data)
