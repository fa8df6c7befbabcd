"""The slices that a compose action takes pieces from: opened, checked, and dropped when they prove bad."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Sequence
from types import TracebackType

import xxhash

from ms_recover.errors import MsRecoverError, StorageError, VerificationError
from ms_recover.execution.checks import check_unchanged, reading_source
from ms_recover.formats.header import parse_header
from ms_recover.formats.reading import pread
from ms_recover.model.compose import ComposeAction, ComposedParameter, Piece
from ms_recover.model.slices import ByteRange, SliceHeader
from ms_recover.storage.digest import name_digest
from ms_recover.storage.gather import WINDOW, Contents, gather
from ms_recover.storage.local import READ, StoppedError

_MOST_OPEN = 64


class BadGiverError(Exception):
    """A slice turned out to be no source.

    Attributes
    ----------
    number : int
        Which of the action's sources.
    error : MsRecoverError
        What is wrong with it.
    """

    def __init__(self, number: int, error: MsRecoverError) -> None:
        super().__init__(str(error))
        self.number = number
        self.error = error


class _Given(Contents):
    """A source's contents of one parameter; errors name the source."""

    def __init__(self, number: int, path: str, descriptor: int, ranges: Sequence[ByteRange]) -> None:
        super().__init__(descriptor, ranges)
        self._number = number
        self._path = path

    def read(self, offset: int, into: memoryview) -> None:
        try:
            super().read(offset, into)
        except OSError as error:
            told = StorageError(f"reading {self._path}: {error.strerror}; check the device, then plan again")
            raise BadGiverError(self._number, told) from error
        except EOFError as error:
            short = VerificationError(f"{self._path} ends too early: it changes while it is read; plan again")
            raise BadGiverError(self._number, short) from error


