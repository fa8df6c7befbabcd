"""Make directories, and their renames and new names durable."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Sequence

from ms_recover.errors import MsRecoverError
from ms_recover.stores.threads import in_threads
from ms_recover.system_errors import explained


class DirectorySyncs:
    """Directories to make durable together: one fsync for everything that happens in each.

    Until then a power failure may undo any of it, in any order, so that nothing may be removed on the strength of it.
    """

    def __init__(self) -> None:
        self._paths: set[str] = set()
        self._lock = threading.Lock()

    def add(self, path: str) -> None:
        """Note a directory; from any thread."""
        with self._lock:
            self._paths.add(path)

    @property
    def paths(self) -> Sequence[str]:
        """The directories noted so far, sorted."""
        with self._lock:
            return sorted(self._paths)

    def sync_all(self, jobs: int) -> list[MsRecoverError]:
        """Make the directories durable in so many threads; return the errors of those that cannot be synced."""

        def sync(path: str) -> MsRecoverError | None:
            try:
                with explained("syncing", path):
                    sync_directory(path)
            except MsRecoverError as error:
                return error
            return None

        return [error for error in in_threads(jobs, sync, self.paths) if error is not None]


def sync_directory(path: str, syncs: DirectorySyncs | None = None) -> None:
    """Make renames and new names in a directory durable, or note it in `syncs` for the caller to sync later.

    File systems that cannot sync directories are passed over; an OSError on every other failure.
    """
    if syncs is not None:
        syncs.add(path)
        return
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
            raise
    finally:
        os.close(descriptor)


def make_directories(path: str) -> None:
    """Make a directory and its missing parents with the usual modes, durably; an OSError when one cannot be made."""
    parent = os.path.dirname(os.path.abspath(path))
    if os.path.isdir(path):
        return
    make_directories(parent)
    os.makedirs(path, exist_ok=True)
    sync_directory(parent)


def make_directory(path: str, like: str, root: str, syncs: DirectorySyncs | None = None) -> None:
    """Make a missing directory, its missing parents too, with the mode and (for root) the owner of others.

    It gets those of `like`, and its parents those of the parents of `like`, up to the tree `root`, which is never made.
    `syncs` is as for `sync_directory`; an OSError when a directory cannot be made.
    """
    if path == root or os.path.isdir(path):
        return
    parent = os.path.dirname(path)
    make_directory(parent, like if like == root else os.path.dirname(like), root, syncs)
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        if os.path.isdir(path):
            return  # made by another thread or process meanwhile
        raise
    status = os.stat(like)
    os.chmod(path, status.st_mode & 0o7777)
    if os.geteuid() == 0:
        os.chown(path, status.st_uid, status.st_gid)
    sync_directory(parent, syncs)
