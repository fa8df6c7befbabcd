"""Manifests for a tree that was saved without them."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Iterable, Mapping, Sequence

from ms_recover.errors import FormatError, MissingInputError, VerificationError
from ms_recover.execution.lock import lock_tree
from ms_recover.execution.manifests import TOOL, strategy_digest, write_manifest
from ms_recover.file_names import MANIFEST_SUFFIX, STRATEGY_NAME
from ms_recover.formats.manifest import MAX_SIZE, encode_manifest
from ms_recover.formats.reading import MAX_SMALL_FILE
from ms_recover.model.inventory import SliceFile
from ms_recover.model.manifest import Digests, Manifest
from ms_recover.model.provenance import Provenance
from ms_recover.model.verdicts import Evidence
from ms_recover.stores.digest import digest_of
from ms_recover.stores.directories import DirectorySyncs
from ms_recover.stores.paths import join
from ms_recover.stores.threads import in_threads
from ms_recover.stores.urls import is_url, open_store
from ms_recover.system_errors import explained

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
    if is_url(root):
        return _seal_in_store(root, list(slices), groups, world_size, digests)
    syncs = DirectorySyncs()
    strategy_of = functools.cache(strategy_digest)  # one strategy file, slices of many steps

    def seal(one: tuple[SliceFile, Evidence]) -> str:
        file, evidence = one
        path = os.path.join(root, file.path)
        with explained("sealing", path):
            os.stat(path)
        group = groups.get(file.rank, (file.rank,))
        manifest = sealing(file, evidence, group, world_size, digests[file.path], strategy_of(os.path.dirname(path)))
        write_manifest(path, manifest, syncs)
        _log.info("rank %d, step %s: %s sealed, by %s", file.rank, file.step, file.path, evidence)
        return file.path

    with lock_tree(root):
        sealed = in_threads(_WRITERS, seal, slices)
        for error in syncs.sync_all(_WRITERS):
            raise error
    return sealed


def _seal_in_store(
    root: str,
    slices: Sequence[tuple[SliceFile, Evidence]],
    groups: Mapping[int, tuple[int, ...]],
    world_size: int,
    digests: Mapping[str, Digests],
) -> list[str]:
    """Write manifests beside the slices of a store, each read back; nothing is locked."""
    with open_store(root) as store:

        @functools.cache
        def strategy_of(folder: str) -> str | None:
            try:
                data = store.read_small(join(folder, STRATEGY_NAME), "a strategy file", MAX_SMALL_FILE)
            except (MissingInputError, FormatError):
                return None
            return digest_of(data)

        def seal(one: tuple[SliceFile, Evidence]) -> str:
            file, evidence = one
            group = groups.get(file.rank, (file.rank,))
            strategy = strategy_of(os.path.dirname(file.path))
            manifest = sealing(file, evidence, group, world_size, digests[file.path], strategy)
            data, beside = encode_manifest(manifest), file.path + MANIFEST_SUFFIX
            store.stat(file.path)
            with store.create(beside) as new:
                new.write(data)
                new.commit()
            if store.read_small(beside, "a manifest", MAX_SIZE) != data:
                raise VerificationError(f"{store.url}/{beside} is not what was written there: check the store")
            return file.path

        return in_threads(_WRITERS, seal, slices)


def sealing(
    file: SliceFile,
    evidence: Evidence,
    group: tuple[int, ...],
    world_size: int,
    digests: Digests,
    strategy_digest: str | None,
) -> Manifest:
    """Return the manifest of a sound slice that was saved without one."""
    return Manifest(
        run_id="",
        rank=file.rank,
        world_size=world_size,
        step=file.step,
        cumulative_step=None,
        file=os.path.basename(file.path),
        size=file.size,
        digests=digests,
        parameters=file.parameters,
        group=group,
        strategy_digest=strategy_digest,
        provenance=Provenance(kind="sealed", evidence=evidence),
        tool=TOOL,
    )
