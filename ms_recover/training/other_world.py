"""Set the slices of other ranks aside as a whole, before the training that was resumed from them saves its first one.

Slices that other ranks saved, or that are cut differently, with their rank lists and strategy files make up a tree of
their own. They stay that tree: below ``resharded_from`` in the root, with every path as it was. It is made of hard
links (of copies, where there are none) under a temporary name, renamed when it is whole, and only then the names in
place are removed. So at every moment one of the two is whole, and a killed start is gone on with by the next one.
"""

from __future__ import annotations

import filecmp
import logging
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from ms_recover import api
from ms_recover.errors import (
    InputError,
    MissingInputError,
    MsRecoverError,
    StorageError,
    UnrecoverableError,
    UsageError,
)
from ms_recover.execution.targets import check_written
from ms_recover.file_names import (
    GROUP_INFO_NAME,
    META_NAME,
    RESHARDED_FOLDER,
    SLICE_ENDINGS,
    SUPERSEDED_SUFFIX,
    TEMPORARY_SUFFIX,
    temporary_name,
)
from ms_recover.model.inventory import Inventory
from ms_recover.model.options import ScanOptions
from ms_recover.planning.tree.world_size import find_world_size
from ms_recover.scanning.naming import read_file_name, strategy_rank
from ms_recover.stores.atomic import AtomicFile, write_small
from ms_recover.stores.directories import make_directory, sync_directory
from ms_recover.stores.local import NO_LINKS
from ms_recover.stores.local_store import LocalFile
from ms_recover.stores.store import never
from ms_recover.system_errors import explained
from ms_recover.training.deciding.job import TrainingJob
from ms_recover.training.run import OtherWorld, Runs

if TYPE_CHECKING:
    from ms_recover.training.search import Search

_log = logging.getLogger(__name__)


def set_other_world_aside(job: TrainingJob, directory: str, runs: Runs) -> None:
    """Set aside what a training was resumed from, if its slices lie where this rank or another one is to save.

    All ranks call it together, each with its own directory and the runs of its process. Nothing happens where nothing
    was cut anew.

    Raises
    ------
    StorageError
        When the file system refuses, or has neither hard links nor room for copies; nothing is lost then.
    MsRecoverError
        When another rank could not.
    """
    other = runs.other_world
    if other is None:
        return
    if not any(inside for (inside,) in job.gather([_is_in(directory, other.root)], "beginning to save")):
        _log.warning(
            "rank %d: slices are saved to %s, which is not below %s: name where they are saved when this training is "
            "resumed",
            job.rank,
            directory,
            other.root,
        )
        return
    first = -1
    while (rank := _first_with_slices(job, other)) is not None:
        if rank == first:
            raise StorageError(f"{other.root}: slices of {other.ranks} ranks lie there still: move them away yourself")
        first = rank
        work = partial(_act, other) if job.rank == rank else _leave
        job.run_together("setting slices of other ranks aside", work)
    job.run_together("writing what was compiled", lambda: _write_files(other))
    runs.other_world = None


def aside_roots(root: str) -> list[str]:
    """Return the trees that were set aside below a root, the last one first."""
    folder = os.path.join(root, RESHARDED_FOLDER)
    try:
        names = [name for name in os.listdir(folder) if not name.startswith(".")]
    except (FileNotFoundError, NotADirectoryError):
        return []
    paths = [os.path.join(folder, name) for name in names]
    return sorted(filter(os.path.isdir, paths), key=lambda path: (os.stat(path).st_mtime_ns, path), reverse=True)


@contextmanager
def naming_reshard(job: TrainingJob, search: Search) -> Iterator[None]:
    """Where slices cannot be resumed from as they are, and those of other ranks are there, name ``reshard=True``."""
    try:
        yield
    except (UnrecoverableError, InputError, UsageError) as error:
        hint = why_reshard(search.root, search.scanning, job.size)
        if hint is None:
            raise
        raise type(error)(f"{hint}. Without it: {error}") from error


