"""The tree that a server serves: the files that a scan knows, and nothing else."""

from __future__ import annotations

import os
import stat
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from ms_recover.errors import InputError, MissingInputError, MsRecoverError, VerificationError
from ms_recover.file_names import MANIFEST_SUFFIX, STATE_SUFFIX
from ms_recover.formats.reading import read_small
from ms_recover.formats.strategy import decode_strategy
from ms_recover.model.actions import FileState
from ms_recover.model.contents import Contents
from ms_recover.model.inventory import Inventory, Note, SliceFile
from ms_recover.model.iterations import Document
from ms_recover.model.manifest import Digests
from ms_recover.model.options import ScanOptions
from ms_recover.scanning.read import Reading, read_contents
from ms_recover.scanning.scan import scan
from ms_recover.scanning.sent_documents import MOST_BYTES
from ms_recover.scanning.sent_inventory import encode_inventory
from ms_recover.serving.pages import Row
from ms_recover.serving.shared_reads import SeenFile, SharedReads
from ms_recover.stores.digest import digest_bytes
from ms_recover.stores.http_digests import Wanted

_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_REST = 10
"""A tree is scanned for new files for at most this part of the time."""
_TICK_NS = 20_000_000
MOST_REPLY = 256 << 20
"""Longest inventory, in bytes."""