class Givers:
    """The sources of one action, used as a context manager.

    Parameters
    ----------
    root : str
        The tree.
    action : ComposeAction
        Whose sources.
    stop : callable
        True ends reading.

    Attributes
    ----------
    dropped : list of str
        Sources that proved bad, and why.
    """

    def __init__(self, root: str, action: ComposeAction, stop: Callable[[], bool]) -> None:
        self._root = root
        self._sources = action.sources
        self._stop = stop
        self._headers: dict[int, SliceHeader] = {}
        self._places: dict[int, dict[str, tuple[ByteRange, ...]]] = {}
        self._open: dict[int, int] = {}
        self._bad: dict[int, MsRecoverError] = {}
        self._proven: set[tuple[int, str]] = set()
        self.dropped: list[str] = []
        self._gave: dict[int, None] = {}

    def __enter__(self) -> Givers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for descriptor in self._open.values():
            os.close(descriptor)

    @property
    def used(self) -> list[str]:
        """Paths, relative to the root, of the sources that gave something, in the order in which they did."""
        return [self._sources[number].path for number in self._gave]

    def path(self, number: int) -> str:
        """Return the path of a source."""
        return os.path.join(self._root, self._sources[number].path)

    def status(self, number: int) -> os.stat_result:
        """Return the status of a source that was opened."""
        with reading_source(self.path(number)):
            return os.fstat(self._descriptor(number))

    def header(self, number: int) -> SliceHeader:
        """Return the header of a source.

        Raises
        ------
        MsRecoverError
            When it cannot be read or is damaged.
        """
        if number not in self._headers:
            descriptor = self._descriptor(number)  # by its name another file could be read by now
            with reading_source(self.path(number)):
                header = parse_header(pread(descriptor), self._sources[number].state.bytes, name=self.path(number))
            if header.problems:
                raise VerificationError(
                    f"{self.path(number)} is damaged ({header.problems[0]}): plan again to repair it"
                )
            self._headers[number] = header
            names = (parameter.name for parameter in header.parameters)
            self._places[number] = dict(zip(names, header.contents, strict=True))
        return self._headers[number]

    def model(self, preferred: int) -> int:
        """Return the source whose form is followed: the preferred one, or the first that can be read.

        Raises
        ------
        MsRecoverError
            When none can.
        """
        for number in (preferred, *(one for one in range(len(self._sources)) if one != preferred)):
            try:
                self.header(number)
            except MsRecoverError as error:
                self.drop(BadGiverError(number, error))
            else:
                return number
        raise self._bad[preferred]

    def contents(self, item: ComposedParameter) -> Generator[memoryview, None, None]:
        """Yield a parameter's contents in order; the memory is used again.

        Raises
        ------
        BadGiverError
            When a source does not give what it should.
        StoppedError
            When asked to stop.
        """
        name = item.parameter.name
        for piece in item.pieces:
            number = self._giver(piece)
            if piece.digest is not None and not piece.whole and (number, name) not in self._proven:
                self._prove(number, piece, name)

        def contents_of(piece: Piece) -> Contents:
            return self._contents(self._giver(piece), piece, name)

        for window in gather(item.pieces, item.parameter.nbytes, contents_of):
            if self._stop():
                raise StoppedError
            yield window

    def check(self, item: ComposedParameter, digest: str) -> None:
        """Compare what a parameter's contents were with what its source should have.

        Raises
        ------
        BadGiverError
            When they differ.
        """
        if len(item.pieces) == 1 and item.pieces[0].whole and item.pieces[0].digest not in (None, digest):
            self._accuse(self._giver(item.pieces[0]), item.parameter.name)
        for piece in item.pieces:
            self._gave.setdefault(self._giver(piece))

    def drop(self, failure: BadGiverError) -> None:
        """Do not use a source again; where another holds the same it is asked instead."""
        self._bad[failure.number] = failure.error
        self.dropped.append(f"rank {self._sources[failure.number].rank}: {failure.error}")

    def check_unchanged(self) -> None:
        """Check that the sources that gave something are still what the plan saw.

        Raises
        ------
        VerificationError
            When one is not.
        """
        for number in self._gave:
            if number in self._open:
                self._expect(number)

    def _giver(self, piece: Piece) -> int:
        for number in (piece.source, *piece.alternatives):
            if number not in self._bad:
                return number
        raise self._bad[piece.source]

    def _prove(self, number: int, piece: Piece, name: str) -> None:
        """Read a parameter of which only a part is taken as a whole: that is what its digest is of."""
        contents = self._contents(number, piece, name)
        digest = xxhash.xxh3_128()
        buffer = memoryview(bytearray(min(WINDOW, contents.bytes)))
        for offset in range(0, contents.bytes, WINDOW):
            if self._stop():
                raise StoppedError
            part = buffer[: min(WINDOW, contents.bytes - offset)]
            contents.read(offset, part)
            digest.update(part)
        if name_digest(digest) != piece.digest:
            self._accuse(number, name)
        self._proven.add((number, name))

    def _contents(self, number: int, piece: Piece, name: str) -> Contents:
        try:
            self.header(number)
            places = self._places[number].get(name)
            contents = _Given(number, self.path(number), self._descriptor(number), places or ())
            if places is None or contents.bytes != piece.source_bytes:
                raise VerificationError(f"{self.path(number)} does not hold {name!r} as the plan saw it: plan again")
        except MsRecoverError as error:
            raise BadGiverError(number, error) from error
        return contents

    def _descriptor(self, number: int) -> int:
        if number not in self._open:
            while len(self._open) >= _MOST_OPEN:
                oldest = next(iter(self._open))
                self._expect(oldest)
                os.close(self._open.pop(oldest))
            with reading_source(self.path(number)):
                self._open[number] = os.open(self.path(number), READ)
            self._expect(number)
        return self._open[number]

    def _expect(self, number: int) -> None:
        check_unchanged(os.fstat(self._open[number]), self._sources[number].state, self.path(number))

    def _accuse(self, number: int, name: str) -> None:
        error = VerificationError(
            f"{self.path(number)} holds other contents of {name!r} than its manifest or the plan says: "
            "it is damaged, plan again to repair it"
        )
        raise BadGiverError(number, error)
