"""A tree after the files of some ranks are gone: the slices, and what lies beside them in directories of one rank."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import TypeVar

from ms_recover.model.inventory import GroupFile, Inventory, MetaFile, RankPath, StrategyFile, UnhealthySlice

_File = TypeVar("_File", GroupFile, StrategyFile, MetaFile, UnhealthySlice)


def inventory_without(inventory: Inventory, ranks: Collection[int], world: int) -> Inventory:
    """Return what a scan finds after the files of some ranks are gone.

    Rank lists, strategy files and documents in the directory of a rank go with it. What lies elsewhere stays, as the
    documents of iterations do. `world` is the number of ranks.
    """
    owners, gone = owners_of(inventory, world), frozenset(ranks)

    def left(files: Iterable[_File]) -> tuple[_File, ...]:
        return tuple(file for file in files if owner_of(file.path, owners) not in gone)

    return replace(
        inventory,
        ranks=tuple(rank for rank in inventory.ranks if rank not in gone),
        slices=tuple(file for file in inventory.slices if file.rank not in gone),
        orphans=tuple(orphan for orphan in inventory.orphans if orphan.rank not in gone),
        denied=tuple((rank, note) for rank, note in inventory.denied if rank not in gone),
        set_aside=tuple(file for file in inventory.set_aside if file.rank not in gone),
        group_files=left(inventory.group_files),
        strategy_files=left(inventory.strategy_files),
        meta_files=left(inventory.meta_files),
        unhealthy=left(inventory.unhealthy),
    )


def owner_of(path: str, owners: Mapping[str, Collection[int]]) -> int | None:
    """Return the rank in whose directory a file lies; None where it is no directory of a single rank."""
    ranks = owners.get(path.rpartition("/")[0], ())
    return next(iter(ranks)) if len(ranks) == 1 else None


def owners_of(inventory: Inventory, ranks: int) -> Mapping[str, Collection[int]]:
    """Return the ranks whose files lie in each directory, or would where other ranks' lie as theirs do."""
    owners: dict[str, set[int]] = defaultdict(set)
    lists = ((file.path, file.rank) for file in inventory.group_files if file.rank is not None)
    for path, rank in (*((file.path, file.rank) for file in inventory.slices), *lists):
        owners[path.rpartition("/")[0]].add(rank)
    places = [file.place for file in inventory.slices]
    places += [file.place for file in inventory.orphans]
    places += [file.place for file in inventory.group_files if file.place is not None]
    for place in {_folder(place, 0): place for place in places}.values():
        for rank in range(ranks):
            owners[_folder(place, rank)].add(rank)
    return owners


def _folder(place: RankPath, rank: int) -> str:
    return place.of(rank).rpartition("/")[0]
