"""A rank sets its own slices aside, so that no recovery takes them, and brings them back."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Sequence

from ms_recover.errors import MsRecoverError
from ms_recover.execution.set_aside import explained_whole, rename_slice, supersede
from ms_recover.file_names import MANIFEST_SUFFIX
from ms_recover.formats.manifest import read_manifest
from ms_recover.model.inventory import SetAside
from ms_recover.model.manifest import Manifest
from ms_recover.model.steps import Step
from ms_recover.model.texts import list_some
from ms_recover.planning.tree.lineage import Lineage
from ms_recover.stores.local_store import LocalStore

_log = logging.getLogger(__name__)

_MOST_NAMED = 3


def _supersede(path: str, why: str) -> str | None:
    """Rename a slice and what belongs to it: ``.superseded`` is appended. `why` is a clause.

    Returns its path there, None where there was nothing to rename.

    Raises StorageError when the file system refuses.
    """
    folder, name = os.path.split(path)
    aside = supersede(LocalStore(folder), name, f"it {why}: move it away yourself")
    return os.path.join(folder, aside) if aside is not None else None


def set_all_aside(rank: int, slices: Iterable[tuple[str, Step]], why: str) -> None:
    """Rename slices of this rank, each when it is drawn, and name them in one line; `why` follows their number.

    Raises StorageError when the file system refuses.
    """
    made: list[tuple[Step, str]] = []
    try:
        for path, step in slices:
            aside = _supersede(path, f"is {why}")
            if aside is not None:
                made.append((step, aside))
    finally:
        _say(rank, made, why)


def _say(rank: int, made: Sequence[tuple[Step, str]], why: str) -> None:
    if made:
        names = list_some((os.path.basename(path) for _, path in made), _MOST_NAMED)
        newest, path = max(made)
        _log.warning(
            "rank %d, %s: %d slice(s) up to step %s, %s, renamed to %s",
            rank,
            os.path.dirname(path),
            len(made),
            newest,
            why,
            names,
        )


class Renames:
    """The slices that were renamed to be resumed from; renamed back unless everything that was resumed is proven."""

    def __init__(self) -> None:
        self._done: list[tuple[str, str]] = []

    def __len__(self) -> int:
        return len(self._done)

    def note(self, path: str, to: str) -> None:
        """Note that a slice got another name."""
        self._done.append((path, to))

    def keep(self) -> None:
        """Leave all as it is."""
        self._done.clear()

    def taken(self) -> Renames:
        """Return what was renamed so far, which is no longer this one's to rename back."""
        others = Renames()
        others._done, self._done = self._done, []
        return others

    def undo(self) -> None:
        """Give all slices their names of before, the last one first; StorageError when the file system refuses."""
        names: list[str] = []
        folder = ""
        while self._done:
            path, to = self._done.pop()
            with explained_whole("renaming back", to, f"its name was {os.path.basename(path)}"):
                rename_slice(LocalStore(os.path.dirname(to)), os.path.basename(to), os.path.basename(path))
            names, folder = [*names, os.path.basename(path)], os.path.dirname(path)
        if names:
            _log.warning(
                "%s: %d slice(s) not resumed from, renamed back to %s",
                folder,
                len(names),
                list_some(names, _MOST_NAMED),
            )


def bring_back(rank: int, root: str, slices: Iterable[SetAside], lineage: Lineage, renames: Renames) -> None:
    """Give the slices of this rank that belong to a lineage their names back; `renames` notes them.

    Raises StorageError when the file system refuses.
    """
    made: list[tuple[Step, str]] = []
    displaced: list[tuple[Step, str]] = []
    for one in slices:
        path, aside = os.path.join(root, one.path), os.path.join(root, one.aside)
        if one.rank != rank:
            continue
        if lineage.order_of(_manifest_of(path, aside), one.step) is None:
            continue
        if os.path.lexists(path):
            away = _supersede(path, f"takes the place of a slice of {lineage.last.text}")
            if away is not None:
                renames.note(path, away)
                displaced.append((one.step, away))
        with explained_whole("bringing back", aside, "give it its name back yourself"):
            rename_slice(LocalStore(os.path.dirname(path)), os.path.basename(aside), os.path.basename(path))
        renames.note(aside, path)
        made.append((one.step, path))
    _say(rank, displaced, f"in the place of slices of {lineage.last.text}")
    _say(rank, made, f"of {lineage.last.text}")


def _manifest_of(path: str, aside: str) -> Manifest | None:
    """Return the manifest of a slice that was set aside; it has its old name where bringing back was interrupted."""
    for place in (aside, path):
        try:
            if place == aside or not os.path.lexists(path):
                return read_manifest(place + MANIFEST_SUFFIX)
        except MsRecoverError:
            continue
    return None
