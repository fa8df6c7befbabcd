"""Settle the finds of a walk: the names of slices, the set of slices that the scan is about, and evidence beside it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass

from ms_recover.errors import MissingInputError, MsRecoverError, PermissionDeniedError
from ms_recover.file_names import STRATEGY_FOLDER
from ms_recover.model.inventory import OtherSet
from ms_recover.scanning.naming import SliceName, strategy_rank
from ms_recover.scanning.notes import Notes
from ms_recover.scanning.rank_places import settle_rank_places
from ms_recover.scanning.slice_sets import choose_set, without_step
from ms_recover.scanning.tree import Tree
from ms_recover.scanning.walk import Found, RankFile
from ms_recover.stores.local_store import LocalStore
from ms_recover.stores.paths import join


def settle_names(found: Found) -> None:
    """Put the rank at all its places in the names of slices; those of another rank are noted."""
    settled, wrong = settle_rank_places(found.slices)
    found.slices = settled
    for name, number in wrong:
        reason = f"the name says rank {number}, the directory says rank {name.rank}: put it where it belongs"
        found.notes.add(name.path, reason, "other rank")


def keep_one_set(root: str, found: Found) -> tuple[OtherSet, ...]:
    """Leave one set of slices in the finds, and what lies beside it; return the others."""
    sets = choose_set(root, found.slices)
    found.slices = list(sets.chosen)

    def stays(folder: str) -> bool:
        return without_step(found.forms.get(folder, folder)) not in sets.folders

    def own(files: Iterable[RankFile]) -> list[RankFile]:
        return [file for file in files if stays(os.path.dirname(file.path))]

    found.group_files, found.strategy_files = own(found.group_files), own(found.strategy_files)
    found.meta_files = own(found.meta_files)
    found.denied = [(rank, note) for rank, note in found.denied if stays(note.path)]
    found.directories = [(rank, path) for rank, path in found.directories if stays(path)]
    return sets.others


@dataclass(frozen=True)
class Place:
    """A folder in which files of all ranks may lie: of the tree that is scanned, or a local one outside of it."""

    tree: Tree
    folder: str
    ahead: str
    """What comes before a path in it, as the inventory has it: nothing, its path in the tree, or its absolute one."""

    def inside(self, name: str) -> str:
        """Return a path in it as its tree has it."""
        return join(self.folder, name)

    def shown(self, name: str) -> str:
        """Return a path in it as the inventory has it."""
        return f"{self.ahead}{name}"


def places_beside(tree: Tree, slices: Iterable[SliceName]) -> list[Place]:
    """Return the folders in which MindFormers' files of all ranks may lie, nearest to the slices first.

    They are the folder of the ranks' directories and the one above it, then the root and, of a local tree, the one
    above it.
    """
    folders = dict.fromkeys(name.path.rpartition("/")[0] for name in slices)
    containers = list(dict.fromkeys(map(os.path.dirname, folders)))
    if not isinstance(tree.store, LocalStore):
        within = [place for folder in containers for place in (folder, os.path.dirname(folder))]
        return [Place(tree, folder, join(folder, "")) for folder in dict.fromkeys([*within, ""])]
    root = tree.root
    within = [os.path.join(root, container) for container in containers]
    both = [place for folder in (*within, root) for place in (folder, os.path.dirname(os.path.realpath(folder)))]
    places = []
    for path in dict.fromkeys(map(os.path.realpath, both)):
        relative = "" if path == root else os.path.relpath(path, root)
        inside = path == root or path.startswith(os.path.join(root, ""))
        ahead = join(relative, "") if inside else os.path.join(path, "")
        places.append(Place(tree, relative, ahead) if inside else Place(Tree(LocalStore(path)), "", ahead))
    return places


def find_strategy_folder(places: Iterable[Place], notes: Notes) -> tuple[list[RankFile], list[str]]:
    """Return the strategy files of ranks in the first ``strategy/`` in one of the places, and those without a rank.

    One that may not be listed is noted.
    """
    for place in places:
        folder = place.inside(STRATEGY_FOLDER)
        if place.tree.is_gone(folder):
            continue
        try:
            names = [entry.name for entry in place.tree.entries(folder)]
        except PermissionDeniedError:
            notes.add(place.tree.name(folder), place.tree.denied)
            continue
        except MsRecoverError as error:
            if not isinstance(error, MissingInputError):
                place.tree.check_reached(error)
            continue
        shown = place.shown(STRATEGY_FOLDER)
        ranks = [(strategy_rank(name), f"{shown}/{name}") for name in names]
        own = [RankFile(rank, path) for rank, path in ranks if rank is not None and rank >= 0]
        others = [path for rank, path in ranks if rank == -1]
        if own or others:
            return own, others
    return [], []
