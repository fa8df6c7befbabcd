"""One recovery at a time on a tree: a lock that a dead process does not hold."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

from ms_recover.errors import StorageError
from ms_recover.execution.directory_lock import is_held
from ms_recover.system_errors import explained

_log = logging.getLogger(__name__)
_POLL_SECONDS = 0.1


@contextmanager
def lock_tree(root: str, *, shared: bool = False, timeout: float = 0.0) -> Iterator[None]:
    """Hold the lock of a tree: ``flock`` on its directory, so that nothing is left behind.

    A training of this process may have locked the directory already: then it is held. Several holders of the `shared`
    lock go together; they exclude exclusive ones. It is waited for `timeout` seconds.

    Raises
    ------
    StorageError
        When another recovery holds it.
    MissingInputError
        When the tree is gone.
    """
    if is_held(root):
        yield
        return
    with explained("opening", root):
        descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _wait(descriptor, root, fcntl.LOCK_SH if shared else fcntl.LOCK_EX, timeout)
        yield
    finally:
        os.close(descriptor)


def _wait(descriptor: int, root: str, kind: int, timeout: float) -> None:
    deadline = time.monotonic() + timeout
    noted = False
    while True:
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS):
                return  # no locks on this file system: temporary files are still exclusive
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise StorageError(f"locking {root}: {error.strerror}") from error
            if time.monotonic() >= deadline:
                raise StorageError(f"another recovery is at work on {root}: wait for it, then run this again") from None
            if not noted:
                _log.info("another recovery is at work on %s: waiting up to %g s", root, timeout)
                noted = True
            time.sleep(_POLL_SECONDS)
        else:
            return
