"""The contents of a slice in memory: read once, digested in the same pass."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ms_recover.formats.header import RunningCrc, crc_problem
from ms_recover.formats.reading import ReadAt
from ms_recover.formats.records import MAP
from ms_recover.model.manifest import Digests
from ms_recover.model.slices import ByteRange, Parameter, SliceHeader
from ms_recover.stores.digest import Digester
from ms_recover.stores.fill import fill, take_memory
from ms_recover.stores.store import OpenFile, Stop, never


@dataclass(frozen=True, eq=False)
class SliceContents:
    """The parameters of a slice, with their bytes in memory of their own."""

    parameters: tuple[Parameter, ...]
    """In file order."""
    values: tuple[tuple[memoryview, ...], ...]
    """The bytes of each: one piece of memory, or of a map parameter its keys, values and status."""
    digests: Digests | None
    """Of the bytes that were read; None where nothing was to be compared with them."""
    problem: str | None = None
    """Why the bytes are not those that the slice's own CRC is of."""
    checked: bool = False
    """Whether they were compared with that CRC."""


def read_contents(
    opened: OpenFile,
    header: SliceHeader,
    *,
    digest: bool = True,
    crc: bool = False,
    stop: Stop = never,
    progress: Callable[[int], None] | None = None,
) -> SliceContents:
    """Read a slice whose structure is sound from its start to its end.

    Parameters
    ----------
    digest, crc : bool
        Digest the file and each parameter; compare the bytes with the CRC in the slice, where it has one. The CRC of a
        safetensors file goes through the parameters by their names, so that it is computed at the end, from memory.
    stop, progress
        Asked before each block; given the bytes read since its last call.

    Raises
    ------
    VerificationError
        When the file ends too early, or is not the one any more that was opened.
    StoppedError, MsRecoverError
        As `ms_recover.stores.fill.fill`.
    """
    sizes = [size for parameter, ranges in _pairs(header) for size in _sizes(parameter, ranges)]
    memory = iter(take_memory(sizes))
    values = tuple(tuple(next(memory) for _ in _sizes(*pair)) for pair in _pairs(header))
    digester = Digester(header.contents) if digest else None
    checked = crc and header.crc is not None
    running = RunningCrc(header) if checked and header.kind == "ckpt" else None

    def see(data: memoryview) -> None:
        if digester is not None:
            digester.update(data)
        if running is not None:
            running.update(data)
        if progress is not None:
            progress(len(data))

    fill(opened, _parts(header, values), see, stop)
    opened.check_unchanged()
    problem = running.problem() if running is not None else None
    if checked and running is None:
        problem = crc_problem(_read_at(header, values), header.size, header, stop=stop)
    return SliceContents(
        header.parameters, values, digester.digests() if digester is not None else None, problem, checked
    )


def _pairs(header: SliceHeader) -> Iterator[tuple[Parameter, tuple[ByteRange, ...]]]:
    return zip(header.parameters, header.contents, strict=True)


def _roles(parameter: Parameter) -> int:
    """Return how many tensors a parameter is of; their pieces take turns in a file."""
    return 3 if parameter.dtype.startswith(MAP) else 1


def _sizes(parameter: Parameter, ranges: Sequence[ByteRange]) -> list[int]:
    roles = _roles(parameter)
    return [sum(piece.length for piece in ranges[role::roles]) for role in range(roles)]


def _parts(header: SliceHeader, values: Sequence[tuple[memoryview, ...]]) -> Iterator[memoryview]:
    """Yield where each byte of the file goes, in order: contents to their parameters, the rest to nowhere."""
    at = 0
    for (parameter, ranges), memory in zip(_pairs(header), values, strict=True):
        roles, left = _roles(parameter), list(memory)
        for number, piece in enumerate(ranges):
            if piece.start > at:
                yield memoryview(bytearray(piece.start - at))
            role = number % roles
            yield left[role][: piece.length]
            left[role] = left[role][piece.length :]
            at = piece.end
    if header.size > at:
        yield memoryview(bytearray(header.size - at))


def _read_at(header: SliceHeader, values: Sequence[tuple[memoryview, ...]]) -> ReadAt:
    """Return a reader of the contents of a safetensors file out of memory."""
    pairs = zip(header.contents, values, strict=True)
    held = [(ranges[0].start, memory[0]) for ranges, memory in pairs if ranges[0].length]
    starts = [start for start, _ in held]

    def read_at(offset: int, length: int) -> bytes:
        start, memory = held[bisect_right(starts, offset) - 1]
        return bytes(memory[offset - start : offset - start + length])

    return read_at
