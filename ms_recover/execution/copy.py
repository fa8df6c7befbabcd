"""One copy action: from a peer's slice to a durable, checked file under its final name."""

from __future__ import annotations

import errno
import logging
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from ms_recover.errors import MsRecoverError, StorageError, VerificationError
from ms_recover.execution.elsewhere import Fetching, digest_there
from ms_recover.execution.staging import Staging
from ms_recover.formats.header import check_crc, read_header
from ms_recover.model.actions import CopyAction, FileState, Replica
from ms_recover.model.outcome import ActionResult
from ms_recover.storage.local import (
    Temporary,
    claim_temporary,
    commit,
    explain,
    make_directory,
    settle,
)
from ms_recover.storage.transfer import copy_bytes, digest_bytes

_log = logging.getLogger(__name__)
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
"""Opening a pipe would wait for a writer otherwise."""
_TARGET_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EFBIG)


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
    later : set of str or None
        Where directories are noted that the caller syncs when everything is done; None to sync them at once.
    fetching : Staging or None
        What brings slices of other hosts.
    """

    verify: bool
    stop: Callable[[], bool]
    progress: Callable[[int], None]
    later: set[str] | None = None
    fetching: Staging | None = None


class BadSourceError(Exception):
    """A source turned out to be no source.

    Attributes
    ----------
    error : MsRecoverError
        What is wrong with it.
    """

    def __init__(self, error: MsRecoverError) -> None:
        super().__init__(str(error))
        self.error = error


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
    with explain("reading", path, "plan again: recover-ckpt plan"):
        _expect(os.stat(path), replica.state, path)


def run_copy(root: str, action: CopyAction, options: CopyOptions) -> ActionResult:
    """Carry out one action: copy from the first replica that proves sound.

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
        ``"copied"``, or ``"already there"`` when the target holds the source's bytes; replicas that failed are named.

    Raises
    ------
    MissingInputError, StorageError
        When reading or writing fails.
    VerificationError
        When no source is what the plan saw, the target is not, or the copy is not what was written.
    ms_recover.storage.local.StoppedError
        When asked to stop.
    """
    dropped: list[str] = []
    last: MsRecoverError | None = None
    for replica in (action.replica, *action.alternatives):
        try:
            if options.fetching is not None and options.fetching.where(replica.path) is not None:
                result = _fetch_from(root, action, replica, options, options.fetching)
            else:
                result = _copy_from(root, action, replica, options)
        except BadSourceError as failure:
            last = failure.error
            dropped.append(f"rank {replica.rank}: {last}")
            _log.warning("rank %d: source dropped: %s", action.rank, last)
        else:
            return replace(result, dropped=tuple(dropped))
    assert last is not None
    if len(dropped) > 1:
        raise VerificationError(f"no source is left for rank {action.rank}: {'; '.join(dropped)}") from last
    raise last


def _copy_from(root: str, action: CopyAction, replica: Replica, options: CopyOptions) -> ActionResult:
    source_path, target_path = os.path.join(root, replica.path), os.path.join(root, action.target)
    with _blame_source(), explain("reading", source_path, "plan again: recover-ckpt plan"):
        source = os.open(source_path, _READ)
    try:
        status = os.fstat(source)
        with _blame_source():
            _expect(status, replica.state, source_path)
        if (digest := _same_already(source, target_path, action, replica, options)) is not None:
            options.progress(status.st_size)
            return _result(action, replica, "already there", 0, digest)
        with explain("making the directory of", target_path):
            make_directory(os.path.dirname(target_path), os.path.dirname(source_path), options.later)
        with claim_temporary(target_path) as temporary:
            digest = _fill(temporary, source, source_path, status, replica, options)
            with _blame_source():
                _expect(os.fstat(source), replica.state, source_path)
            check_target(target_path, action.replaces)
            with explain("committing", target_path):
                commit(temporary, target_path, options.later)
        return _result(action, replica, "copied", status.st_size, digest)
    finally:
        os.close(source)


def _fill(
    temporary: Temporary,
    source: int,
    source_path: str,
    status: os.stat_result,
    replica: Replica,
    options: CopyOptions,
) -> str:
    """Write, check and sync the temporary file; return its digest."""
    try:
        with explain(f"copying {source_path} to", temporary.path):
            size, digest = copy_bytes(source, temporary.descriptor, options.stop, options.progress)
            settle(temporary, status)
    except StorageError as error:
        if isinstance(error.__cause__, OSError) and error.__cause__.errno in _TARGET_ERRNOS:
            raise
        raise BadSourceError(error) from error
    with _blame_source():
        if size != status.st_size:
            raise VerificationError(
                f"{source_path} gave {size} bytes instead of {status.st_size}: it changes while it is read; plan again"
            )
        if replica.digest is not None and digest != replica.digest:
            raise VerificationError(
                f"{source_path} holds other bytes ({digest}) than its manifest or the plan says ({replica.digest}): "
                "it is damaged, plan again to repair it"
            )
        header = read_header(source_path)  # still cached; of the copy's pages most are dropped
        problem = header.problems[0] if header.problems else None
        if problem is None and header.crc is not None:
            problem = check_crc(source_path, header, stop=options.stop)
        if problem is not None:
            raise VerificationError(f"{source_path} is damaged ({problem}): plan again to repair it")
    _read_back(temporary, digest, options)
    return digest


def _fetch_from(
    root: str, action: CopyAction, replica: Replica, options: CopyOptions, fetching: Fetching
) -> ActionResult:
    """Copy from a slice of another host."""
    target_path = os.path.join(root, action.target)
    if (there := digest_there(target_path, replica, options.stop)) is not None:
        options.progress(replica.state.bytes)
        return _result(action, replica, "already there", 0, there)
    check_target(target_path, action.replaces)
    with explain("making the directory of", target_path):
        fetching.make_directory(os.path.dirname(target_path), options.later)
    with claim_temporary(target_path) as temporary:
        try:
            with explain("writing", temporary.path):
                digest = fetching.fill(temporary, target_path, replica, options.stop, options.progress)
        except MsRecoverError as error:
            if isinstance(error.__cause__, OSError) and error.__cause__.errno in _TARGET_ERRNOS:
                raise
            raise BadSourceError(error) from error
        _read_back(temporary, digest, options)
        check_target(target_path, action.replaces)
        with explain("committing", target_path):
            commit(temporary, target_path, options.later)
    return _result(action, replica, "copied", replica.state.bytes, digest)


def _read_back(temporary: Temporary, digest: str, options: CopyOptions) -> None:
    """Compare what the device holds with what was written."""
    if options.verify:
        with explain("reading back", temporary.path):
            back = digest_bytes(temporary.descriptor, options.stop, from_device=True)
        if back != digest:
            raise VerificationError(
                f"{temporary.path} reads back as {back}, written was {digest}: the device or its memory alters data; "
                "check the system log"
            )


@contextmanager
def _blame_source() -> Iterator[None]:
    """Errors in here speak against the source, so that another replica may do."""
    try:
        yield
    except MsRecoverError as error:
        raise BadSourceError(error) from error


def _same_already(
    source: int, target_path: str, action: CopyAction, replica: Replica, options: CopyOptions
) -> str | None:
    """Return the digest when the target already holds the source's bytes.

    Raises
    ------
    VerificationError
        When a file lies there that the plan did not see.
    """
    try:
        target = os.open(target_path, _READ)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno == errno.EACCES:
            return None  # unreadable: replaced by name when the plan saw it
        raise StorageError(f"reading {target_path}: {error.strerror}") from error
    try:
        if os.fstat(target).st_size == replica.state.bytes:
            with explain("reading", target_path):
                digest = digest_bytes(target, options.stop)
                if replica.digest in (None, digest) and digest == digest_bytes(source, options.stop):
                    return digest
    finally:
        os.close(target)
    check_target(target_path, action.replaces)
    return None


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


def _expect(status: os.stat_result, expected: FileState, path: str) -> None:
    if _state(status) != expected:
        raise VerificationError(
            f"{path} is not what the plan saw (now {status.st_size} bytes, modified {status.st_mtime_ns} ns; "
            f"then {expected.bytes} bytes, modified {expected.mtime_ns} ns): plan again"
        )


def _state(status: os.stat_result) -> FileState:
    return FileState(status.st_size, status.st_mtime_ns)


def _result(action: CopyAction, replica: Replica, status: str, size: int, digest: str) -> ActionResult:
    return ActionResult(action.rank, replica.rank, replica.path, action.target, status, size, digest)
