"""One copy action: from a peer's slice to a durable, checked file under its final name."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

from ms_recover.errors import MsRecoverError, StorageError, VerificationError
from ms_recover.execution.checks import check_target, check_unchanged, check_written, reading_source
from ms_recover.execution.elsewhere import Fetching
from ms_recover.execution.staging import Staging
from ms_recover.formats.header import find_problem, parse_header
from ms_recover.formats.reading import pread
from ms_recover.model.actions import CopyAction, Replica
from ms_recover.model.outcome import ActionResult
from ms_recover.model.verdicts import ActionStatus
from ms_recover.storage.digest import digest_bytes, holds
from ms_recover.storage.local import READ, Temporary, claim_temporary, commit, explain, make_directory, settle
from ms_recover.storage.transfer import copy_bytes

_log = logging.getLogger(__name__)
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
    with _blame_source(), reading_source(source_path):
        source = os.open(source_path, READ)
    try:
        status = os.fstat(source)
        with _blame_source():
            check_unchanged(status, replica.state, source_path)
        if (digest := _already_copied(source, target_path, action, replica, options)) is not None:
            options.progress(status.st_size)
            return _result(action, replica, "already there", 0, digest)
        with explain("making the directory of", target_path):
            make_directory(os.path.dirname(target_path), os.path.dirname(source_path), options.later)
        with claim_temporary(target_path) as temporary:
            digest = _fill(temporary, target_path, source, source_path, status, replica, options)
            with _blame_source():
                check_unchanged(os.fstat(source), replica.state, source_path)
            check_target(target_path, action.replaces)
            with explain("committing", target_path):
                commit(temporary, target_path, options.later)
        return _result(action, replica, "copied", status.st_size, digest)
    finally:
        os.close(source)


def _fill(
    temporary: Temporary,
    target_path: str,
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
        if _speaks_against_target(error):
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
        # under the name it gets, whose ending tells the format; still cached; of the copy's pages most are dropped
        header = parse_header(pread(source), status.st_size, name=target_path)
        if (problem := find_problem(source_path, header, stop=options.stop)) is not None:
            raise VerificationError(f"{source_path} is damaged ({problem}): plan again to repair it")
    if options.verify:
        check_written(temporary, digest, options.stop)
    return digest


def _fetch_from(
    root: str, action: CopyAction, replica: Replica, options: CopyOptions, fetching: Fetching
) -> ActionResult:
    """Copy from a slice of another host."""
    target_path = os.path.join(root, action.target)
    if (there := _already_fetched(target_path, replica, options)) is not None:
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
            if _speaks_against_target(error):
                raise
            raise BadSourceError(error) from error
        if options.verify:
            check_written(temporary, digest, options.stop)
        check_target(target_path, action.replaces)
        with explain("committing", target_path):
            commit(temporary, target_path, options.later)
    return _result(action, replica, "copied", replica.state.bytes, digest)


def _speaks_against_target(error: MsRecoverError) -> bool:
    return isinstance(error.__cause__, OSError) and error.__cause__.errno in _TARGET_ERRNOS


@contextmanager
def _blame_source() -> Iterator[None]:
    """Errors in here speak against the source, so that another replica may do."""
    try:
        yield
    except MsRecoverError as error:
        raise BadSourceError(error) from error


def _already_copied(
    source: int, target_path: str, action: CopyAction, replica: Replica, options: CopyOptions
) -> str | None:
    """Return the digest when the target already holds the source's bytes.

    Raises
    ------
    VerificationError
        When a file lies there that the plan did not see.
    """
    with explain("reading", target_path):
        try:
            digest = holds(target_path, replica.state.bytes, replica.digest, options.stop)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.EACCES):
                return None  # nothing there, or unreadable: replaced by name when the plan saw it
            raise
        if digest is not None and digest == digest_bytes(source, options.stop):
            return digest
    check_target(target_path, action.replaces)
    return None


def _already_fetched(target_path: str, replica: Replica, options: CopyOptions) -> str | None:
    """Return the digest when the target already holds what another host is known to have."""
    if replica.digest is None:
        return None
    with suppress(OSError):  # what cannot be read is something else
        return holds(target_path, replica.state.bytes, replica.digest, options.stop)
    return None


def _result(action: CopyAction, replica: Replica, status: ActionStatus, size: int, digest: str) -> ActionResult:
    return ActionResult(action.rank, replica.rank, replica.path, action.target, status, size, digest)