def why_reshard(root: str, scanning: ScanOptions, ranks: int) -> str | None:
    """Return that slices of other ranks are there, and how they are resumed from; None where there are none."""
    try:
        inventory = api.scan(root, replace(scanning, crc=False, may_be_empty=True))
        before = find_world_size(inventory).ranks if inventory.slices else 0
    except MsRecoverError:
        before = 0
    aside = aside_roots(root)
    if before not in (0, ranks):
        return (
            f"the slices under {root} are those of {before} ranks, and this job has {ranks}: reshard=True cuts them "
            "anew for it"
        )
    if aside:
        return f"{aside[0]} holds slices that a training on other ranks began from: reshard=True resumes from these too"
    return None


def _act(other: OtherWorld) -> None:
    while (inventory := _scan(other)) is not None:  # a scan shows one of several equal slices
        move_world(inventory)


def _leave() -> None:
    """Have another rank do it."""


def _first_with_slices(job: TrainingJob, other: OtherWorld) -> int | None:
    """Return the first rank that sees slices in place: ranks need not share a file system."""
    left = job.run_together("looking for slices of other ranks", lambda: _scan(other) is not None)
    return next(
        (rank for rank, (flag,) in enumerate(job.gather([left], "looking for slices of other ranks")) if flag), None
    )


def _is_in(directory: str, root: str) -> bool:
    return os.path.realpath(directory).startswith(os.path.join(os.path.realpath(root), ""))


def _scan(other: OtherWorld) -> Inventory | None:
    """Return what lies in place; None without a slice, or what a killed start left of the other world."""
    options = ScanOptions(pattern=other.scanning.pattern, crc=False, may_be_empty=True)
    try:
        inventory = api.scan(other.root, options)
    except MissingInputError:
        return None
    return inventory if inventory.slices or inventory.set_aside or _is_left(inventory) else None


def _is_left(inventory: Inventory) -> bool:
    """Whether files lie in place that a tree that was set aside has: removing them was not done."""
    return any(_is_there(inventory.root, path) for path in _paths(inventory))


def move_world(inventory: Inventory) -> str | None:
    """Set everything aside that makes up the tree in place; return the new tree, None where it was there already.

    Raises
    ------
    StorageError
        When the file system refuses, or has neither hard links nor room for copies.
    """
    root = inventory.root
    paths = _paths(inventory)
    left = [path for path in paths if not _is_there(root, path)]
    made = None
    if any(map(_is_slice, left)):
        made = _make(inventory, paths)
        _log.warning(
            "%s: %d files, the slices of %d ranks up to step %s, are set aside as they are in %s: this training was "
            "resumed from slices of other ranks. They are needed until it has saved whole steps of its own; nothing "
            "removes them",
            root,
            len(paths),
            find_world_size(inventory).ranks,
            _newest(inventory),
            made,
        )
    for path in sorted(paths, key=_order_of_removal):
        with explained("removing", os.path.join(root, path)), suppress(FileNotFoundError):
            if made is None and not _is_there(root, path):
                continue
            os.unlink(os.path.join(root, path))
    for folder in sorted({os.path.dirname(path) for path in paths}):
        with explained("syncing", os.path.join(root, folder)), suppress(FileNotFoundError):
            sync_directory(os.path.join(root, folder))
    return made


def _order_of_removal(path: str) -> tuple[int, str]:
    """Order names for removal, so that what is left after a kill shows whose it was.

    Slices go before their manifests, because one without a manifest seems to have had none; then what lies beside them.
    Rank lists and strategy files go last: a scan finds what is left by these.
    """
    if not _is_slice(path):
        return 2, path
    return 0 if path.endswith(SLICE_ENDINGS) else 1, path


def _newest(inventory: Inventory) -> str:
    steps = [*inventory.steps, *(one.step for one in inventory.set_aside)]
    return str(max(steps, default="none"))


def _paths(inventory: Inventory) -> list[str]:
    """Return the files that make up the tree, relative to its root."""
    root, named = inventory.root, [one.path for one in inventory.slices]
    named += [one.aside for one in inventory.set_aside] + [one.path for one in inventory.orphans]
    named += [one.path for one in inventory.group_files] + [one.path for one in inventory.strategy_files]
    folders = {os.path.dirname(path) for path in named if not os.path.isabs(path)}
    found = []
    for folder in sorted(folders):
        with explained("reading", os.path.join(root, folder)):
            names = sorted(os.listdir(os.path.join(root, folder)))
        found += [os.path.join(folder, name) for name in names if _belongs(os.path.join(root, folder), name)]
    return found


