"""Manifests for a tree that was saved without them."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Iterable, Mapping

from ms_recover.execution.lock import lock_tree
from ms_recover.execution.manifests import TOOL, strategy_digest, write_manifest
from ms_recover.model.inventory import SliceFile
from ms_recover.model.manifest import Digests, Manifest
from ms_recover.model.provenance import Provenance
from ms_recover.model.verdicts import Evidence
from ms_recover.stores.directories import DirectorySyncs
from ms_recover.stores.threads import in_threads
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
    syncs = DirectorySyncs()
    strategy_of = functools.cache(strategy_digest)  # one strategy file, slices of many steps

    def seal(one: tuple[SliceFile, Evidence]) -> str:
        file, evidence = one
        path = os.path.join(root, file.path)
        folder, name = os.path.split(path)
        with explained("sealing", path):
            os.stat(path)
        manifest = Manifest(
            run_id="",
            rank=file.rank,
            world_size=world_size,
            step=file.step,
            cumulative_step=None,
            file=name,
            size=file.size,
            digests=digests[file.path],
            parameters=file.parameters,
            group=groups.get(file.rank, (file.rank,)),
            strategy_digest=strategy_of(folder),
            provenance=Provenance(kind="sealed", evidence=evidence),
            tool=TOOL,
        )
        write_manifest(path, manifest, syncs)
        _log.info("rank %d, step %s: %s sealed, by %s", file.rank, file.step, file.path, evidence)
        return file.path

    with lock_tree(root):
        sealed = in_threads(_WRITERS, seal, slices)
        for error in syncs.sync_all(_WRITERS):
            raise error
    return sealed
