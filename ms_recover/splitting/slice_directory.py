"""The directory of a splitter's slices: its names, its owner and its removal."""

from __future__ import annotations

import logging
import os
import shutil
import stat
import tempfile
import time
import weakref
from contextlib import ExitStack, suppress
from typing import Any

from ms_recover.errors import MsRecoverError, StorageError, UsageError
from ms_recover.execution.lock import lock_tree
from ms_recover.execution.save_slice import clear_leftovers, withdraw
from ms_recover.execution.set_aside import supersede
from ms_recover.file_names import (
    GROUP_INFO_NAME,
    JOURNAL_NAME,
    MANIFEST_SUFFIX,
    RECOVERY_LOG_NAME,
    SAVING_DIRECTORY,
    STRATEGY_NAME,
    TEMPORARY_SUFFIX,
)
from ms_recover.model.steps import Step
from ms_recover.model.texts import list_some
from ms_recover.scanning.naming import name_before, read_file_name, read_rank_directory
from ms_recover.stores.atomic import AtomicFile, temporary_path
from ms_recover.stores.local_store import LocalStore
from ms_recover.system_errors import explained

_log = logging.getLogger(__name__)
LOCK_SECONDS = 60.0
"""Longest wait for another recovery that works in the directory."""

_PREFIX = "ms_recover-split-"
_STALE_S = 3600.0
"""Age of a temporary directory without claim from which on it may be the remains of a killed splitter."""
_TRIES = 5
_CLAIM = "splitter"
_BESIDE = (GROUP_INFO_NAME, STRATEGY_NAME)


def step_of(trained: int) -> Step:
    """Return the step that names the slices behind so many trained steps; 0 for those before the first."""
    return Step(1, trained)


def slice_name(trained: int) -> str:
    """Return the name of the slices behind so many trained steps."""
    return f"split-{step_of(trained)}.ckpt"


def saved_steps(folder: str) -> list[int]:
    """Return the trained steps of the slices in a rank's directory, ascending; none when it is missing."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    return sorted(found for name in names if (found := _trained(name)) is not None)


def _trained(name: str) -> int | None:
    """Return the trained steps that a slice's name tells; None for any other name."""
    found = read_file_name(name)
    return None if found is None or name != slice_name(found.step.step) else found.step.step


def _is_rank(name: str) -> bool:
    found = read_rank_directory(name)
    return found is not None and name == f"rank_{found[0]}"


def _is_own(name: str) -> bool:
    """Whether a file in a rank's directory is a splitter's: finished or not, in place or set aside."""
    hidden = name.startswith(".") and name.endswith(TEMPORARY_SUFFIX)
    name = name[1 : -len(TEMPORARY_SUFFIX)] if hidden else name
    if name in _BESIDE or (hidden and name.startswith(tuple(f"{each}." for each in _BESIDE))):
        return True
    return _trained(name_before(name.removesuffix(MANIFEST_SUFFIX))) is not None


def newest_saved(directory: str | os.PathLike[str]) -> int | None:
    """Return the newest trained step of which a slice lies in a splitter's directory; None without slices."""
    with explained("reading", os.fspath(directory)):
        try:
            folders = [entry.path for entry in os.scandir(directory) if _is_rank(entry.name) and entry.is_dir()]
        except FileNotFoundError:
            return None
        return max((step for folder in folders for step in saved_steps(folder)), default=None)


def open_directory(
    owner: Any, directory: str | os.PathLike[str] | None
) -> tuple[str, weakref.finalize[[ExitStack, str | None, int], Any]]:
    """Make and claim a directory, by default a temporary one; return its real path and the end of the claim.

    The claim also ends when its owner is garbage or the interpreter exits. A temporary directory is removed with it.
    Raises UsageError when another splitter uses the directory, or it holds other files than a splitter's.
    """
    if directory is None:
        path, claim = _make_temporary()
    else:
        with explained("making", os.fspath(directory)):
            path = os.path.realpath(directory)
            os.makedirs(path, 0o700, exist_ok=True)
        _find_ranks(path)
        claim = _claim(path)
    return path, weakref.finalize(owner, _release, claim, path if directory is None else None, os.getpid())


