"""Manifests for a tree that was saved without them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from ms_recover.execution.lock import lock_tree
from ms_recover.execution.manifests import make_manifest, write_manifest
from ms_recover.model.inventory import SliceFile
from ms_recover.model.manifest import Digests
from ms_recover.model.provenance import Provenance
from ms_recover.model.verdicts import Evidence


def seal_slices(
    root: str,
    slices: Iterable[tuple[SliceFile, Evidence]],
    groups: Mapping[int, tuple[int, ...]],
    world_size: int,
    digests: Mapping[str, Digests],
) -> list[str]:
    """Write the manifests of sound slices.

    Parameters
    ----------
    root : str
        The tree.
    slices : iterable of (SliceFile, Evidence)
        The slices to seal, and the ground for each.
    groups : mapping of int to tuple of int
        Rank to the ranks that hold the same slice.
    world_size : int
        Number of ranks.
    digests : mapping of str to Digests
        Of slices that were read, by path; the manifest names the bytes that were judged, even if the file changes now.

    Returns
    -------
    list of str
        Paths of the slices that have a manifest now.

    Raises
    ------
    MsRecoverError
        When a slice cannot be read or a manifest not be written.
    """
    sealed = []
    with lock_tree(root):
        for file, evidence in slices:
            path = os.path.join(root, file.path)
            group = groups.get(file.rank, (file.rank,))
            manifest = make_manifest(
                path,
                file.rank,
                file.step,
                world_size,
                group,
                provenance=Provenance(kind="sealed", evidence=evidence),
                digests=digests.get(file.path),
            )
            write_manifest(path, manifest)
            sealed.append(file.path)
    return sealed
