"""Local files: claim a temporary name, settle what was written, commit by rename.

The order of a commit is the one that survives a crash at any moment: write a temporary file in the target's
directory, fsync it, rename it over the target, fsync the directory.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from ms_recover.errors import FormatError, MissingInputError, StorageError
from ms_recover.file_names import temporary_name
from ms_recover.storage.system import drop_cached

READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
"""How what may be anything is opened for reading: opening a pipe would wait for a writer otherwise."""


class StoppedError(Exception):
    """The copy was asked to stop."""


@dataclass(frozen=True, slots=True)
class Temporary:
    """A temporary file that this process alone writes."""

    descriptor: int
    path: str


@contextmanager
def explain(doing: str, path: str, hint: str = "") -> Iterator[None]:
    """Turn an operating system error into one of ours that says what was being done, where, and what to do.

    Raises
    ------
    MissingInputError
        When the path is gone.
    StorageError
        On every other operating system error.
    """
    try:
        yield
    except (MissingInputError, StorageError):
        raise
    except OSError as error:
        advice = {
            errno.ENOSPC: "free some space there and run the command again",
            errno.EDQUOT: "the quota is used up: free some space and run the command again",
            errno.EACCES: "check who owns it, or run as that user",
            errno.EPERM: "check who owns it, or run as that user",
            errno.EROFS: "the file system is mounted read-only",
            errno.EIO: "the device fails: check the system log before anything else",
        }.get(error.errno or 0, hint)
        text = f"{doing} {path}: {error.strerror or error}" + (f"; {advice}" if advice else "")
        kind = MissingInputError if isinstance(error, FileNotFoundError) else StorageError
        raise kind(text) from error


def temporary_path(target: str) -> str:
    """Return the temporary name for `target`: hidden, so that neither MindSpore nor a scan takes it for a slice."""
    directory, name = os.path.split(target)
    return os.path.join(directory, temporary_name(name))


@contextmanager
def claim_temporary(target: str) -> Iterator[Temporary]:
    """Open the temporary file of `target`, empty, for this process alone; remove it unless it was renamed.

    A lock that dies with its process keeps two recoveries from writing one target; what a killed one left behind is
    taken over.

    Raises
    ------
    StorageError
        When another process is writing the same target, or the directory cannot be written.
    """
    path = temporary_path(target)
    with explain("writing", path):
        descriptor = _open_locked(path, target)
    try:
        yield Temporary(descriptor, path)
    finally:
        with suppress(OSError):
            if os.stat(path).st_ino == os.fstat(descriptor).st_ino:
                os.unlink(path)
        os.close(descriptor)


def _open_locked(path: str, target: str) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    while True:
        try:
            descriptor = os.open(path, flags, 0o600)
            writable = True
        except PermissionError:  # left behind with its final mode, which does not allow writing
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            writable = False
        try:
            _lock(descriptor, target)
            current = os.stat(path) if os.path.exists(path) else None
            if current is not None and current.st_ino == os.fstat(descriptor).st_ino:
                if writable:
                    os.ftruncate(descriptor, 0)
                    os.fchmod(descriptor, 0o600)
                    return descriptor
                os.unlink(path)
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # another process finished with it meanwhile: start again


def _lock(descriptor: int, target: str) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            raise StorageError(
                f"another recovery is writing {target}: wait for it, then run the command again"
            ) from None
        if error.errno not in (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS):
            raise


def make_directory(path: str, like: str, later: set[str] | None = None) -> None:
    """Make a directory that is not there, with the mode (and, for root, the owner) of `like`.

    Raises
    ------
    OSError
        When it cannot be made.
    """
    if os.path.isdir(path):
        return
    parent = os.path.dirname(path)
    make_directory(parent, os.path.dirname(like), later)
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        return  # made by another thread or process meanwhile
    status = os.stat(like)
    os.chmod(path, status.st_mode & 0o7777)
    if os.geteuid() == 0:
        os.chown(path, status.st_uid, status.st_gid)
    sync_directory(parent, later)


def settle(temporary: Temporary, like: os.stat_result) -> None:
    """Give a finished temporary file the mode, times and (for root) owner of its source, and make it durable.

    Its cached pages are dropped: see `ms_recover.storage.transfer`.

    Parameters
    ----------
    temporary : Temporary
        Written.
    like : os.stat_result
        The source's status.

    Raises
    ------
    OSError
        When the file system refuses, or the device failed to take what was written.
    """
    if os.geteuid() == 0:
        os.fchown(temporary.descriptor, like.st_uid, like.st_gid)
    os.utime(temporary.descriptor, ns=(like.st_atime_ns, like.st_mtime_ns))
    os.fchmod(temporary.descriptor, like.st_mode & 0o7777)
    os.fsync(temporary.descriptor)
    drop_cached(temporary.descriptor)


def commit(temporary: Temporary, target: str, later: set[str] | None = None) -> None:
    """Give a settled temporary file its final name, durably.

    Parameters
    ----------
    temporary : Temporary
        Settled, so that a crash never shows a final name with other bytes, mode or times.
    target : str
        Final name; what lies there is replaced.
    later : set of str, optional
        As for `sync_directory`.

    Raises
    ------
    OSError
        When the file system refuses.
    """
    os.rename(temporary.path, target)
    sync_directory(os.path.dirname(target), later)


def sync_directory(path: str, later: set[str] | None = None) -> None:
    """Make renames and new names in a directory durable; file systems that cannot are passed over.

    Parameters
    ----------
    path : str
        The directory.
    later : set of str, optional
        Note the directory here instead: it takes one fsync for all that happens in it. Until then a power failure may
        undo any of it, in any order, so that nothing may be removed on the strength of it.

    Raises
    ------
    OSError
        When it cannot be opened or synced.
    """
    if later is not None:
        later.add(path)
        return
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
            raise
    finally:
        os.close(descriptor)


def write_text(path: str, text: str, later: set[str] | None = None) -> None:
    """Write a small file whole or not at all; `later` as for `sync_directory`.

    Raises
    ------
    StorageError
        When it cannot be written.
    """
    target = os.path.abspath(path)
    with claim_temporary(target) as temporary, explain("writing", target):
        with open(temporary.descriptor, "wb", closefd=False) as file:
            file.write(text.encode())
        os.fchmod(temporary.descriptor, 0o644)
        os.fsync(temporary.descriptor)
        os.rename(temporary.path, target)
        sync_directory(os.path.dirname(target), later)


def read_text(path: str, most: int = 1 << 30) -> str:
    """Read a small text file.

    Raises
    ------
    MissingInputError
        When it is not there.
    StorageError
        When it cannot be read.
    FormatError
        When it is longer than `most` bytes or not UTF-8.
    """
    with explain("reading", path), open(path, "rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise FormatError(f"{path} is longer than {most} bytes: it is not a text file of ours")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise FormatError(f"{path} is not text") from None