class ServedTree:
    """A tree that is only read; threads share it. Errors as for `refresh`."""

    def __init__(self, root: str, options: ScanOptions) -> None:
        self.root = os.path.realpath(root)
        self._options = options
        self._scanning = threading.Lock()
        self._slices: dict[str, SliceFile] = {}
        self._known: frozenset[str] = frozenset()
        self._folders: frozenset[str] = frozenset()
        self._digests: dict[str, tuple[FileState, str]] = {}
        self._reads = SharedReads()
        self._scanned_ns = 0
        self._rest_until = 0.0
        self.scans = 0
        self.inventory: Inventory = self.refresh()

    def refresh(self, stop: Callable[[], bool] | None = None) -> Inventory:
        """Scan again; files that a symbolic link leads to outside the tree are noted and not served.

        Raises
        ------
        MsRecoverError
            When it cannot be scanned.
        """
        with self._scanning:
            return self._refresh(stop)

    def _refresh(self, stop: Callable[[], bool] | None = None) -> Inventory:
        began, began_ns = time.monotonic(), time.time_ns()
        found = scan(self.root, self._options, stop=stop)
        served = tuple(file for file in found.slices if self._is_inside(file.path))
        apart = {file.path for file in found.slices} - {file.path for file in served}
        notes = (*found.notes, *(Note(path, "leads out of the tree that is served") for path in sorted(apart)))
        groups = tuple(file for file in found.group_files if file.place is None or self._is_inside(file.path))
        self.inventory = replace(found, slices=served, group_files=groups, notes=notes)
        self._slices = {file.path: file for file in served}
        self._known = frozenset(_paths(self.inventory))
        self._folders = frozenset(_folders_of(self._known))
        self._scanned_ns, self._rest_until = began_ns, time.monotonic() + _REST * (time.monotonic() - began)
        self.scans += 1
        return self.inventory

    def encoded(self, stop: Callable[[], bool]) -> bytes:
        """Scan again, and return the inventory with its strategy files and documents as it is sent.

        Raises
        ------
        MsRecoverError
            When it cannot be scanned, or is too large.
        """
        with self._scanning:
            inventory = self._refresh(stop)
        data = encode_inventory(inventory, self._strategies(inventory), self._documents(inventory))
        if len(data) > MOST_REPLY:
            raise InputError(
                f"the inventory of {self.root} takes {len(data)} bytes, more than fit: remove old steps from it"
            )
        return data

    def _strategies(self, inventory: Inventory) -> dict[str, bytes]:
        strategies: dict[str, bytes] = {}
        for file in inventory.strategy_files:
            if file.digest in strategies or not (os.path.isabs(file.path) or self._is_inside(file.path)):
                continue
            with suppress(MsRecoverError):  # gone since the scan
                data = read_small(os.path.join(self.root, file.path), "a strategy file")
                if decode_strategy(data, file.path) == file.strategy:  # one of several stages is not
                    strategies[file.digest] = data
        return strategies

    def _documents(self, inventory: Inventory) -> dict[str, bytes]:
        """Return the documents of iterations that lie in the tree, by path; without those that are too large."""
        found: dict[str, bytes] = {}
        for document in _all_documents(inventory):
            if document.value is not None and self._is_inside(document.path):
                with suppress(MsRecoverError):  # gone since the scan
                    found[document.path] = read_small(os.path.join(self.root, document.path), "a document", MOST_BYTES)
        return found

    def is_folder(self, path: str) -> bool:
        """Whether a scan knows a file in or below a folder; looks for new files where the folder above changed."""
        if path not in self._folders:
            self._look_again(path.rpartition("/")[0])
        return path in self._folders or not path

    def open(self, path: str) -> tuple[int, os.stat_result]:
        """Open a file that the scan knows, and return its descriptor and state.

        Raises
        ------
        MissingInputError
            When there is none of that name, or it leads out of the tree.
        MsRecoverError, OSError
            When it cannot be opened.
        """
        if path not in self._known:
            self._look_again(path.rpartition("/")[0])
        if path not in self._known:
            raise MissingInputError(f"{path} is no file of the tree that is served")
        descriptor = os.open(os.path.join(self.root, path), _FLAGS)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or not self._lies_inside(descriptor):
                raise MissingInputError(f"{path} is no file of the tree that is served")
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor, status

    def list(self, folder: str) -> list[Row]:
        """Return what of a folder is served, sorted by name; errors as for `open`."""
        self._look_again(folder)
        descriptor = os.open(os.path.join(self.root, folder), _FLAGS | os.O_DIRECTORY)
        try:
            if folder and not self._lies_inside(descriptor):
                raise MissingInputError(f"{folder} is no folder of the tree that is served")
            rows = []
            for name in sorted(os.listdir(descriptor)):
                path = f"{folder}/{name}" if folder else name
                if path not in self._known and path not in self._folders:
                    continue
                with suppress(OSError):  # gone by now
                    if not self._is_inside(path):
                        continue
                    status = os.stat(name, dir_fd=descriptor)
                    if path in self._folders and stat.S_ISDIR(status.st_mode):
                        rows.append(Row(name=name, size=None, mtime_ns=status.st_mtime_ns))
                    elif path in self._known and stat.S_ISREG(status.st_mode):
                        state = FileState(status.st_size, status.st_mtime_ns)
                        etag, digest = self.etag(path, status), self.worked_out(path, state)
                        rows.append(Row(name=name, size=state.bytes, mtime_ns=state.mtime_ns, etag=etag, digest=digest))
            return rows
        finally:
            os.close(descriptor)

    def etag(self, path: str, status: os.stat_result) -> str:
        """Return the tag of a file: its state, with its digest where that is worked out or a manifest names it.

        A damaged slice and what it is repaired with have one digest by their manifest, and differ in their state.
        """
        state = FileState(status.st_size, status.st_mtime_ns)
        digest = self.worked_out(path, state)
        file = self._slices.get(path)
        if digest is None and file is not None and (file.size, file.mtime_ns) == (state.bytes, state.mtime_ns):
            sound = file.manifest is not None and file.problem is None and file.manifest_problem is None
            digest = file.manifest.digests.file if sound and file.manifest is not None else None
        tag = f"{state.mtime_ns:x}-{state.bytes:x}-{status.st_ctime_ns:x}"
        return f'"{tag}"' if digest is None else f'"{tag}-{digest}"'

    def worked_out(self, path: str, state: FileState) -> str | None:
        """Return the digest of a file that was read in this state; None where it was not."""
        known = self._digests.get(path)
        return known[1] if known is not None and known[0] == state else None

    def digests(self, wanted: Sequence[Wanted], progress: Callable[[int], None], jobs: int) -> Contents:
        """Digest files, each once for all clients; one that changed, or is not served, is reported as a problem."""
        files: list[SeenFile] = []
        problems: dict[str, str] = {}
        for one in wanted:
            try:
                files.append(self._see(one))
            except (MsRecoverError, OSError) as error:
                problems[one.path] = f"cannot be read: {getattr(error, 'strerror', None) or error}"

        def read(files: Sequence[SeenFile], progress: Callable[[int], None]) -> Contents:
            return self._read(files, progress, jobs)

        found = self._reads.contents(files, read, progress).merged(Contents(problems=problems))
        for file in files:
            if file.path in found.digests:
                self._digests[file.path] = file.state, found.digests[file.path].file
        return found

    @property
    def digested_bytes(self) -> int:
        """Bytes that were read for digests."""
        return self._reads.bytes

    def _see(self, wanted: Wanted) -> SeenFile:
        """Return the state of a file that has to be as it is wanted; errors as for `open`, and VerificationError."""
        descriptor, status = self.open(wanted.path)
        os.close(descriptor)
        _check_unchanged(status, FileState(wanted.bytes, wanted.mtime_ns), wanted.path)
        beside = None
        with suppress(OSError):
            beside = os.stat(os.path.join(self.root, wanted.path + STATE_SUFFIX))
        return SeenFile.of(wanted.path, status, beside)

    def _read(self, files: Sequence[SeenFile], progress: Callable[[int], None], jobs: int) -> Contents:
        slices: list[SliceFile] = []
        digests: dict[str, Digests] = {}
        problems: dict[str, str] = {}
        for one in files:
            if (file := self._slices.get(one.path)) is not None:
                slices.append(replace(file, size=one.state.bytes, mtime_ns=one.state.mtime_ns))
                continue
            try:
                digests[one.path] = Digests(self._digest_other(one))
                progress(one.state.bytes)
            except (MsRecoverError, OSError) as error:
                problems[one.path] = f"cannot be read: {getattr(error, 'strerror', None) or error}"
        return read_contents(self.root, slices, Reading(jobs=jobs, progress=progress)).merged(
            Contents(digests, problems)
        )

    def _digest_other(self, file: SeenFile) -> str:
        """Digest a file that is no slice; errors as for `_see`."""
        descriptor, status = self.open(file.path)
        try:
            _check_unchanged(status, file.state, file.path)
            digest = digest_bytes(descriptor, lambda: False)
            _check_unchanged(os.fstat(descriptor), file.state, file.path)
            return digest
        finally:
            os.close(descriptor)

    def _look_again(self, folder: str) -> None:
        """Scan again where a folder has changed since the last scan, and not all the time."""
        try:
            changed = os.stat(os.path.join(self.root, folder)).st_mtime_ns + _TICK_NS > self._scanned_ns
        except (OSError, ValueError):
            return
        if changed and time.monotonic() > self._rest_until:
            with suppress(MsRecoverError), self._scanning:
                if time.monotonic() > self._rest_until:
                    self._refresh()

    def _is_inside(self, path: str) -> bool:
        return os.path.realpath(os.path.join(self.root, path)).startswith(os.path.join(self.root, ""))

    def _lies_inside(self, descriptor: int) -> bool:
        """Whether an open file lies in the tree; its name may lead elsewhere by now."""
        return os.readlink(f"/proc/self/fd/{descriptor}").startswith(os.path.join(self.root, ""))


