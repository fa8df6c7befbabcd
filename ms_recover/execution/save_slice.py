"""Save one slice: write it in a hidden directory, prove it, write its state and its manifest, and only then rename it.

A kill at any moment leaves committed slices as they were. An unfinished slice lies in the hidden directory, which scans
pass over and the next save clears, with what was written for it beside its future name. So a slice that has its name
has all that it is proven by, and its state.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

from ms_recover.errors import StorageError, VerificationError
from ms_recover.execution.manifests import NamedSlice, strategy_digest, write_manifest
from ms_recover.execution.state_files import write_state
from ms_recover.file_names import MANIFEST_SUFFIX, SAVING_DIRECTORY, STATE_SUFFIX
from ms_recover.formats.header import read_header
from ms_recover.model.manifest import Digests, Manifest, TrainingRecord
from ms_recover.model.slices import SliceHeader
from ms_recover.stores.atomic import leftovers, remove_unlocked
from ms_recover.stores.digest import digest_file
from ms_recover.stores.directories import sync_directory
from ms_recover.stores.removal import remove_large, wait_until_freed
from ms_recover.system_errors import explained

_staged: set[str] = set()
"""Slices in hidden directories that this process has proven, and not given their names yet."""


@dataclass(frozen=True)
class SliceOrder(NamedSlice):
    """A slice to be saved, of a known group; it must hold the parameters that are `expected`."""

    group: tuple[int, ...]
    expected: Collection[str]
    state: bytes | None = None
    """Contents of its state file, which is written first."""


@dataclass(frozen=True)
class StagedSlice:
    """A slice that is whole and durable in the hidden directory; it has no final name and no manifest yet."""

    order: SliceOrder
    temporary: str
    header: SliceHeader
    digests: Digests


def commit_slice(order: SliceOrder, write: Callable[[str], Digests | None]) -> Manifest:
    """Write a slice and its manifest, which is returned; parameters and errors are those of the two steps."""
    return commit_staged(stage_slice(order, write))


def stage_slice(order: SliceOrder, write: Callable[[str], Digests | None]) -> StagedSlice:
    """Have a slice written in the hidden directory, and prove it.

    `write` writes the slice under the path it is given. It returns the digests of the bytes that it wrote, or None:
    then the file is read for them.

    Raises
    ------
    StorageError
        When the file system refuses; nothing of the new slice is left then.
    VerificationError
        When the slice that `write` wrote is not whole.
    """
    folder, name = os.path.split(order.path)
    staging = os.path.join(folder, SAVING_DIRECTORY)
    wait_until_freed()
    with explained("clearing", staging):
        clear_leftovers(folder)
    temporary = os.path.join(staging, name)
    with _nothing_left(folder, temporary), explained("writing", order.path):
        os.makedirs(staging, 0o700, exist_ok=True)
        digests = write(temporary)
        header = read_header(temporary, expected=order.expected)
        if header.problems:
            raise VerificationError(
                f"the slice that was written is not whole: {header.problems[0]}; check the device's memory"
            )
        if digests is None:
            digests = digest_file(temporary, header.contents)
        _sync(temporary)
        _staged.add(temporary)
        return StagedSlice(order, temporary, header, digests)


def commit_staged(staged: StagedSlice, training: TrainingRecord | None = None) -> Manifest:
    """Write the state and the manifest of a staged slice, and give it its name; return the manifest. All is durable.

    The manifest states the facts about the `training`.

    Raises
    ------
    StorageError
        When the file system refuses, or a file of that name is there already; nothing of the new slice is left then.
    """
    folder = os.path.dirname(staged.order.path)
    with _nothing_left(folder, staged.temporary), explained("writing", staged.order.path):
        return _commit(staged, training)


@contextmanager
def _nothing_left(folder: str, temporary: str) -> Iterator[None]:
    try:
        yield
    except Exception:
        _staged.discard(temporary)
        with suppress(OSError):
            clear_leftovers(folder)
        raise


def _commit(staged: StagedSlice, training: TrainingRecord | None) -> Manifest:
    order = staged.order
    if os.path.lexists(order.path):
        raise StorageError(f"{order.path} is there already: does another training save to this directory?")
    withdraw([order.path])  # a manifest whose slice somebody removed must not meet another slice
    try:
        if order.state is not None:
            digest = write_state(order.path, order.state, staged=staged.temporary)
            training = replace(training or TrainingRecord(started=None), state_digest=digest)
        folder = os.path.dirname(order.path)
        made = order.manifest(staged.header, staged.digests, order.group, strategy_digest(folder))
        manifest = replace(made, training=training)
        write_manifest(order.path, manifest, staged=staged.temporary)
        os.rename(staged.temporary, order.path)
        _staged.discard(staged.temporary)
        with suppress(OSError):  # the slice of another saver is in it
            os.rmdir(os.path.dirname(staged.temporary))
        sync_directory(folder)
    except Exception:
        with suppress(OSError):
            withdraw([order.path])
        raise
    return manifest


def why_not_saved(order: SliceOrder, error: Exception) -> str:
    """Return why a slice was not saved, and what to do."""
    why = str(error) or type(error).__name__
    return f"{order} was not saved: {why}. Slices committed before are whole: mend this, then resume from them"


def abandon_staged(folder: str) -> None:
    """Give up the slices that this process has staged in a directory, such as those of a run that ended in an error."""
    _staged.difference_update([path for path in _staged if os.path.dirname(os.path.dirname(path)) == folder])


def withdraw(paths: Collection[str], *, all_or_nothing: bool = False) -> None:
    """Remove slices: they first, so that none has its name without its manifest and its state.

    The state comes last: by it what a kill has left is known for a slice that a saver wrote. Of slices that count
    together, `all_or_nothing`, the manifests come first, so that a kill leaves none of the others counting.

    An OSError says that one cannot be removed.
    """
    order = (MANIFEST_SUFFIX, "") if all_or_nothing else ("", MANIFEST_SUFFIX)
    for suffix in (*order, STATE_SUFFIX):
        there = [path + suffix for path in paths if os.path.lexists(path + suffix)]
        for path in there:
            remove_large(path)
        for folder in {os.path.dirname(path) for path in there}:
            sync_directory(folder)


def clear_leftovers(folder: str) -> None:
    """Remove what an interrupted save left in a directory, and nothing that another process is writing.

    Slices that this process has staged stay. An OSError says that something cannot be removed.
    """
    staging = os.path.join(folder, SAVING_DIRECTORY)
    with suppress(FileNotFoundError):
        paths = [os.path.join(staging, name) for name in os.listdir(staging)]
        for path in [path for path in paths if path not in _staged]:
            _unlink_beside(os.path.join(folder, os.path.basename(path)))
            os.unlink(path)
        if _staged.isdisjoint(paths):
            os.rmdir(staging)
    for suffix in (MANIFEST_SUFFIX, STATE_SUFFIX):
        for path in leftovers(folder, suffix):
            remove_unlocked(path)


def _unlink_beside(path: str) -> None:
    """Remove the state and the manifest that a kill has left of a slice which never got its name."""
    if not os.path.lexists(path):
        for suffix in (MANIFEST_SUFFIX, STATE_SUFFIX):
            with suppress(FileNotFoundError):
                os.unlink(path + suffix)


def _sync(path: str) -> None:
    """Make a file durable, and read-only as MindSpore leaves its slices."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fchmod(descriptor, 0o400)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