def _make_temporary() -> tuple[str, ExitStack]:
    """Make and claim a temporary directory, after removing those of killed splitters."""
    for tries_left in reversed(range(_TRIES)):
        with explained("making", "a temporary directory"):
            _remove_stale(tempfile.gettempdir())
            path = os.path.realpath(tempfile.mkdtemp(prefix=_PREFIX))
        try:
            return path, _claim(path)
        except MsRecoverError:  # another start took it for the remains of a killed splitter before it was locked
            if not tries_left:
                raise
    raise AssertionError


def set_aside_newer(directory: str, step: int) -> None:
    """Rename the slices behind more trained steps than these: a save that was not finished, or given up."""
    with explained("setting aside", directory), lock_tree(directory, timeout=LOCK_SECONDS):
        for folder in _find_ranks(directory):
            for name in [slice_name(newer) for newer in saved_steps(folder) if newer > step]:
                path, aside = os.path.join(folder, name), supersede(LocalStore(folder), name)
                _log.warning("%s is newer than step %d, from which training goes on: renamed to %s", path, step, aside)


def clear_directory(directory: str) -> None:
    """Remove the slices of an earlier splitter; refuse a directory with other files, like `open_directory`."""
    with explained("clearing", directory), lock_tree(directory, timeout=LOCK_SECONDS):
        folders = _find_ranks(directory)
        saved = [os.path.join(folder, slice_name(step)) for folder in folders for step in saved_steps(folder)]
        withdraw(saved, all_or_nothing=True)
        for folder in folders:
            clear_leftovers(folder)
            for name in os.listdir(folder):
                if _is_own(name):
                    os.unlink(os.path.join(folder, name))
            os.rmdir(folder)


def _find_ranks(directory: str) -> list[str]:
    """Return the ranks' directories; refuse a directory with other files than a splitter's."""
    folders: list[str] = []
    foreign: list[str] = []
    own_files = {JOURNAL_NAME, RECOVERY_LOG_NAME, os.path.basename(temporary_path(_CLAIM))}
    with explained("reading", directory):
        for entry in sorted(os.scandir(directory), key=lambda entry: entry.name):
            if _is_rank(entry.name) and entry.is_dir(follow_symlinks=False):
                folders.append(entry.path)
                for inner in sorted(os.scandir(entry.path), key=lambda inner: inner.name):
                    known = inner.name == SAVING_DIRECTORY and inner.is_dir(follow_symlinks=False)
                    if not known and not (_is_own(inner.name) and inner.is_file(follow_symlinks=False)):
                        foreign.append(f"{entry.name}/{inner.name}")
            elif entry.name not in own_files or not entry.is_file(follow_symlinks=False):
                foreign.append(entry.name)
    if foreign:
        raise UsageError(
            f"{directory} holds files that are not a splitter's: {list_some(foreign)}. Give a directory that is empty "
            "or a splitter's own"
        )
    return folders


def _claim(directory: str) -> ExitStack:
    """Take the directory for this store alone; recoveries have a lock of their own, and stay possible."""
    with ExitStack() as stack:
        try:
            stack.enter_context(AtomicFile(os.path.join(directory, _CLAIM)))
        except StorageError as error:
            if isinstance(error.__cause__, OSError):
                raise
            raise UsageError(
                f"another splitter keeps its slices in {directory}: close it first, or give another directory"
            ) from None
        return stack.pop_all()


def _remove_stale(folder: str) -> None:
    """Remove the temporary directories of killed splitters of this user: their claims are there, and not locked."""
    for entry in os.scandir(folder):
        with suppress(MsRecoverError, OSError):
            about = entry.stat(follow_symlinks=False)
            claimed = os.path.lexists(temporary_path(os.path.join(entry.path, _CLAIM)))
            old = claimed or time.time() - about.st_mtime > _STALE_S
            if entry.name.startswith(_PREFIX) and stat.S_ISDIR(about.st_mode) and about.st_uid == os.geteuid() and old:
                _find_ranks(entry.path)
                with _claim(entry.path):  # no splitter uses it
                    shutil.rmtree(entry.path, ignore_errors=True)


def _release(claim: ExitStack, directory: str | None, process: int) -> None:
    if os.getpid() != process:
        return  # a forked child: the directory is its parent's
    claim.close()
    if directory is not None:
        shutil.rmtree(directory, ignore_errors=True)
