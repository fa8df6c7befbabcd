"""Read the headers of many slices that are laid out alike.

The ranks of a stage list the same parameters in the same order and sizes, so that their slices differ in their contents
only. Once one of them has been walked, comparing the bytes around the contents proves the structure of the others in a
fraction of the time.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from struct import Struct

from ms_recover.formats.ckpt import TRAILER, parse_trailer
from ms_recover.formats.header import parse_header
from ms_recover.formats.reading import ReadAt
from ms_recover.model.slices import Parameter, ParameterList, SliceHeader

_WINDOW = 16 << 10
"""Shorter contents are read along with the bytes around them."""

_MOST_KNOWN = 8
_MOST_BYTES = 8 << 20
_MOST_SIZES = 256


@dataclass(frozen=True, slots=True)
class _Known:
    """A sound slice's header, and the bytes around its contents.

    Each window is an offset, the form that takes it apart into what must be alike, and that: comparing a window takes
    two operations however many pieces it has.
    """

    header: SliceHeader
    windows: tuple[tuple[int, Struct, tuple[bytes, ...]], ...]


class KnownHeaders:
    """Headers that were read before, by which `parse` recognises others; threads may share them, as they only grow."""

    def __init__(self) -> None:
        self._known: dict[int, list[_Known]] = defaultdict(list)
        self._lists: dict[ParameterList, ParameterList] = {}

    def parse(self, read_at: ReadAt, size: int, name: str) -> SliceHeader:
        """Read a header, as `ms_recover.formats.header.parse_header`; equal headers share their parameters."""
        suffix = name.rpartition(".")[2]
        for known in self._known.get(size, ()):
            if known.header.kind == suffix and _alike(read_at, known):
                return _with_crc(read_at, known.header)
        header = parse_header(read_at, size, name=name)
        header = replace(header, parameters=self.share(header.parameters))
        if not header.problems and header.kind == suffix and len(self._known) < _MOST_SIZES:
            alike = self._known[header.size]
            windows = _windows(read_at, header) if len(alike) < _MOST_KNOWN else None
            if windows is not None:
                alike.append(_Known(header, windows))
        return header

    def share(self, parameters: tuple[Parameter, ...]) -> ParameterList:
        """Return the list that equal headers share."""
        listed = parameters if isinstance(parameters, ParameterList) else ParameterList(parameters)
        return self._lists.setdefault(listed, listed)


def _with_crc(read_at: ReadAt, header: SliceHeader) -> SliceHeader:
    if header.crc is None:
        return header
    crc, _, problems = parse_trailer(read_at, header.size)
    return replace(header, crc=crc, problems=problems)


def _alike(read_at: ReadAt, known: _Known) -> bool:
    for offset, form, expected in known.windows:
        data = read_at(offset, form.size)
        if len(data) != form.size or form.unpack(data) != expected:
            return False
    return True


def _windows(read_at: ReadAt, header: SliceHeader) -> tuple[tuple[int, Struct, tuple[bytes, ...]], ...] | None:
    """Read the bytes around the contents; None when they are too many to keep."""
    ranges = sorted((piece.start, piece.end) for pieces in header.contents for piece in pieces)
    gaps = []
    at = 0
    for start, end in ranges:
        gaps.append((at, start))
        at = end
    end_of_records = header.size if header.crc is None else header.size - TRAILER
    gaps.append((at, header.size if header.crc is None else end_of_records + len(b"crc_num")))
    gaps = [(start, end) for start, end in gaps if start < end]
    if sum(end - start for start, end in gaps) > _MOST_BYTES:
        return None
    grouped: list[list[tuple[int, int]]] = []
    for start, end in gaps:
        if grouped and start - grouped[-1][-1][1] < _WINDOW and end - grouped[-1][0][0] < 4 * _WINDOW:
            grouped[-1].append((start, end))
        else:
            grouped.append([(start, end)])
    windows = []
    for gap in grouped:
        first, last = gap[0][0], gap[-1][1]
        data = read_at(first, last - first)
        if len(data) != last - first:
            return None
        at, form = first, "="
        for start, end in gap:
            form += f"{start - at}x{end - start}s"
            at = end
        windows.append((first, Struct(form), Struct(form).unpack(data)))
    return tuple(windows)
