"""Read the pieces of composed parameters: open their sources, and compare what they hold with its digest."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import xxhash

from ms_recover.errors import MsRecoverError, VerificationError
from ms_recover.execution.context import ActionContext
from ms_recover.execution.sources import BadSourceError, Sources, blaming_source
from ms_recover.formats.header import parse_header
from ms_recover.model.compose import ComposeAction, ComposedParameter, Piece
from ms_recover.model.slices import ByteRange, Parameter, SliceHeader
from ms_recover.stores.digest import name_digest
from ms_recover.stores.gather import WINDOW, Contents, gather
from ms_recover.stores.local import StoppedError
from ms_recover.stores.store import OpenFile

_MOST_OPEN = 64
_MOST_KEPT = 64 << 20
"""Bytes of one parameter of a distant slice that are kept after they were proven."""


@dataclass(frozen=True, slots=True, eq=False)
class ComposedValue:
    """The contents of one parameter, and their digest as a manifest states it."""

    parameter: Parameter
    data: bytearray
    digest: str


class PieceReader(Sources):
    """The sources of one action; a context manager.

    Parameters
    ----------
    action, context
        What is put together, and with which means.
    names : mapping of str to str, optional
        The names in the sources of parameters that have others there.
    proven : set of (str, str), optional
        Paths and parameters of sources whose contents were found to be right; of this action alone by default.
    """

    def __init__(
        self,
        action: ComposeAction,
        context: ActionContext,
        names: Mapping[str, str] | None = None,
        proven: set[tuple[str, str]] | None = None,
    ) -> None:
        super().__init__([f"rank {source.rank}" for source in action.sources])
        self._replicas, self._names = action.sources, names or {}
        self._context = context
        self._headers: dict[int, SliceHeader] = {}
        self._places: dict[int, dict[str, tuple[ByteRange, ...]]] = {}
        self._open: dict[int, OpenFile] = {}
        self._proven = proven if proven is not None else set()
        self._kept: dict[tuple[int, str], memoryview] = {}
        self._used: dict[int, None] = {}

    def __enter__(self) -> PieceReader:
        return self

    def __exit__(self, *_: object) -> None:
        for opened in self._open.values():
            opened.close()

    @property
    def used(self) -> list[str]:
        """Paths of the sources that bytes were taken from, in the order of their first use."""
        return [self._replicas[number].path for number in self._used]

    def opened(self, number: int) -> OpenFile:
        """Return an open source; a MsRecoverError when it cannot be opened or is not what the plan saw."""
        if number not in self._open:
            while len(self._open) >= _MOST_OPEN:
                oldest = self._open.pop(next(iter(self._open)))
                with oldest:
                    oldest.check_unchanged()
            source = self._replicas[number]
            self._open[number] = self._context.source(source.path).open(source.path, source.state)
        return self._open[number]

    def header(self, number: int) -> SliceHeader:
        """Return the header of a source; a MsRecoverError when it cannot be read or is damaged."""
        if number not in self._headers:
            opened = self.opened(number)
            header = parse_header(opened.read_at, opened.size, name=opened.name)
            if header.problems:
                raise VerificationError(f"{opened.name} is damaged ({header.problems[0]}): plan again to repair it")
            self._headers[number] = header
            names = (parameter.name for parameter in header.parameters)
            self._places[number] = dict(zip(names, header.contents, strict=True))
        return self._headers[number]

    def model(self, preferred: int) -> int:
        """Return the source whose form is followed: the preferred one, or the first that can be read.

        A MsRecoverError when none can.
        """
        numbers = (preferred, *(one for one in range(len(self._replicas)) if one != preferred))

        def readable() -> int:
            number = self.first(numbers)
            with blaming_source(number):
                self.header(number)
            return number

        return self.attempt(readable)

    def read(self, item: ComposedParameter, see: Callable[[memoryview], object] = lambda window: None) -> str:
        """Give `see` a parameter's contents in order, and return their digest; errors as for `contents` and `check`."""
        digest = xxhash.xxh3_128()
        for window in self.proven(item, digest):
            see(window)
        return name_digest(digest)

    def proven(self, item: ComposedParameter, digest: xxhash.xxh3_128) -> Iterator[memoryview]:
        """Yield a parameter's contents in order, taken into a new `digest`, which is checked after the last of them."""
        for window in self.contents(item):
            digest.update(window)
            yield window
        self.check(item, name_digest(digest))

    def fill(self, item: ComposedParameter, memory: memoryview) -> str:
        """Put a parameter's contents into memory, and return their digest; errors as for `contents` and `check`."""
        left = memory

        def put(window: memoryview) -> None:
            nonlocal left
            left[: len(window)] = window
            left = left[len(window) :]

        return self.read(item, put)

    def contents(self, item: ComposedParameter) -> Generator[memoryview, None, None]:
        """Yield a parameter's contents in order; the memory is used again.

        A BadSourceError when a source has other bytes than it should, a StoppedError when asked to stop.
        """
        name = self._names.get(item.parameter.name, item.parameter.name)
        self._kept.clear()
        for piece in item.pieces:
            number = self.source_of(piece)
            proven = (self._replicas[number].path, name) in self._proven
            if piece.digest is not None and not piece.reads_all and not proven:
                self._prove(number, piece, name)

        def contents_of(piece: Piece) -> Contents:
            return self._contents(self.source_of(piece), piece, name)

        def prove(piece: Piece, digest: str) -> None:
            if piece.digest not in (None, digest):
                self._accuse(self.source_of(piece), name)

        alone = len(item.pieces) == 1 and item.pieces[0].whole  # then it is the digest of the parameter, see `check`
        for window in gather(item.pieces, item.parameter.nbytes, contents_of, None if alone else prove):
            if self._context.stop():
                raise StoppedError
            yield window

    def check(self, item: ComposedParameter, digest: str) -> None:
        """Raise a BadSourceError unless a parameter's contents have the digest that its source should have."""
        if len(item.pieces) == 1 and item.pieces[0].whole and item.pieces[0].digest not in (None, digest):
            name = self._names.get(item.parameter.name, item.parameter.name)
            self._accuse(self.source_of(item.pieces[0]), name)
        for piece in item.pieces:
            self._used.setdefault(self.source_of(piece))

    def check_unchanged(self) -> None:
        """Raise a MsRecoverError unless the sources that bytes were taken from are still what the plan saw."""
        for number in self._used:
            if number in self._open:
                self._open[number].check_unchanged()

    def source_of(self, piece: Piece) -> int:
        """Return the number of the source that a piece is taken from; a MsRecoverError when all are bad."""
        return self.first((piece.source, *piece.alternatives))

    def _prove(self, number: int, piece: Piece, name: str) -> None:
        """Read a parameter of which only a part is taken as a whole: its digest is of the whole."""
        contents = self._contents(number, piece, name)
        digest = xxhash.xxh3_128()
        keep = not self.opened(number).near and contents.bytes <= _MOST_KEPT
        buffer = memoryview(bytearray(contents.bytes if keep else min(WINDOW, contents.bytes)))
        for offset in range(0, contents.bytes, WINDOW):
            if self._context.stop():
                raise StoppedError
            begin = offset if keep else 0
            part = buffer[begin : begin + min(WINDOW, contents.bytes - offset)]
            contents.read(offset, part)
            digest.update(part)
        if name_digest(digest) != piece.digest:
            self._accuse(number, name)
        if keep:
            self._kept[number, name] = buffer
        else:
            self._proven.add((self._replicas[number].path, name))

    def _contents(self, number: int, piece: Piece, name: str) -> Contents:
        if (number, name) in self._kept:
            return Contents(_reader_of(self._kept[number, name]), [ByteRange(0, piece.source_bytes)])
        with blaming_source(number):
            self.header(number)
            opened, places = self.opened(number), self._places[number].get(name)
            contents = Contents(self._reader(number, opened), places or ())
            if places is None or contents.bytes != piece.source_bytes:
                raise VerificationError(f"{opened.name} does not hold {name!r} as the plan saw it: plan again")
        return contents

    def _reader(self, number: int, opened: OpenFile) -> Callable[[int, memoryview], int]:
        def read(offset: int, into: memoryview) -> int:
            try:
                count = opened.read(offset, into)
            except MsRecoverError as error:
                raise BadSourceError(error, number) from error
            if not count:
                short = VerificationError(f"{opened.name} ends too early: it changes while it is read; plan again")
                raise BadSourceError(short, number)
            return count

        return read

    def _accuse(self, number: int, name: str) -> None:
        error = VerificationError(
            f"{self.opened(number).name} holds other contents of {name!r} than its manifest or the plan says: "
            "it is damaged, plan again to repair it"
        )
        raise BadSourceError(error, number)


def _reader_of(data: memoryview) -> Callable[[int, memoryview], int]:
    def read(offset: int, into: memoryview) -> int:
        part = data[offset : offset + len(into)]
        into[: len(part)] = part
        return len(part)

    return read


def compose_values(
    action: ComposeAction, context: ActionContext, names: Mapping[str, str], dropped: list[str]
) -> Iterator[ComposedValue]:
    """Yield the parameters of an action, in its order; nothing is written.

    Parameters
    ----------
    action, context, names
        As for `PieceReader`.
    dropped : list of str
        Gets the sources that proved bad, and why; others with the same contents took their place.

    Raises
    ------
    VerificationError
        When every source of a piece has other bytes than its digest says, or changed since the plan.
    MsRecoverError
        When no source of a piece can be read.
    """
    with PieceReader(action, context, names) as reader:
        for item in action.parameters:
            data = bytearray(item.parameter.nbytes)
            digest = reader.attempt(partial(reader.fill, item, memoryview(data)))
            yield ComposedValue(item.parameter, data, digest)
        reader.check_unchanged()
        dropped += reader.dropped
