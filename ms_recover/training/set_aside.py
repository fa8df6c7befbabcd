"""A rank sets its own slices aside, so that no recovery takes them, and brings them back."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable

from ms_recover.errors import MsRecoverError
from ms_recover.execution.set_aside import explained_whole, rename_slice, supersede
from ms_recover.file_names import MANIFEST_SUFFIX
from ms_recover.formats.manifest import read_manifest
from ms_recover.model.inventory import SetAside
from ms_recover.model.manifest import Manifest
from ms_recover.planning.lineage import Lineage
from ms_recover.stores.local_store import LocalStore

_log = logging.getLogger(__name__)


def set_aside(rank: int, path: str, why: str) -> None:
    """Rename a slice of this rank and what belongs to it: ``.superseded`` is appended. `why` is a clause.

    Raises StorageError when the file system refuses.
    """
    aside = supersede(LocalStore(os.path.dirname(path)), os.path.basename(path), f"it {why}: move it away yourself")
    if aside is not None:
        _log.warning("rank %d: %s %s, renamed to %s", rank, path, why, aside)


def bring_back(rank: int, root: str, slices: Iterable[SetAside], lineage: Lineage) -> int:
    """Give the slices of this rank that belong to a lineage their names back; return how many.

    Raises StorageError when the file system refuses.
    """
    count = 0
    for one in slices:
        path, aside = os.path.join(root, one.path), os.path.join(root, one.aside)
        if one.rank != rank:
            continue
        if lineage.order_of(_manifest_of(path, aside), one.step) is None:
            continue
        if os.path.lexists(path):
            set_aside(rank, path, f"takes the place of a slice of {lineage.last.text}")
        with explained_whole("bringing back", aside, "give it its name back yourself"):
            rename_slice(LocalStore(os.path.dirname(path)), os.path.basename(aside), os.path.basename(path))
        _log.warning("rank %d: %s is of %s, renamed to %s", rank, aside, lineage.last.text, os.path.basename(path))
        count += 1
    return count


def _manifest_of(path: str, aside: str) -> Manifest | None:
    """Return the manifest of a slice that was set aside; it has its old name where bringing back was interrupted."""
    for place in (aside, path):
        try:
            if place == aside or not os.path.lexists(path):
                return read_manifest(place + MANIFEST_SUFFIX)
        except MsRecoverError:
            continue
    return None
