"""Where slices are read from: a tree of this host, or one that another host serves."""

from __future__ import annotations

import os
import stat
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import xxhash

from ms_recover.errors import MsRecoverError, VerificationError
from ms_recover.execution.manifests import manifest_of
from ms_recover.model.actions import FileState
from ms_recover.model.manifest import Manifest
from ms_recover.stores.atomic import FileForm
from ms_recover.stores.digest import digest_bytes, name_digest
from ms_recover.stores.local import READ, StoppedError
from ms_recover.stores.transfer import Writing, copy_bytes
from ms_recover.system_errors import explained, from_os_error

_CHUNK = 1 << 20
_HINT = "plan again: recover-ckpt plan"

Stop = Callable[[], bool]
"""Asked now and then; True ends the work with `StoppedError`."""


def never() -> bool:
    """Never stop."""
    return False


class BadSourceError(Exception):
    """A slice turned out to be no source, so that another may serve; `number` is its index in the action."""

    def __init__(self, error: MsRecoverError, number: int = 0) -> None:
        super().__init__(str(error))
        self.error, self.number = error, number


@contextmanager
def blaming_source(number: int = 0) -> Iterator[None]:
    """Raise errors of ms_recover in a block as `BadSourceError`."""
    try:
        yield
    except MsRecoverError as error:
        raise BadSourceError(error, number) from error


class OpenSlice(ABC):
    """One slice of a source, open for reading; a context manager.

    All bytes come from the one file that was opened, or the reading fails.

    Attributes
    ----------
    name, size
        Its absolute path, or its host and path; and its bytes.
    near : bool
        Whether reading it a second time costs little.
    """

    near = True

    def __init__(self, name: str, size: int) -> None:
        self.name, self.size = name, size

    def __enter__(self) -> OpenSlice:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:  # noqa: B027 (nothing to close is an ordinary case)
        """Give back what reading takes."""

    @abstractmethod
    def read_range(self, start: int, end: int, take: Callable[[memoryview], None], stop: Stop) -> None:
        """Give `take` the bytes from `start` up to `end`, in order and each once, in memory that is used again.

        `end` is no more than `size`; there are fewer bytes where the file ends too early.

        Raises
        ------
        MsRecoverError
            When they cannot be read.
        StoppedError
            When `stop` returns True.
        """

    @abstractmethod
    def check_unchanged(self) -> None:
        """Check that the slice still is the one that the plan saw.

        Raises
        ------
        VerificationError
            When its size or modification time differ.
        MsRecoverError
            When that cannot be found out.
        """

    @abstractmethod
    def form(self) -> FileForm:
        """Return permissions, time and owner; errors as for `check_unchanged`."""

    def read(self, offset: int, into: memoryview) -> int:
        """Read some bytes from `offset` on; return their number, 0 only at the end. Errors as for `read_range`."""
        count = 0

        def take(data: memoryview) -> None:
            nonlocal count
            into[count : count + len(data)] = data
            count += len(data)

        self.read_range(offset, min(offset + len(into), self.size), take, never)
        return count

    def read_at(self, offset: int, length: int) -> bytes:
        """Read `length` bytes, fewer only where the file ends; errors as for `read_range`."""
        data = bytearray(max(0, min(length, self.size - offset)))
        left = memoryview(data)
        while left and (count := self.read(offset + len(data) - len(left), left)):
            left = left[count:]
        return bytes(data[: len(data) - len(left)])

    def digest(self, stop: Stop) -> str:
        """Return the digest of the whole file; errors as for `read_range`."""
        digest = xxhash.xxh3_128()
        self.read_range(0, self.size, digest.update, stop)
        return name_digest(digest)

    def copy_to(self, descriptor: int, stop: Stop, progress: Callable[[int], None]) -> tuple[int, str]:
        """Copy the file into an empty one; as `ms_recover.stores.transfer.copy_bytes`.

        Errors of reading are those of `read_range`, errors of writing an OSError.
        """
        digest, writing, total = xxhash.xxh3_128(), Writing(descriptor), 0

        def take(data: memoryview) -> None:
            nonlocal total
            if stop():
                raise StoppedError
            digest.update(data)
            writing.write(data)
            progress(len(data))
            total += len(data)

        self.read_range(0, self.size, take, stop)
        return total, name_digest(digest)


