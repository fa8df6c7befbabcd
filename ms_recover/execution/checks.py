"""What is checked before and after a file is written: nothing changed since the plan, and the device holds it."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from contextlib import AbstractContextManager

from ms_recover.errors import VerificationError
from ms_recover.model.actions import FileState, Replica
from ms_recover.storage.digest import digest_bytes
from ms_recover.storage.local import Temporary, explain


def reading_source(path: str) -> AbstractContextManager[None]:
    """Tell errors of reading a source as ours; where it cannot be had another plan may do without."""
    return explain("reading", path, "plan again: recover-ckpt plan")


def check_source(root: str, replica: Replica) -> None:
    """Check that a source is what the plan saw.

    Raises
    ------
    MissingInputError
        When it is gone.
    VerificationError
        When its size or modification time differ.
    """
    path = os.path.join(root, replica.path)
    with reading_source(path):
        check_unchanged(os.stat(path), replica.state, path)


def check_unchanged(status: os.stat_result, expected: FileState, path: str) -> None:
    """Check that a source's status is the one that the plan saw.

    Raises
    ------
    VerificationError
        When size or modification time differ.
    """
    if _state(status) != expected:
        raise VerificationError(
            f"{path} is not what the plan saw (now {status.st_size} bytes, modified {status.st_mtime_ns} ns; "
            f"then {expected.bytes} bytes, modified {expected.mtime_ns} ns): plan again"
        )


def check_target(path: str, replaces: FileState | None) -> None:
    """Check that under the target's name lies what the plan saw, so that nothing newer is replaced.

    Raises
    ------
    VerificationError
        When it is something else.
    """
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return
    if not stat.S_ISREG(status.st_mode):
        raise VerificationError(f"{path} is no file, and in the way of one: move it away, then plan again")
    if replaces is None or _state(status) != replaces:
        raise VerificationError(f"{path} appeared or changed after the plan was made; nothing was replaced: plan again")


def check_written(temporary: Temporary, digest: str, stop: Callable[[], bool]) -> None:
    """Check that the device holds what was written.

    Raises
    ------
    VerificationError
        When it reads back as something else.
    StorageError
        When it cannot be read.
    StoppedError
        When `stop` says so.
    """
    with explain("reading back", temporary.path):
        back = digest_bytes(temporary.descriptor, stop, from_device=True)
    if back != digest:
        raise VerificationError(
            f"{temporary.path} reads back as {back}, written was {digest}: the device or its memory alters data; "
            "check the system log"
        )


def _state(status: os.stat_result) -> FileState:
    return FileState(status.st_size, status.st_mtime_ns)
