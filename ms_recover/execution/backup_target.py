"""The place of a backup: looked at and tried before anything of the tree is read."""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress

from ms_recover.errors import MissingInputError, PermissionDeniedError, StorageError, UsageError, VerificationError
from ms_recover.execution.lock import lock_tree
from ms_recover.execution.writable import check_writable, free_bytes, refuse_inside
from ms_recover.file_names import BACKUP_MARK, TEMPORARY_SUFFIX
from ms_recover.stores.backup_index import encode_mark
from ms_recover.stores.backup_store import is_backup
from ms_recover.stores.directories import make_directories
from ms_recover.stores.local_store import LocalStore
from ms_recover.stores.store import Store
from ms_recover.stores.urls import open_plain
from ms_recover.system_errors import explained

_log = logging.getLogger(__name__)


@contextmanager
def open_target(url: str, root: str, *, dry_run: bool = False) -> Iterator[Store]:
    """Open the place of a backup of a tree, locked where it is a local directory, once it was tried.

    A small object is written there, read back and removed; with `dry_run` nothing is written, and what can be seen
    without is checked. A directory that was made, and in which nothing was written, is removed again.

    Raises
    ------
    UsageError
        When it is neither a backup nor empty, is only read, or lies in the tree.
    StorageError
        When another copy to the same directory is at work.
    MissingInputError, PermissionDeniedError, StorageError, VerificationError
        When it cannot be written, such as a bucket that does not exist, or does not give back what is written.
    """
    with closing(open_plain(url)) as store, ExitStack() as stack:
        check_empty(store)
        refuse_inside(root, url)
        if dry_run:
            _foresee(store)
        elif isinstance(store, LocalStore):
            stack.enter_context(_made(store.url))
        if isinstance(store, LocalStore) and os.path.isdir(store.url):
            stack.enter_context(lock_tree(store.url))
        if not dry_run:
            _try(store)
        yield store


def check_empty(target: Store) -> None:
    """Raise a UsageError unless a store is a backup or holds nothing, but what writers that were killed left."""
    if is_backup(target):
        return
    try:
        entries = target.list("")
    except MissingInputError:
        if not target.has_folders:  # so that it is the bucket which is missing
            raise
        entries = []
    held = [entry.name for entry in entries if not entry.name.endswith(TEMPORARY_SUFFIX)]
    if held:
        raise UsageError(
            f"{target.url} is no backup and not empty (it holds {held[0]!r}): name a folder or prefix of its own"
        )


def mark(target: Store) -> None:
    """Make a backup of what `check_empty` accepts."""
    if not is_backup(target):
        write(target, BACKUP_MARK, encode_mark())


def write(target: Store, path: str, data: bytes) -> None:
    """Write a small file and read it back; a VerificationError when the store gives back something else."""
    with target.create(path) as new:
        new.write(data)
        new.commit()
    with target.open(path) as opened:
        if opened.read_at(0, opened.size) != data:
            raise VerificationError(f"{target.url}/{path} does not give back what was written there: check the store")


def check_room(target: Store, wanted: int) -> None:
    """Raise a StorageError where the file system of a local target has less than `wanted` bytes free."""
    free = free_bytes(target.url) if isinstance(target, LocalStore) else None
    if free is not None and wanted > free:
        raise StorageError(
            f"{target.url} has {free:,} bytes free, and {wanted:,} have to go there: free some space, or name another "
            "place"
        )


@contextmanager
def _made(folder: str) -> Iterator[None]:
    """Make a folder; where nothing was written there it goes again, with the parents that were made for it."""
    made = []
    path = folder
    while not os.path.lexists(path):
        made.append(path)
        path = os.path.dirname(path)
    with explained("making", folder):
        make_directories(folder)
    try:
        yield
    finally:
        with suppress(OSError):  # it holds something
            for path in made:
                os.rmdir(path)


def _try(target: Store) -> None:
    """Write a small object under a name that is taken for that of a killed writer, read it back and remove it."""
    path = f".trial.{secrets.token_hex(4)}{TEMPORARY_SUFFIX}"
    write(target, path, b"recover-ckpt copy writes here; this file can be removed\n")
    try:
        target.remove(path)
    except PermissionDeniedError as error:  # a store that keeps everything is as good as any
        _log.warning("%s/%s stays there: %s", target.url, path, error)


def _foresee(target: Store) -> None:
    """Raise what can be known of writing to a target without doing it."""
    if isinstance(target, LocalStore):
        check_writable(target.path(BACKUP_MARK), 1)
    else:
        target.create(BACKUP_MARK)  # refuses where the store is only read; nothing is written before it is entered
