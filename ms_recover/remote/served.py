"""The tree that a server serves: the files that a scan knows, and nothing else."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from typing import Any

from ms_recover.errors import MsRecoverError
from ms_recover.formats.reading import read_small
from ms_recover.formats.strategy import decode_strategy
from ms_recover.model.actions import FileState
from ms_recover.model.contents import Contents
from ms_recover.model.inventory import Inventory, Note, SliceFile
from ms_recover.model.iterations import Document
from ms_recover.model.options import ScanOptions
from ms_recover.remote.documents import MOST_BYTES
from ms_recover.remote.inventories import inventory_to_json
from ms_recover.remote.messages import RefusedError, SliceRequest
from ms_recover.scanning.read import read_contents
from ms_recover.scanning.scan import scan

_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY


class ServedTree:
    """A tree that is only read; errors as for `refresh`."""

    def __init__(self, root: str, options: ScanOptions) -> None:
        self.root = os.path.realpath(root)
        self._options = options
        self._known: dict[str, SliceFile] = {}
        self.inventory: Inventory = self.refresh()

    def refresh(self, stop: Callable[[], bool] | None = None) -> Inventory:
        """Scan again; files that a symbolic link leads to outside the tree are noted and not served.

        Raises
        ------
        MsRecoverError
            When it cannot be scanned.
        """
        found = scan(self.root, self._options, stop=stop)
        served = tuple(file for file in found.slices if self._is_inside(file.path))
        apart = {file.path for file in found.slices} - {file.path for file in served}
        notes = (*found.notes, *(Note(path, "leads out of the tree that is served") for path in sorted(apart)))
        groups = tuple(file for file in found.group_files if file.place is None or self._is_inside(file.path))
        self.inventory = replace(found, slices=served, group_files=groups, notes=notes)
        self._known = {file.path: file for file in served}
        return self.inventory

    def to_json(self) -> dict[str, Any]:
        """Return the inventory with its strategy files as plain JSON values."""
        strategies: dict[str, bytes] = {}
        for file in self.inventory.strategy_files:
            if file.digest in strategies or not (os.path.isabs(file.path) or self._is_inside(file.path)):
                continue
            try:
                data = read_small(os.path.join(self.root, file.path), "a strategy file")
                if decode_strategy(data, file.path) == file.strategy:  # one of several stages is not
                    strategies[file.digest] = data
            except MsRecoverError:
                continue  # gone since the scan
        return inventory_to_json(self.inventory, strategies, self._documents())

    def _documents(self) -> dict[str, bytes]:
        """Return the documents of iterations that lie in the tree, by path; without those that are too large."""
        found: dict[str, bytes] = {}
        tracker = self.inventory.tracker
        documents: list[Document[Any]] = [] if tracker is None else [tracker]
        for one in self.inventory.iterations:
            documents += [one.metadata, one.common]
        for document in documents:
            if document.value is not None and self._is_inside(document.path):
                with suppress(MsRecoverError):  # gone since the scan
                    found[document.path] = read_small(os.path.join(self.root, document.path), "a document", MOST_BYTES)
        return found

    def open(self, wanted: SliceRequest) -> int:
        """Open a slice that the scan knows, and return its descriptor.

        Raises
        ------
        RefusedError
            When there is none of that name, it leads out of the tree, or it changed since the client saw it.
        """
        if wanted.path not in self._known:
            raise RefusedError(f"{wanted.path} is no slice of the tree that is served: plan again")
        try:
            descriptor = os.open(os.path.join(self.root, wanted.path), _FLAGS)
        except OSError as error:
            raise RefusedError(f"{wanted.path} cannot be read: {error.strerror}") from None
        try:
            status = os.fstat(descriptor)
            # The place of the open file; its name may lead elsewhere by now.
            place = os.readlink(f"/proc/self/fd/{descriptor}")
            if not stat.S_ISREG(status.st_mode) or not place.startswith(os.path.join(self.root, "")):
                raise RefusedError(f"{wanted.path} is no file of the tree that is served")
            check_unchanged(status, wanted)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def digests(self, wanted: Iterable[SliceRequest], progress: Callable[[int], None], jobs: int) -> Contents:
        """Digest slices; errors as for `open`, but a slice that changed is reported as a problem."""
        files, problems = [], {}
        for one in wanted:
            try:
                os.close(self.open(one))
                files.append(replace(self._known[one.path], size=one.state.bytes, mtime_ns=one.state.mtime_ns))
            except RefusedError as error:
                problems[one.path] = str(error)
        return read_contents(self.root, files, jobs=jobs, progress=progress).merged(Contents(problems=problems))

    def _is_inside(self, path: str) -> bool:
        return os.path.realpath(os.path.join(self.root, path)).startswith(os.path.join(self.root, ""))


def check_unchanged(status: os.stat_result, wanted: SliceRequest) -> None:
    """Refuse a slice that changed since the client saw it, with a RefusedError."""
    if FileState(status.st_size, status.st_mtime_ns) != wanted.state:
        raise RefusedError(f"{wanted.path} is not what the plan saw: plan again")