class SliceSource(ABC):
    """The slices of one tree.

    Attributes
    ----------
    host : str or None
        Host and port that serve the tree; None for this host.
    """

    host: str | None = None

    @abstractmethod
    def list_paths(self) -> list[str]:
        """Return the paths of its files, slices at least, relative to its root and sorted."""

    @abstractmethod
    def stat(self, path: str) -> FileState:
        """Return size and modification time of a slice.

        Raises
        ------
        MissingInputError
            When there is none of that path.
        """

    @abstractmethod
    def open(self, path: str, expected: FileState) -> OpenSlice:
        """Open a slice, by its path relative to the root of the tree, that the plan saw as `expected`.

        Raises
        ------
        MissingInputError
            When there is none of that path.
        VerificationError
            When it is another than expected; at the latest when it is read.
        MsRecoverError
            When it cannot be opened.
        """

    def manifest(self, path: str) -> Manifest | None:
        """Return the manifest of a slice; None without a readable one."""
        return None


class LocalSlice(OpenSlice):
    """A slice of this host, by its absolute path; errors as for `SliceSource.open`."""

    def __init__(self, path: str, expected: FileState) -> None:
        super().__init__(path, expected.bytes)
        self._expected = expected
        with explained("reading", path, _HINT):
            self._descriptor = os.open(path, READ)
        try:
            self.check_unchanged()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)

    def read(self, offset: int, into: memoryview) -> int:
        """Read some bytes; see `OpenSlice.read`."""
        try:
            return os.preadv(self._descriptor, [into], offset)
        except OSError as error:
            raise from_os_error(error, "reading", self.name, "check the device, then plan again") from error

    def read_range(self, start: int, end: int, take: Callable[[memoryview], None], stop: Stop) -> None:
        """Read a range of bytes; see `OpenSlice.read_range`."""
        buffer = memoryview(bytearray(min(_CHUNK, max(0, end - start))))
        while start < end and (count := self.read(start, buffer[: end - start])):
            if stop():
                raise StoppedError
            take(buffer[:count])
            start += count

    def check_unchanged(self) -> None:
        """Compare the state of the open file; see `OpenSlice.check_unchanged`."""
        with explained("reading", self.name, _HINT):
            check_unchanged(os.fstat(self._descriptor), self._expected, self.name)

    def form(self) -> FileForm:
        """Return the form of the open file."""
        with explained("reading", self.name, _HINT):
            status = os.fstat(self._descriptor)
        return FileForm(stat.S_IMODE(status.st_mode), status.st_mtime_ns, (status.st_uid, status.st_gid))

    def digest(self, stop: Stop) -> str:
        """Read the whole file; see `OpenSlice.digest`."""
        with explained("reading", self.name, _HINT):
            return digest_bytes(self._descriptor, stop)

    def copy_to(self, descriptor: int, stop: Stop, progress: Callable[[int], None]) -> tuple[int, str]:
        """Copy as fast as the device allows; see `OpenSlice.copy_to`."""
        return copy_bytes(self._descriptor, descriptor, stop, progress)


class LocalSource(SliceSource):
    """A tree of this host."""

    def __init__(self, root: str) -> None:
        self.root = root

    def list_paths(self) -> list[str]:
        """Walk the tree, not through links."""
        found: list[str] = []
        with explained("reading", self.root):
            os.stat(self.root)
            for folder, _, names in os.walk(self.root):
                paths = (os.path.join(folder, name) for name in names)
                found += [os.path.relpath(path, self.root) for path in paths if os.path.isfile(path)]
        return sorted(found)

    def stat(self, path: str) -> FileState:
        """Return the state of a file below the root."""
        with explained("reading", os.path.join(self.root, path), _HINT):
            return _state(os.stat(os.path.join(self.root, path)))

    def open(self, path: str, expected: FileState) -> LocalSlice:
        """Open a file below the root."""
        return LocalSlice(os.path.join(self.root, path), expected)

    def manifest(self, path: str) -> Manifest | None:
        """Read the manifest beside a slice."""
        return manifest_of(os.path.join(self.root, path))


def check_unchanged(status: os.stat_result, expected: FileState, name: str) -> None:
    """Raise a VerificationError unless a source is a regular file with the state that the plan saw."""
    now = _state(status)
    if not stat.S_ISREG(status.st_mode) or now != expected:
        raise VerificationError(
            f"{name} is not what the plan saw (now {now.bytes} bytes, modified {now.mtime_ns} ns; "
            f"then {expected.bytes} bytes, modified {expected.mtime_ns} ns): plan again"
        )


def _state(status: os.stat_result) -> FileState:
    return FileState(status.st_size, status.st_mtime_ns)
