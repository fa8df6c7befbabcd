"""One copy action: from a peer's slice to a durable, checked file under its final name."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass

from ms_recover.errors import StorageError, VerificationError
from ms_recover.formats.ckpt import check_crc, read_header
from ms_recover.model.outcome import ActionResult
from ms_recover.model.plan import CopyAction, FileState
from ms_recover.storage.local import (
    Temporary,
    claim_temporary,
    commit,
    copy_bytes,
    digest_bytes,
    explain,
    make_directory,
)


@dataclass(frozen=True)
class CopyOptions:
    """How actions are carried out.

    Parameters
    ----------
    verify : bool
        Read the copy back and compare its digest before it gets its final name.
    stop : callable
        True ends the copy without a trace.
    progress : callable
        Told the number of bytes copied since the last call.
    """

    verify: bool
    stop: Callable[[], bool]
    progress: Callable[[int], None]


def check_source(root: str, action: CopyAction) -> None:
    """Check that a source is what the plan saw.

    Raises
    ------
    MissingInputError
        When it is gone.
    VerificationError
        When its size or modification time differ.
    """
    path = os.path.join(root, action.source)
    with explain("reading", path, "plan again: recover-ckpt plan"):
        _expect(os.stat(path), action.source_state, path)


def run_copy(root: str, action: CopyAction, options: CopyOptions) -> ActionResult:
    """Carry out one action.

    Parameters
    ----------
    root : str
        The tree.
    action : CopyAction
        What to do.
    options : CopyOptions
        How.

    Returns
    -------
    ActionResult
        ``"copied"``, or ``"already there"`` when the target holds the source's bytes.

    Raises
    ------
    MissingInputError, StorageError
        When reading or writing fails.
    VerificationError
        When the source or the target is not what the plan saw, or the copy is not what was read.
    ms_recover.storage.local.StoppedError
        When asked to stop.
    """
    source_path, target_path = os.path.join(root, action.source), os.path.join(root, action.target)
    with explain("reading", source_path, "plan again: recover-ckpt plan"):
        source = os.open(source_path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        status = os.fstat(source)
        _expect(status, action.source_state, source_path)
        if (digest := _same_already(source, target_path, action, options)) is not None:
            options.progress(status.st_size)
            return _result(action, "already there", 0, digest)
        with explain("making the directory of", target_path):
            make_directory(os.path.dirname(target_path), os.path.dirname(source_path))
        with claim_temporary(target_path) as temporary:
            digest = _fill(temporary, source, source_path, status, options)
            _expect(os.fstat(source), action.source_state, source_path)
            _check_target(target_path, action)
            with explain("committing", target_path):
                commit(temporary, target_path, status)
        return _result(action, "copied", status.st_size, digest)
    finally:
        os.close(source)


def _fill(temporary: Temporary, source: int, source_path: str, status: os.stat_result, options: CopyOptions) -> str:
    """Write, check and sync the temporary file; return its digest."""
    with explain(f"copying {source_path} to", temporary.path):
        size, digest = copy_bytes(source, temporary.descriptor, options.stop, options.progress)
        os.fsync(temporary.descriptor)
    if size != status.st_size:
        raise VerificationError(
            f"{source_path} gave {size} bytes instead of {status.st_size}: it changes while it is read; plan again"
        )
    header = read_header(temporary.path)
    problem = header.problems[0] if header.problems else None
    if problem is None and header.crc is not None:
        problem = check_crc(temporary.path, header, stop=options.stop)
    if problem is not None:
        raise VerificationError(
            f"the copy of {source_path} is damaged ({problem}): plan again, it takes another source"
        )
    if options.verify:
        with explain("reading back", temporary.path):
            back = digest_bytes(temporary.descriptor, options.stop, from_device=True)
        if back != digest:
            raise VerificationError(
                f"{temporary.path} reads back as {back}, written was {digest}: the device or its memory alters data; "
                "check the system log"
            )
    return digest


def _same_already(source: int, target_path: str, action: CopyAction, options: CopyOptions) -> str | None:
    """Return the digest when the target already holds the source's bytes.

    Raises
    ------
    VerificationError
        When a file lies there that the plan did not see.
    """
    try:
        target = os.open(target_path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno == errno.EACCES:
            return None  # unreadable: replaced by name when the plan saw it
        raise StorageError(f"reading {target_path}: {error.strerror}") from error
    try:
        if os.fstat(target).st_size == action.source_state.bytes:
            with explain("reading", target_path):
                digest = digest_bytes(target, options.stop)
                if digest == digest_bytes(source, options.stop):
                    return digest
    finally:
        os.close(target)
    _check_target(target_path, action)
    return None


def _check_target(path: str, action: CopyAction) -> None:
    """Check that under the target's name lies what the plan saw, so that nothing newer is replaced."""
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return
    if action.replaces is None or _state(status) != action.replaces:
        raise VerificationError(f"{path} appeared or changed after the plan was made; nothing was replaced: plan again")


def _expect(status: os.stat_result, expected: FileState, path: str) -> None:
    if _state(status) != expected:
        raise VerificationError(
            f"{path} is not what the plan saw (now {status.st_size} bytes, modified {status.st_mtime_ns} ns; "
            f"then {expected.bytes} bytes, modified {expected.mtime_ns} ns): plan again"
        )


def _state(status: os.stat_result) -> FileState:
    return FileState(status.st_size, status.st_mtime_ns)


def _result(action: CopyAction, status: str, size: int, digest: str) -> ActionResult:
    return ActionResult(action.rank, action.source_rank, action.source, action.target, status, size, digest)
