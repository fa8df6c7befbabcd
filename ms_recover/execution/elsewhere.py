"""Slices that lie on other hosts: written, checked and made durable as those of this one are."""

from __future__ import annotations

import os
import stat
from abc import ABC, abstractmethod
from collections.abc import Callable

import xxhash

from ms_recover.errors import VerificationError
from ms_recover.formats.header import find_problem, parse_header
from ms_recover.formats.reading import pread
from ms_recover.model.actions import Replica
from ms_recover.model.manifest import Manifest
from ms_recover.storage.digest import name_digest
from ms_recover.storage.local import StoppedError, Temporary, make_directory, settle
from ms_recover.storage.transfer import Writing


class Elsewhere(ABC):
    """The slices of a plan that lie on other hosts."""

    @abstractmethod
    def where(self, path: str) -> str | None:
        """Return the host that has a slice, in words without a slash; None for a slice of this host."""

    @abstractmethod
    def manifest(self, path: str) -> Manifest | None:
        """Return the manifest of a slice, None when it has none."""

    @abstractmethod
    def fetch(self, replica: Replica, take: Callable[[memoryview], None], stop: Callable[[], bool]) -> int:
        """Bring the bytes of a slice, in order and once.

        Parameters
        ----------
        replica : Replica
            Which, and what it must still be.
        take : callable
            Given the next bytes; the memory is used again.
        stop : callable
            True ends it.

        Returns
        -------
        int
            The file's permissions.

        Raises
        ------
        MsRecoverError
            When the host does not give what it should.
        StoppedError
            When asked to stop.
        """


class Fetching:
    """Brings slices of other hosts into a tree.

    Parameters
    ----------
    root : str
        The tree; its lock is held.
    elsewhere : Elsewhere
        Where slices are.
    """

    def __init__(self, root: str, elsewhere: Elsewhere) -> None:
        self.root, self._elsewhere = root, elsewhere

    def where(self, path: str) -> str | None:
        """Return the host that has a slice; None for this one."""
        return self._elsewhere.where(path)

    def manifest(self, path: str) -> Manifest | None:
        """Return the manifest of a slice of another host."""
        return self._elsewhere.manifest(path)

    def fill(
        self,
        temporary: Temporary,
        name: str,
        replica: Replica,
        stop: Callable[[], bool],
        progress: Callable[[int], None] = lambda count: None,
    ) -> str:
        """Write, check and sync a temporary file.

        Parameters
        ----------
        temporary : Temporary
            Empty.
        name : str
            What the file will be called; its ending tells the format.
        replica : Replica
            What is fetched.
        stop, progress : callable
            As for `ms_recover.execution.copy.CopyOptions`.

        Returns
        -------
        str
            The digest.

        Raises
        ------
        VerificationError
            When it is not what the plan saw, or damaged.
        MsRecoverError
            When it cannot be had.
        OSError
            When it cannot be written.
        """
        digest, writing = xxhash.xxh3_128(), Writing(temporary.descriptor)
        place = f"{self.where(replica.path)}/{replica.path}"

        def take(data: memoryview) -> None:
            if stop():
                raise StoppedError
            digest.update(data)
            writing.write(data)
            progress(len(data))

        mode = self._elsewhere.fetch(replica, take, stop)
        status, told = os.fstat(temporary.descriptor), name_digest(digest)
        if status.st_size != replica.state.bytes:
            raise VerificationError(f"{place} gave {status.st_size} bytes instead of {replica.state.bytes}: plan again")
        if replica.digest not in (None, told):
            raise VerificationError(
                f"{place} holds other bytes ({told}) than its manifest or the plan says ({replica.digest}): it is "
                "damaged, or its host lies"
            )
        header = parse_header(pread(temporary.descriptor), status.st_size, name=name)
        if (problem := find_problem(temporary.path, header, stop=stop)) is not None:
            raise VerificationError(f"{place} is damaged ({problem}): plan again to repair it")
        settle(temporary, _like(status, mode, replica.state.mtime_ns, os.path.dirname(temporary.path)))
        return told

    def make_directory(self, path: str, later: set[str] | None) -> None:
        """Make a directory below the root, with the root's permissions.

        Raises
        ------
        OSError
            When it cannot be made.
        """
        if path == self.root or os.path.isdir(path):
            return
        self.make_directory(os.path.dirname(path), later)
        make_directory(path, self.root, later)


def _like(status: os.stat_result, mode: int, mtime_ns: int, folder: str) -> os.stat_result:
    """Return the status that a fetched file is to have: owners are those of its directory."""
    owner = os.stat(folder)
    fields = [stat.S_IFREG | (mode & 0o777), status.st_ino, status.st_dev, 1, owner.st_uid, owner.st_gid]
    seconds = mtime_ns // 10**9
    fields += [status.st_size, seconds, seconds, seconds]
    return os.stat_result(fields, {"st_atime_ns": mtime_ns, "st_mtime_ns": mtime_ns})
