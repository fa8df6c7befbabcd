"""Digest a slice in one pass: the whole file, and each parameter's contents where they are asked for."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Sequence

import xxhash

from ms_recover.errors import FormatError
from ms_recover.model.manifest import DIGEST, Digests
from ms_recover.model.slices import ByteRange
from ms_recover.stores.local import READ
from ms_recover.stores.reading import read_through


class Digester:
    """Digests of bytes that arrive in file order; `contents` has the ranges of each parameter."""

    def __init__(self, contents: Sequence[Sequence[ByteRange]] = ()) -> None:
        self._file = xxhash.xxh3_128()
        self._parameters = [xxhash.xxh3_128() for _ in contents]
        self._ranges = sorted((piece.start, piece.end, i) for i, pieces in enumerate(contents) for piece in pieces)
        self._next = 0
        self._offset = 0

    def update(self, data: memoryview) -> None:
        """Take the next bytes of the file."""
        self._file.update(data)
        start, end = self._offset, self._offset + len(data)
        while self._next < len(self._ranges):
            first, last, parameter = self._ranges[self._next]
            if first >= end:
                break
            if last > start:
                self._parameters[parameter].update(data[max(first, start) - start : min(last, end) - start])
            if last > end:
                break
            self._next += 1
        self._offset = end

    def digests(self) -> Digests:
        """Return the digests of the bytes so far."""
        return Digests(name_digest(self._file), tuple(name_digest(parameter) for parameter in self._parameters))


def name_digest(digest: xxhash.xxh3_128) -> str:
    """Return a digest with its name in front."""
    return f"{DIGEST}:{digest.hexdigest()}"


def digest_of(data: bytes | memoryview) -> str:
    """Return the digest of bytes in memory, with its name in front, as a manifest states it."""
    return name_digest(xxhash.xxh3_128(data))


def digest_file(
    path: str | os.PathLike[str],
    contents: Sequence[Sequence[ByteRange]] = (),
    *,
    stop: Callable[[], bool] = lambda: False,
    progress: Callable[[int], None] = lambda count: None,
    from_device: bool = False,
) -> Digests:
    """Digest a file and the parameters in it; `contents` has the ranges of each parameter's contents.

    `progress` is given the bytes read since the last call; `stop` and `from_device` are those of `read_through`.

    Raises
    ------
    FormatError
        When it is no regular file.
    StoppedError, OSError
        As `read_through`.
    """
    digester = Digester(contents)
    descriptor = os.open(path, READ)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise FormatError(f"{os.fspath(path)} is no regular file: name the file itself")
        for piece in read_through(descriptor, stop, from_device=from_device):
            digester.update(piece)
            progress(len(piece))
    finally:
        os.close(descriptor)
    return digester.digests()


def digest_bytes(descriptor: int, stop: Callable[[], bool], *, from_device: bool = False) -> str:
    """Digest an open file from its start; parameters and errors as for `read_through`."""
    digest = xxhash.xxh3_128()
    for piece in read_through(descriptor, stop, from_device=from_device):
        digest.update(piece)
    return name_digest(digest)


def holds(path: str, size: int, expected: str | None, stop: Callable[[], bool]) -> str | None:
    """Return the digest of a file that holds the expected bytes, None when it does not.

    A file of another size in bytes is not read. Without an expected digest the size alone counts. Errors are a
    StoppedError when `stop` returns True, and an OSError when nothing lies there or it cannot be read.
    """
    descriptor = os.open(path, READ)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size != size:
            return None
        digest = digest_bytes(descriptor, stop)
    finally:
        os.close(descriptor)
    return digest if expected in (None, digest) else None