def _check_unchanged(status: os.stat_result, expected: FileState, path: str) -> None:
    if FileState(status.st_size, status.st_mtime_ns) != expected:
        raise VerificationError(f"{path} is not what the plan saw: plan again")


def _all_documents(inventory: Inventory) -> list[Document[Any]]:
    documents: list[Document[Any]] = [] if inventory.tracker is None else [inventory.tracker]
    for one in inventory.iterations:
        documents += [one.metadata, one.common]
    return documents


def _paths(inventory: Inventory) -> set[str]:
    """Return the paths of the files that a recovery may read, whether they are there or not."""
    paths = {f"{file.path}{suffix}" for file in inventory.slices for suffix in ("", MANIFEST_SUFFIX, STATE_SUFFIX)}
    paths |= {f"{orphan.path}{MANIFEST_SUFFIX}" for orphan in inventory.orphans}
    paths |= {file.path for file in inventory.group_files} | {file.path for file in inventory.strategy_files}
    paths |= {meta.path for meta in inventory.meta_files} | {one.path for one in inventory.unhealthy}
    paths |= {document.path for document in _all_documents(inventory)}
    return {path for path in paths if not os.path.isabs(path) and ".." not in path.split("/")}


def _folders_of(paths: frozenset[str]) -> set[str]:
    folders = {""}
    for path in paths:
        while (path := path.rpartition("/")[0]) not in folders:
            folders.add(path)
    return folders
