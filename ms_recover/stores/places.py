"""Look at the places that a plan writes to, without changing anything.

A target costs a few calls: one for each directory on its way, which targets share, and two for its names. Nothing is
raised: what cannot be looked at is a fact too.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable
from dataclasses import replace

from ms_recover.file_names import temporary_name
from ms_recover.model.actions import FileState
from ms_recover.model.places import DiskFacts, FolderFacts, FolderFault, Places, TargetFacts, TargetKind
from ms_recover.stores.local import READ
from ms_recover.stores.system import clone
from ms_recover.system_errors import user_name

_FAULTS: dict[int, FolderFault] = {
    errno.ENOENT: "nowhere",
    errno.ELOOP: "circle",
    errno.ENOTDIR: "no folder",
}
_EFFECTIVE = os.access in os.supports_effective_ids


def look_at_places(root: str, targets: Iterable[str], folders: Iterable[str] = ()) -> Places | None:
    """Return the places of files below a root of this host; None where the root is no directory.

    Of further `folders` only where they lie is told.
    """
    real_root = os.path.realpath(root)
    looker = _Looker(real_root)
    if not os.path.isdir(real_root):
        return None
    found = {path: looker.target(path) for path in targets}
    for folder in folders:
        looker.folder(folder)
    return Places(
        root=root,
        real_root=real_root,
        user=user_name(),
        folders=looker.folders,
        targets=found,
        disks=looker.disks,
    )


def look_at_folder(path: str) -> tuple[FolderFacts, DiskFacts]:
    """Return the facts about one directory, which may have to be made, and about its file system."""
    looker = _Looker("/")
    relative = os.path.relpath(os.path.abspath(path), "/")
    facts = looker.folder("" if relative == "." else relative)
    return facts, looker.disks.get(-1 if facts.disk is None else facts.disk, DiskFacts())


def shared_targets(places: Places, copies: Iterable[tuple[str, str]]) -> frozenset[str]:
    """Return the targets, of pairs of source and target below the root, whose blocks the file system shares.

    It is tried with an unnamed file, which is gone at once. One copy on a file system stands for all from there.
    """
    known: dict[int, bool] = {}
    shared = set()
    for source, target in copies:
        folder = places.folders[os.path.dirname(target)]
        full = os.path.join(places.real_root, source)
        try:
            device = os.stat(full).st_dev
        except OSError:
            continue
        if device != folder.disk:
            continue
        if device not in known:
            known[device] = _is_shared(full, folder.base)
        if known[device]:
            shared.add(target)
    return frozenset(shared)


def _is_shared(source: str, folder: str) -> bool:
    try:
        reading = os.open(source, READ)
    except OSError:
        return False
    try:
        writing = os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError:
        return False
    else:
        try:
            return clone(reading, writing)
        finally:
            os.close(writing)
    finally:
        os.close(reading)


class _Looker:
    """Looks at each directory and each file system once."""

    def __init__(self, real_root: str) -> None:
        self._root = real_root
        self.folders: dict[str, FolderFacts] = {}
        self.disks: dict[int, DiskFacts] = {}
        self._user = os.geteuid()

    def folder(self, path: str) -> FolderFacts:
        """Return the facts about a directory below the root."""
        known = self.folders.get(path)
        if known is None:
            known = self.folders[path] = self._look(path)
        return known

    def _look(self, path: str) -> FolderFacts:
        if not path:
            return self._there(self._root, None, linked=False)
        ahead, _, name = path.rpartition("/")
        above = self.folder(ahead)
        real = os.path.join(above.real, name)
        if above.fault is not None or above.base != above.real:  # it is no directory, or has to be made itself
            return replace(above, real=real)
        try:
            status = os.lstat(real)
            if stat.S_ISDIR(status.st_mode):
                return self._there(real, status, linked=above.linked)
            if not stat.S_ISLNK(status.st_mode):
                return replace(above, real=real, fault="no folder", at=real)
            status, leads = os.stat(real), os.path.realpath(real)
            if not stat.S_ISDIR(status.st_mode):
                return replace(above, real=leads, linked=True, fault="no folder", at=real)
            return self._there(leads, status, linked=True)
        except FileNotFoundError as error:
            if os.path.lexists(real):
                return replace(above, real=real, fault="nowhere", at=real, words=error.strerror or "")
            return replace(above, real=real)
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:  # which is judged by its length
                return replace(above, real=real)
            fault = _FAULTS.get(error.errno or 0, "unreadable")
            return replace(above, real=real, fault=fault, at=real, words=error.strerror or str(error))

    def _there(self, real: str, status: os.stat_result | None, *, linked: bool) -> FolderFacts:
        try:
            status = os.stat(real) if status is None else status
            writable = os.access(real, os.W_OK | os.X_OK, effective_ids=_EFFECTIVE)
            read_only = not writable and bool(os.statvfs(real).f_flag & os.ST_RDONLY)
            if status.st_dev not in self.disks:
                self.disks[status.st_dev] = self._disk(real)
        except OSError as error:
            words = error.strerror or str(error)
            return FolderFacts(real=real, linked=linked, base=real, fault="unreadable", at=real, words=words)
        sticky = bool(status.st_mode & stat.S_ISVTX) and self._user not in (0, status.st_uid)
        return FolderFacts(
            real=real,
            linked=linked,
            base=real,
            writable=writable,
            read_only=read_only,
            sticky=sticky,
            disk=status.st_dev,
        )

    def _disk(self, real: str) -> DiskFacts:
        space = os.statvfs(real)
        blocks, files = (space.f_bfree, space.f_ffree) if self._user == 0 else (space.f_bavail, space.f_favail)
        return DiskFacts(
            free=blocks * space.f_frsize if space.f_blocks else None,
            files=files if space.f_files else None,
            block=max(space.f_frsize, 1),
            longest_name=space.f_namemax,
        )

    def target(self, path: str) -> TargetFacts:
        """Return what lies under a name below the root."""
        ahead, _, name = path.rpartition("/")
        folder = self.folder(ahead)
        if folder.fault is not None or folder.base != folder.real:
            return TargetFacts()
        found = self._named(os.path.join(folder.real, name))
        blocked = self._unfinished(os.path.join(folder.real, temporary_name(name)))
        return replace(found, blocked_by=blocked) if blocked else found

    def _named(self, full: str) -> TargetFacts:
        try:
            status = own = os.lstat(full)
            linked = stat.S_ISLNK(own.st_mode)
            if linked:
                status = os.stat(full)
        except FileNotFoundError:
            return TargetFacts(kind="link", linked=True) if os.path.lexists(full) else TargetFacts()
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:
                return TargetFacts()
            if error.errno in _FAULTS:
                return TargetFacts(kind="link", linked=True)
            return TargetFacts(kind="unknown", words=error.strerror or str(error))
        foreign = own.st_uid != self._user
        if stat.S_ISREG(status.st_mode):
            return TargetFacts(
                kind="file",
                linked=linked,
                state=FileState(status.st_size, status.st_mtime_ns),
                freed=0 if linked or own.st_nlink != 1 else own.st_blocks * 512,
                foreign=foreign,
            )
        kind: TargetKind = "folder" if stat.S_ISDIR(status.st_mode) else "other"
        return TargetFacts(kind=kind, linked=linked, foreign=foreign)

    def _unfinished(self, full: str) -> str:
        """Return why what lies under a temporary name cannot be taken over; empty where it can, or nothing does."""
        try:
            status = os.lstat(full)
        except OSError:
            return ""
        if not stat.S_ISREG(status.st_mode):
            return f"{full} is in the way of a temporary file and no regular file: move it away"
        if self._user not in (0, status.st_uid):
            return f"{full} was left behind by another user: remove it"
        return ""
