"""How many ranks the job had, from what survived."""

from __future__ import annotations

from collections import Counter

from ms_recover.errors import ContradictionError, UsageError
from ms_recover.model.inventory import Inventory

_MOST_RANKS = 1 << 20


def find_world_size(inventory: Inventory, given: int | None = None) -> tuple[int, str]:
    """Return the world size and what it rests on.

    A strategy file tells the devices of its stage; stages own consecutive ranks, so it bounds the world from below
    (device matrix and stage fields of MindSpore's ``node_strategy.proto``).

    Parameters
    ----------
    inventory : Inventory
        What was found.
    given : int, optional
        The operator's word, which wins.

    Manifests tell it outright; without them it is the smallest world that everything found fits into; of strategy files
    that differ in the size of a stage those of which there are most count.

    Raises
    ------
    UsageError
        When `given` is smaller than the ranks whose directories are there.
    ContradictionError
        When a rank list names a rank outside the world.
    """
    highest = max(inventory.ranks)
    listed, by = _highest_listed(inventory)
    if given is not None:
        if given <= highest:
            raise UsageError(
                f"the world size is given as {given}, but there are files of rank {highest}: "
                f"give at least {highest + 1}"
            )
        if listed >= given:
            raise ContradictionError(f"{by} lists rank {listed}, but the world size is given as {given}")
        return given, "as given"
    told = _told_by_manifests(inventory)
    if told is not None and told[0] > max(highest, listed):
        return told
    best, why = highest + 1, "the ranks that have files"
    if listed >= best:
        best, why = listed + 1, f"the ranks listed in {by}"
    sizes = Counter(file.devices_per_stage for file in inventory.strategy_files)
    usual = max(sizes, key=lambda size: (sizes[size], size), default=0)
    for file in sorted(inventory.strategy_files, key=lambda file: file.path):
        ranks = (max(file.stages, default=0) + 1) * file.devices_per_stage
        if file.devices_per_stage == usual and ranks > best:
            best, why = ranks, f"the device matrix in {file.path}"
    if best > _MOST_RANKS:
        raise ContradictionError(
            f"{why} give a world of {best} ranks, more than {_MOST_RANKS}: give the real one with --world-size"
        )
    return best, why


def _told_by_manifests(inventory: Inventory) -> tuple[int, str] | None:
    """Return what most manifests of the newest step that has any say."""
    by_step = [(file.step, file.manifest) for file in inventory.slices if file.manifest is not None]
    if not by_step:
        return None
    newest = max(step for step, _ in by_step)
    sizes = Counter(manifest.world_size for step, manifest in by_step if step == newest)
    return max(sizes, key=lambda size: (sizes[size], size)), f"the manifests of step {newest}"


def _highest_listed(inventory: Inventory) -> tuple[int, str]:
    highest, by = -1, ""
    for file in sorted(inventory.group_files, key=lambda file: file.path):
        if file.info is None:
            continue
        ranks = max((*file.info.restore_ranks, *(rank for group in file.info.groups for rank in group.ranks)))
        if ranks > highest:
            highest, by = ranks, file.path
    return highest, by