def _belongs(folder: str, name: str) -> bool:
    if name.startswith(".") or not os.path.isfile(os.path.join(folder, name)):
        return False
    small = name in (GROUP_INFO_NAME, META_NAME) or strategy_rank(name.removesuffix(SUPERSEDED_SUFFIX)) is not None
    return small or _is_slice(name)


def _is_there(root: str, path: str) -> bool:
    """Whether a tree that was set aside has the same file: the inode, or the bytes."""
    own = os.path.join(root, path)
    for tree in aside_roots(root):
        other = os.path.join(tree, path)
        with suppress(OSError):
            if os.path.samefile(own, other) or filecmp.cmp(own, other, shallow=False):
                return True
    return False


def _make(inventory: Inventory, paths: Sequence[str]) -> str:
    """Make the tree under a temporary name, and give it its own."""
    root = inventory.root
    base = os.path.join(root, RESHARDED_FOLDER)
    name = f"{find_world_size(inventory).ranks}_ranks_{_newest(inventory)}"
    with explained("making", base):
        make_directory(base, root, root)
        for left in os.listdir(base):  # of starts that were killed; they hold links alone
            if left.startswith(".") and left.endswith(TEMPORARY_SUFFIX):
                shutil.rmtree(os.path.join(base, left), ignore_errors=True)
        temporary = os.path.join(base, temporary_name(name))
        os.mkdir(temporary, 0o700)
        shutil.copymode(root, temporary)
    try:
        _link(root, temporary, paths)
        final, count = os.path.join(base, name), 1
        with explained("making", final):
            while os.path.lexists(final):
                count += 1
                final = os.path.join(base, f"{name}.{count}")
            os.rename(temporary, final)
            sync_directory(base)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return final


def _link(root: str, tree: str, paths: Sequence[str]) -> None:
    folders = {tree}
    copied = False
    for number, path in enumerate(paths):
        source, target = os.path.join(root, path), os.path.join(tree, path)
        folder = os.path.dirname(target)
        with explained("setting aside", source):
            make_directory(folder, os.path.dirname(source), tree)
            folders.add(folder)
            if not _is_slice(path):  # MindSpore's compiler writes into the file that is there
                shutil.copy2(source, target)
                _sync(target)
                continue
            try:
                os.link(source, target, follow_symlinks=False)
            except OSError as error:
                if error.errno not in NO_LINKS:
                    raise
                if not copied:
                    _check_room(root, [os.path.join(root, one) for one in paths[number:] if _is_slice(one)], error)
                copied = True
                _copy(source, target)
    for folder in sorted(folders):
        with explained("syncing", folder):
            sync_directory(folder)


def _is_slice(path: str) -> bool:
    return read_file_name(os.path.basename(path)) is not None


def _check_room(root: str, sources: Sequence[str], error: OSError) -> None:
    """Check that there is room for copies of the rest, which are made where there are no hard links."""
    total = sum(os.stat(source).st_size for source in sources)
    state = os.statvfs(root)
    free = state.f_bavail * state.f_frsize
    if total > free:
        raise StorageError(
            f"{sources[0]}: this file system makes no hard link ({error.strerror}), and has {free:,} bytes for the "
            f"{total:,} that copies take, so the slices of other ranks cannot be set aside whole: save to another "
            f"directory, for example {os.path.join(root, 'ckpt_next', 'ckpt_dir{rank}')}, and resume from there later"
        ) from error
    _log.warning(
        "%s: this file system makes no hard link (%s): up to %s bytes are copied to set the slices of other ranks "
        "aside, and the other ranks wait for it",
        sources[0],
        error.strerror,
        f"{total:,}",
    )


def _copy(source: str, target: str) -> None:
    """Copy a slice durably, and see that the device holds it: the one in place is removed later."""
    with LocalFile(source) as opened, AtomicFile(target) as file:
        _, digest = opened.copy_to(file.descriptor, never, lambda count: None)
        file.settle(opened.form())
        check_written(file, digest, never)
        opened.check_unchanged()
        file.commit()


def _sync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_files(other: OtherWorld) -> None:
    for path, data in other.files.items():
        write_small(path, data, mode=0o600)
