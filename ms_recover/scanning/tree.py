"""The tree that a scan looks at: its folders are listed once and checked, its files read through its store."""

from __future__ import annotations

import errno
import os
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import TypeVar

from ms_recover.errors import MissingInputError, MsRecoverError, StorageError
from ms_recover.formats.reading import MAX_SMALL_FILE
from ms_recover.formats.reading import read_small as read_local
from ms_recover.stores.local_store import LocalStore
from ms_recover.stores.paths import is_name
from ms_recover.stores.store import Entry, EntryKind, FileInfo, OpenFile, Store, concerns_all
from ms_recover.stores.threads import in_threads
from ms_recover.system_errors import denied_text

_T = TypeVar("_T")
_R = TypeVar("_R")

REQUESTS = 16
"""Requests to a distant store at a time."""

MOST_NAMES = 1 << 20
_MOST_IN_ALL = 1 << 22
"""Names that a distant store may list in one folder, and in all."""

_DEEPEST = 32
"""Folders in which a folder of a distant store may lie."""


class Tree:
    """A tree during one scan; paths are relative to its root, or absolute where a local file lies outside of it."""

    def __init__(self, store: Store) -> None:
        self.store, self.root, self.near = store, store.url, store.near
        self._local, self._ahead = isinstance(store, LocalStore), os.path.join(store.url, "")
        self._lists: dict[str, list[Entry] | MsRecoverError] = {}
        self._listed = 0

    def name(self, path: str) -> str:
        """Return a path as messages name it: absolute, or a URL."""
        return path if path.startswith("/") else f"{self._ahead}{path}" if path else self.root

    def entries(self, folder: str, *, keep: bool = True) -> list[Entry]:
        """List a folder, sorted; without `keep` a local one is listed anew, and not remembered.

        Raises
        ------
        StorageError
            When the list is not one that a folder can have: a name that is none, one that is there twice, or too many.
        MissingInputError, PermissionDeniedError, StorageError
            As for `Store.list`.
        """
        known = self._lists.get(folder)
        if known is None:
            try:
                known = self.store.list(folder) if self.near else self._list_distant(folder)
            except MsRecoverError as error:
                known = error
            if keep or not self.near:
                self._lists[folder] = known
        if isinstance(known, MsRecoverError):
            raise known
        return known

    def list_ahead(self, folders: Iterable[str]) -> None:
        """List folders of a distant store at the same time, so that `entries` need not wait for each."""

        def look(folder: str) -> None:
            try:
                self.entries(folder)
            except MsRecoverError:
                return  # `entries` raises it again

        if not self.near:
            in_threads(REQUESTS, look, folders)

    @property
    def denied(self) -> str:
        """The reason of a file or folder that may not be read."""
        return denied_text() if self.near else "permission denied: the store refuses it to these credentials"

    def each(self, work: Callable[[_T], _R], items: Sequence[_T]) -> list[_R]:
        """Return the results of `work` in the order of the items; of a distant store several at a time."""
        return list(map(work, items)) if self.near else in_threads(REQUESTS, work, items)

    def kind(self, path: str) -> EntryKind | None:
        """Return what lies at a path, by the list of its folder; None where nothing does, or it cannot be listed."""
        try:
            entry = self._entry(path)
        except MsRecoverError:
            return None
        return None if entry is None else entry.kind

    def is_gone(self, path: str) -> bool:
        """Whether a list shows that a distant store has nothing at a path: no request has to be made for it."""
        try:
            return not self.near and self._entry(path) is None
        except MsRecoverError as error:
            return isinstance(error, MissingInputError)

    def stat(self, path: str) -> FileInfo:
        """Return the state of a file, as `Store.stat` does; what a list of a distant store has shown counts."""
        entry = None
        if not self.near:
            with suppress(MsRecoverError):
                entry = self._entry(path)
        if entry is not None and entry.info is not None and entry.kind == "file":
            return entry.info
        return self.store.stat(path)

    def open(self, path: str) -> OpenFile:
        """Open a file, as `Store.open` does."""
        return self.store.open(path)

    def small(self, path: str, what: str, limit: int = MAX_SMALL_FILE) -> bytes:
        """Return the bytes of a small file, `what` in messages; errors as for `Store.read_small`."""
        if path.startswith("/"):
            return read_local(path, what, limit)
        if self._local:
            return read_local(self._ahead + path, what, limit)
        if self.is_gone(path):
            raise MissingInputError(f"{self.name(path)}: no such file; {what} was expected there")
        return self.store.read_small(path, what, limit)

    def check_reached(self, error: MsRecoverError) -> None:
        """Raise an error of a distant store again that is none of the file: nothing may rest on half of the tree.

        A device of this host that fails concerns the files on it; a server that does not answer, or answers with
        errors, concerns all that it has.
        """
        if not self.near and concerns_all(error):
            raise error

    def brief(self, error: Exception, path: str) -> str:
        """Return a message without the path that a report shows beside it."""
        name = self.name(path)
        return str(error).removeprefix(f"{name}: ").removeprefix(f"{name} ")

    def _entry(self, path: str) -> Entry | None:
        folder, _, name = path.rpartition("/")
        entries = self.entries(folder)
        at = bisect_left(entries, name, key=_name)
        return entries[at] if at < len(entries) and entries[at].name == name else None

    def _list_distant(self, folder: str) -> list[Entry]:
        """List a folder, unless the list of the one that it is in shows that it is none."""
        if folder.count("/") >= _DEEPEST:
            raise StorageError(f"{self.name(folder)} lies in more than {_DEEPEST} folders: check the server")
        if folder and self.is_gone(folder):
            raise MissingInputError(f"{self.name(folder)}: no such folder; check the URL")
        if folder and self.kind(folder) in ("file", "other"):
            no_folder = NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
            raise MissingInputError(f"{self.name(folder)} is no folder; check the URL") from no_folder
        return self._checked(folder, self.store.list(folder))

    def _checked(self, folder: str, entries: list[Entry]) -> list[Entry]:
        self._listed += len(entries)
        where = self.name(folder)
        if len(entries) > MOST_NAMES or self._listed > _MOST_IN_ALL:
            most, what = (MOST_NAMES, where) if len(entries) > MOST_NAMES else (_MOST_IN_ALL, self.root)
            raise StorageError(f"{what} lists more than {most:,} names: name a folder that holds fewer")
        entries = sorted(entries, key=_name)
        last = None
        for entry in entries:
            if not is_name(entry.name):
                raise StorageError(f"{where} lists {entry.name[:100]!r}, which is no name of a file: check the server")
            if entry.name == last:
                raise StorageError(f"{where} lists {entry.name[:100]!r} twice: check the server, then repeat it")
            last = entry.name
        return entries


def _name(entry: Entry) -> str:
    return entry.name
