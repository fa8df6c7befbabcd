"""The interface of every store: the files of one tree, wherever they lie.

A path is relative to the root of the tree, with ``/`` between its parts; the root itself is the empty path.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import xxhash

from ms_recover.errors import (
    AnswerError,
    FormatError,
    PermissionDeniedError,
    StorageError,
    UsageError,
    VerificationError,
)
from ms_recover.model.actions import FileState
from ms_recover.model.contents import Contents
from ms_recover.model.inventory import SliceFile
from ms_recover.stores.atomic import FileForm
from ms_recover.stores.digest import name_digest
from ms_recover.stores.local import StoppedError
from ms_recover.stores.transfer import Writing

Stop = Callable[[], bool]
"""Asked now and then; True ends the work with `StoppedError`."""

EntryKind = Literal["file", "folder", "link", "other"]
"""``link``: a symbolic link, whatever it leads to; only where the store has some."""


def never() -> bool:
    """Never stop."""
    return False


def changed_error(name: str, now: FileState, then: FileState) -> VerificationError:
    """Return the error of a file that is another than it was."""
    return VerificationError(
        f"{name} is not what the plan saw (now {now.bytes} bytes, modified {now.mtime_ns} ns; "
        f"then {then.bytes} bytes, modified {then.mtime_ns} ns): plan again"
    )


def concerns_all(error: Exception) -> bool:
    """Whether an error of a distant store concerns all that it has, and not the one file that was asked for.

    A server that does not answer, or answers with errors or with what cannot be right, is no source at all.
    """
    return isinstance(error, StorageError | AnswerError) and not isinstance(error, PermissionDeniedError)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileInfo:
    """A file, once links are followed.

    Attributes
    ----------
    size, mtime_ns : int
        Bytes, and the time of the last modification as exactly as the store has it.
    inode : tuple of int, optional
        Device and inode: two paths that have the same are one file. None where the store does not know.
    version : str, optional
        Changes whenever the contents do, such as an entity tag; None where the store has none.
    digest : str, optional
        XXH3-128 as `ms_recover.stores.digest` names it, where the store knows it without reading.
    """

    size: int
    mtime_ns: int
    inode: tuple[int, int] | None = None
    version: str | None = None
    digest: str | None = None

    @property
    def state(self) -> FileState:
        """Size and modification time."""
        return FileState(self.size, self.mtime_ns)


class Entry(NamedTuple):
    """One name in a folder; a tuple, because a scan makes one for every name.

    Attributes
    ----------
    info : FileInfo, optional
        What `Store.stat` returns of a file, where listing it showed that too.
    """

    name: str
    kind: EntryKind
    info: FileInfo | None = None


class OpenFile(ABC):
    """One file of a store, open for reading; a context manager; threads do not share it.

    All bytes come from the one file that was opened, or the reading fails.

    Attributes
    ----------
    name : str
        Its absolute path, or its URL without secrets.
    size : int
        Its bytes.
    near : bool
        Whether reading it a second time costs little.
    path : str or None
        Where its bytes lie on this host; None where they lie elsewhere.
    """

    near = True
    path: str | None = None

    def __init__(self, name: str, size: int) -> None:
        self.name, self.size = name, size

    def __enter__(self) -> OpenFile:
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
        """Check that the file still is the one that was opened.

        Raises
        ------
        VerificationError
            When its size, modification time or version differ.
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

    def read_parts(self, offset: int, parts: Sequence[memoryview]) -> int:
        """Read some bytes from `offset` on into `parts`, one behind the other; result and errors as for `read`."""
        return self.read(offset, next(part for part in parts if part))

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
        """Copy the file into an empty local one; return the bytes copied and their digest.

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


class NewFile(ABC):
    """A file of a store that gets its name when it is complete, and otherwise leaves nothing under it.

    A context manager; left without `commit`, what was written goes.
    """

    @abstractmethod
    def __enter__(self) -> NewFile: ...

    @abstractmethod
    def __exit__(self, *_: object) -> None: ...

    @abstractmethod
    def write(self, data: bytes | memoryview) -> None:
        """Append bytes.

        Raises
        ------
        MsRecoverError
            When they cannot be written.
        """

    @abstractmethod
    def commit(self, form: FileForm | None = None) -> None:
        """Give the file its name, durably as far as the store can; a file of that name is replaced.

        Permissions, time and owner are kept where the store has such.

        Raises
        ------
        MsRecoverError
            When it cannot be done; the name then has what it had.
        """


class Store(ABC):
    """The files of one tree.

    Attributes
    ----------
    url : str
        The absolute path of a local tree, otherwise a URL without secrets; it stands in messages, plans and manifests.
    host : str or None
        The host that has the bytes, as provenance names it; None for this host.
    near : bool
        Whether a request costs little, so that several at a time gain nothing.
    has_folders : bool
        Whether a folder may be missing, and is made for the first file in it; otherwise names begin alike, no more, and
        what is missing when a list is asked for is the bucket.
    """

    host: str | None = None
    near = False
    has_folders = True

    def __init__(self, url: str) -> None:
        self.url = url

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:  # noqa: B027 (nothing to close is an ordinary case)
        """Give back connections, threads and files."""

    @abstractmethod
    def list(self, folder: str) -> list[Entry]:
        """Return what lies in a folder, sorted by name.

        Raises
        ------
        MissingInputError
            When there is no such folder. A store that knows no empty folders returns nothing for one instead.
        PermissionDeniedError
            When this user may not list it.
        StorageError
            When it cannot be listed otherwise; a list that is known to be incomplete is an error too.
        AnswerError
            When a server answers with what cannot be right; so in all that is read from one.
        """

    @abstractmethod
    def stat(self, path: str) -> FileInfo:
        """Return the state of a regular file.

        Raises
        ------
        MissingInputError
            When there is none of that path.
        FormatError
            When it is no regular file.
        PermissionDeniedError, StorageError
            As for `list`.
        """

    def folder_inode(self, folder: str) -> tuple[int, int] | None:
        """Return device and inode of a folder, by which two names of one are known; None where there is no such.

        Errors as for `list`.
        """
        return None

    @abstractmethod
    def open(self, path: str, expected: FileState | None = None) -> OpenFile:
        """Open a file that is, where that is given, still as `expected`.

        Raises
        ------
        VerificationError
            When it is another than expected; at the latest when it is read.
        MissingInputError, FormatError, PermissionDeniedError, StorageError
            As for `stat`; at the latest when it is read.
        """

    def read_small(self, path: str, what: str, limit: int) -> bytes:
        """Return the bytes of a file, `what` in messages, of at most `limit` bytes.

        Raises
        ------
        FormatError
            When it is larger.
        MissingInputError, PermissionDeniedError, StorageError
            As for `open`.
        """
        with self.open(path) as file:
            if file.size > limit:
                raise FormatError(
                    f"{file.name}: {file.size} bytes, and {what} never has more than {limit}; check the path"
                )
            return file.read_at(0, file.size)

    def digests(self, files: Sequence[SliceFile], progress: Callable[[int], None]) -> Contents | None:
        """Digest slices where their bytes are; None where that cannot be done, so that they have to be read.

        `progress` is given the bytes read since its last call. A slice that could not be read, or is not what `files`
        says, has a problem instead.

        Raises
        ------
        MsRecoverError
            When the store cannot be reached any more, or sends an invalid answer.
        """
        return None

    def create(self, path: str) -> NewFile:
        """Return a file to write.

        Raises
        ------
        UsageError
            When the store is one that is only read.
        """
        raise UsageError(f"{self.url} is only read: write to a local directory or to a store that can be written")

    def remove(self, path: str) -> None:
        """Remove a file; one that is not there is no error. Errors as for `create`, and StorageError."""
        raise UsageError(f"{self.url} is only read: nothing was removed")

    def link(self, path: str, to: str) -> None:
        """Give a file a second name, which is free; where the store has no links a copy, read back and compared.

        Errors are those of `open` and `create`, and VerificationError when the copy is not what was read.
        """
        digest = xxhash.xxh3_128()
        with self.open(path) as file, self.create(to) as new:
            form = file.form()

            def take(piece: memoryview) -> None:
                digest.update(piece)
                new.write(piece)

            file.read_range(0, file.size, take, never)
            file.check_unchanged()
            new.commit(form)
        with self.open(to) as copy:
            if copy.digest(never) != name_digest(digest):
                raise VerificationError(
                    f"{self.url}/{to} does not give back what was written there: check the store and the device"
                )

    def rename(self, path: str, to: str) -> None:
        """Give a file another name, which is free, and never none; errors as for `link` and `remove`."""
        self.link(path, to)
        self.remove(path)

    def sync(self, folder: str) -> None:  # noqa: B027 (most stores show a name when it is durable)
        """Make the names in a folder durable; a StorageError when that fails."""
