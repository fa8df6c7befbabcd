"""Manifests for a tree that was saved without them."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack

from ms_recover.errors import FormatError, MissingInputError
from ms_recover.execution.destination import Destination, LocalDestination, StoreDestination
from ms_recover.execution.lock import lock_tree
from ms_recover.execution.manifests import NamedSlice, strategy_digest
from ms_recover.execution.writable import check_writable
from ms_recover.file_names import MANIFEST_SUFFIX, STRATEGY_NAME
from ms_recover.formats.manifest import encode_manifest
from ms_recover.formats.reading import MAX_SMALL_FILE
from ms_recover.model.inventory import SliceFile
from ms_recover.model.manifest import Digests, Manifest
from ms_recover.model.provenance import Provenance
from ms_recover.model.verdicts import Evidence
from ms_recover.stores.digest import digest_of
from ms_recover.stores.directories import DirectorySyncs
from ms_recover.stores.local_store import LocalStore
from ms_recover.stores.paths import join
from ms_recover.stores.store import Store
from ms_recover.stores.threads import in_threads
from ms_recover.stores.urls import open_store

_log = logging.getLogger(__name__)
_WRITERS = 8
"""Threads that write manifests: they wait for the device, which makes several durable at once."""


def seal_slices(
    root: str,
    slices: Iterable[tuple[SliceFile, Evidence]],
    groups: Mapping[int, tuple[int, ...]],
    world_size: int,
    digests: Mapping[str, Digests],
) -> list[str]:
    """Write the manifests of sound slices, and return the paths of these slices; all is durable when this returns.

    Each slice comes with the ground for sealing it; `groups` has the ranks that hold the same slice, by rank. The
    `digests`, by path, are of the bytes that were judged, and the manifest names these even if the file changes now. A
    MsRecoverError says that a slice is gone or a manifest cannot be written.
    """
    with open_store(root) as store, ExitStack() as lock:
        manifest_of = _Manifests(store, groups, world_size, digests)
        destination: Destination = StoreDestination(store)
        if isinstance(store, LocalStore):
            destination = LocalDestination(store.url, syncs=DirectorySyncs())
            lock.enter_context(lock_tree(root))

        def seal(one: tuple[SliceFile, Evidence]) -> str:
            file, evidence = one
            store.stat(file.path)
            destination.write_manifest(file.path, manifest_of(file, evidence))
            _log.info("rank %d, step %s: %s sealed, by %s", file.rank, file.step, file.path, evidence)
            return file.path

        sealed = in_threads(_WRITERS, seal, slices)
        for error in destination.sync(_WRITERS):
            raise error
        return sealed


class ForeseenSeals:
    """What `seal_slices` would write, without writing anything; called as that is, but for the root.

    Attributes
    ----------
    bytes : int
        Of the manifests.
    """

    def __init__(self, root: str, *, here: bool = True) -> None:
        self._root, self._here = root, here
        self.bytes = 0

    def __call__(
        self,
        slices: Sequence[tuple[SliceFile, Evidence]],
        groups: Mapping[int, tuple[int, ...]],
        world_size: int,
        digests: Mapping[str, Digests],
    ) -> list[str]:
        """Return the paths of the slices that would get a manifest; errors as for `seal_slices`.

        Slices of nodes, which do not lie `here`, are only counted.
        """
        if not self._here:
            for file, evidence in slices:
                group = groups.get(file.rank, (file.rank,))
                self.bytes += len(encode_manifest(sealing(file, evidence, group, world_size, digests[file.path])))
            return [file.path for file, _ in slices]
        with open_store(self._root) as store, ExitStack() as lock:
            manifest_of = _Manifests(store, groups, world_size, digests)
            if isinstance(store, LocalStore):
                lock.enter_context(lock_tree(store.url))
            elif slices:
                store.create(slices[0][0].path + MANIFEST_SUFFIX)  # refuses where the store is only read
            for file, evidence in slices:
                store.stat(file.path)
                self.bytes += len(encode_manifest(manifest_of(file, evidence)))
                if isinstance(store, LocalStore):
                    check_writable(store.path(file.path + MANIFEST_SUFFIX), self.bytes)
            return [file.path for file, _ in slices]


class _Manifests:
    """The manifests of the slices of one tree; strategy files beside them are read once."""

    def __init__(
        self,
        store: Store,
        groups: Mapping[int, tuple[int, ...]],
        world_size: int,
        digests: Mapping[str, Digests],
    ) -> None:
        self._store = store
        self._groups, self._world_size, self._digests = groups, world_size, digests
        self._strategy_of = functools.cache(self._strategy)  # one strategy file, slices of many steps

    def __call__(self, file: SliceFile, evidence: Evidence) -> Manifest:
        """Return the manifest of a slice, sealed on a ground."""
        group, strategy = self._groups.get(file.rank, (file.rank,)), self._strategy_of(os.path.dirname(file.path))
        return sealing(file, evidence, group, self._world_size, self._digests[file.path], strategy)

    def _strategy(self, folder: str) -> str | None:
        if isinstance(self._store, LocalStore):
            return strategy_digest(self._store.path(folder))
        try:
            data = self._store.read_small(join(folder, STRATEGY_NAME), "a strategy file", MAX_SMALL_FILE)
        except (MissingInputError, FormatError):
            return None
        return digest_of(data)


def sealing(
    file: SliceFile,
    evidence: Evidence,
    group: tuple[int, ...],
    world_size: int,
    digests: Digests,
    strategy_digest: str | None = None,
) -> Manifest:
    """Return the manifest of a sound slice that was saved without one."""
    subject = NamedSlice(file.path, file.rank, world_size, file.step, None, "")
    return subject.manifest(file, digests, group, strategy_digest, Provenance(kind="sealed", evidence=evidence))
