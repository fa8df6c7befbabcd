"""Requests for bytes between workers: a worker reads slices that lie on another node, range by range."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ms_recover.engine.roots import open_root
from ms_recover.engine.workers import RootIdentity
from ms_recover.errors import FormatError, MissingInputError, UsageError, VerificationError
from ms_recover.model.actions import FileState
from ms_recover.stores.atomic import FileForm
from ms_recover.stores.local import READ
from ms_recover.stores.store import Entry, EntryKind, FileInfo
from ms_recover.system_errors import explained

MOST_BYTES = 4 << 20
"""Of one reply."""
_NO_NAMES = frozenset(("", ".", ".."))


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Bytes of one file of a tree, its state alone, or the names in a folder."""

    kind: Literal["read", "list"]
    root: str
    identities: frozenset[RootIdentity]
    """Of the tree that is meant."""
    path: str
    """Relative to the root."""
    start: int = 0
    end: int = 0
    expected: FileState | None = None
    """The state that the file must have."""
    inode: tuple[int, int] | None = None
    """The file must be this one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """The answer."""

    data: bytes = b""
    info: FileInfo | None = None
    form: FileForm | None = None
    """Permissions and time; owners are those of another host."""
    entries: tuple[Entry, ...] = ()


def answer(request: Request, roots: Mapping[str, str]) -> Reply:
    """Read what is asked for, of regular files that lie below the root once links are followed.

    Raises
    ------
    MissingInputError
        When it is not there.
    VerificationError
        When the tree or the file is another, or leads out of the tree.
    MsRecoverError
        When it cannot be read.
    """
    root = open_root(request.root, request.identities, roots)
    if request.path and ("\0" in request.path or not _NO_NAMES.isdisjoint(request.path.split("/"))):
        raise UsageError(f"{request.path!r} is no path below a root")
    path = os.path.join(root, request.path) if request.path else root
    return _list(path, root) if request.kind == "list" else _read(path, root, request)


def _list(path: str, root: str) -> Reply:
    with explained("reading", path):
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            _check_inside(descriptor, path, root)
            with os.scandir(descriptor) as entries:
                found = [Entry(name=entry.name, kind=_kind(entry)) for entry in entries]
        finally:
            os.close(descriptor)
    return Reply(entries=tuple(sorted(found, key=lambda entry: entry.name)))


def _read(path: str, root: str, request: Request) -> Reply:
    with explained("reading", path):
        try:
            descriptor = os.open(path, READ)
        except FileNotFoundError:
            raise MissingInputError(f"{path}: no such file; plan again") from None
        try:
            status = os.fstat(descriptor)
            _check_inside(descriptor, path, root)
            if not stat.S_ISREG(status.st_mode):
                raise FormatError(f"{path} is no regular file: name the file itself")
            info = FileInfo(size=status.st_size, mtime_ns=status.st_mtime_ns, inode=(status.st_dev, status.st_ino))
            if request.expected not in (None, info.state) or request.inode not in (None, info.inode):
                raise VerificationError(f"{path} is not what the plan saw: plan again")
            wanted = min(request.end, request.start + MOST_BYTES) - request.start
            data = os.pread(descriptor, max(wanted, 0), request.start)
        finally:
            os.close(descriptor)
    return Reply(data=data, info=info, form=FileForm(stat.S_IMODE(status.st_mode), status.st_mtime_ns))


def _check_inside(descriptor: int, path: str, root: str) -> None:
    """Compare the place of the open file; its name may lead elsewhere by now."""
    place = os.readlink(f"/proc/self/fd/{descriptor}")
    if place != root and not place.startswith(os.path.join(root, "")):
        raise VerificationError(f"{path} leads out of the tree through a link: nothing was read")


def _kind(entry: os.DirEntry[str]) -> EntryKind:
    if entry.is_symlink():
        return "link"
    if entry.is_dir(follow_symlinks=False):
        return "folder"
    return "file" if entry.is_file(follow_symlinks=False) else "other"
