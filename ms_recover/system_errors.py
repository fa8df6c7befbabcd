"""Errors of the operating system as errors of ms_recover: the act, the path, the cause and the next step."""

from __future__ import annotations

import errno
import os
import pwd
from collections.abc import Iterator
from contextlib import contextmanager

from ms_recover.errors import MissingInputError, MsRecoverError, PermissionDeniedError, StorageError

DENIED = (errno.EACCES, errno.EPERM)
_ADVICE = {
    errno.ENOSPC: "free some space there and run the command again",
    errno.EDQUOT: "the quota is used up: free some space and run the command again",
    errno.EROFS: "the file system is mounted read-only",
    errno.EIO: "the device fails: check the system log; if it is this file alone, move it away, then apply",
    errno.ENAMETOOLONG: "the file system takes no name as long as this: rename it",
    errno.ELOOP: "it is a link where none is followed, or its links lead in a circle: put a file or a directory there",
}


@contextmanager
def explained(doing: str, path: str | os.PathLike[str], hint: str = "") -> Iterator[None]:
    """Raise the operating system errors of a block as errors of ms_recover.

    Parameters
    ----------
    doing : str
        The act as a participle, such as ``"writing"``.
    path : str or path-like
        The file or directory.
    hint : str
        The next step, where the cause suggests none.

    Raises
    ------
    MissingInputError
        When the path is gone.
    PermissionDeniedError
        When this user may not.
    StorageError
        On every other operating system error.
    """
    try:
        yield
    except MsRecoverError:
        raise
    except OSError as error:
        raise from_os_error(error, doing, path, hint) from error


def from_os_error(
    error: OSError, doing: str, path: str | os.PathLike[str], hint: str = ""
) -> MissingInputError | StorageError:
    """Return the error to raise in place of `error`; parameters as for `explained`."""
    if error.errno in DENIED:
        return PermissionDeniedError(
            f"{doing} {os.fspath(path)}: {denied_text()}; check who owns it, or run as that user"
        )
    advice = _ADVICE.get(error.errno or 0, hint)
    text = f"{doing} {os.fspath(path)}: {error.strerror or error}" + (f"; {advice}" if advice else "")
    return MissingInputError(text) if isinstance(error, FileNotFoundError) else StorageError(text)


def is_failing(error: BaseException) -> bool:
    """Whether an error is that of a device that fails to give what it holds."""
    cause = error if error.__cause__ is None else error.__cause__
    return isinstance(cause, OSError) and cause.errno == errno.EIO


def denied_text() -> str:
    """Return the reason of a permission error; it names the user."""
    return f"permission denied for user {user_name()}"


def user_name() -> str:
    """Return the name and number of the user that this process runs as."""
    uid = os.geteuid()
    try:
        return f"{pwd.getpwuid(uid).pw_name} (uid {uid})"
    except KeyError:  # a user of a container often has no name
        return f"with uid {uid}"
