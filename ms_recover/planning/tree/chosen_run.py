"""What a tree shows about the run that was chosen: slices and rank lists of other runs do not count for its world."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from ms_recover.errors import ContradictionError, UsageError
from ms_recover.model.groups import each_once
from ms_recover.model.inventory import GroupFile, Inventory
from ms_recover.model.manifest import Manifest
from ms_recover.model.steps import Step
from ms_recover.model.texts import list_some
from ms_recover.planning.tree.lineage import Lineage, identity_of, record_of


def inventory_of_run(inventory: Inventory, lineage: Lineage | None) -> Inventory:
    """Return an inventory without the slices that manifests say are of other runs than a chosen one goes on from.

    Ranks that have no others go with them, and beyond the world that the chosen run states. The whole inventory where
    no run was chosen, or nothing of it is in place.
    """
    if lineage is None or not lineage.chosen:
        return inventory
    outside = {file.path for file in inventory.slices if file.manifest is not None and lineage.order(file) is None}
    own = tuple(file for file in inventory.slices if file.path not in outside)
    stated = [file.manifest for file in own if file.manifest is not None]
    if not outside or not stated:
        return inventory
    gone = {file.rank for file in inventory.slices} - {file.rank for file in own}
    size = max(one.world_size for one in stated)
    ranks = tuple(rank for rank in inventory.ranks if rank not in gone and rank < size)
    return replace(inventory, slices=own, ranks=ranks)


def lists_of_others(inventory: Inventory, lists: Iterable[GroupFile], lineage: Lineage | None) -> dict[str, str]:
    """Return the rank lists that other runs than a chosen one wrote, each path with the reason.

    That is where slices of others lie, and the manifests of the chosen run, as training saved them, name other ranks
    for the rank of the list, and always the same.
    """
    if lineage is None or not lineage.chosen:
        return {}
    named: dict[int, set[tuple[int, ...]]] = defaultdict(set)
    mixed: set[int] = set()
    for file in inventory.slices:
        one = file.manifest
        if one is not None and lineage.order(file) is None:
            mixed.add(file.rank)
        elif one is not None and not one.recovered and len(one.group) > 1:
            for rank in one.group:
                named[rank].add(each_once(one.group))
    found = {}
    for listing in lists:
        ranks = listing.info.sorted_ranks if listing.info is not None else None
        groups = named.get(listing.rank, set()) if listing.rank is not None else set()
        if listing.rank in mixed and ranks is not None and len(groups) == 1 and ranks not in groups:
            found[listing.path] = (
                f"another run wrote it: it names ranks {list(ranks)}, and the manifests of {lineage.last.text} name "
                f"{list(next(iter(groups)))}"
            )
    return found


@contextmanager
def naming_sizes(inventory: Inventory) -> Iterator[None]:
    """Where slices of several numbers of ranks lie in a tree, name the runs and their sizes in what is raised."""
    try:
        yield
    except (ContradictionError, UsageError) as error:
        text = text_of_sizes(inventory)
        if text is None:
            raise
        raise type(error)(f"{error}. {text}") from error


def text_of_sizes(inventory: Inventory) -> str | None:
    """Return the runs of a tree with their numbers of ranks; None where all have the same."""
    newest: dict[tuple[str, int | None, int], tuple[Step, Manifest]] = {}
    manifests = [(one.step, one.manifest) for one in inventory.slices]
    manifests += [(one.step, one.manifest) for one in inventory.set_aside]
    for step, manifest in manifests:
        if manifest is not None:
            key = (*identity_of(manifest), manifest.world_size)
            newest[key] = max(newest.get(key, (step, manifest)), (step, manifest), key=lambda one: one[0])
    if len({size for *_, size in newest}) < 2:
        return None
    found = sorted(newest.items(), key=lambda one: (one[0][1] or 0, one[0]), reverse=True)
    texts = (f"{record_of(one).text}, of {size} rank(s), up to step {step}" for (*_, size), (step, one) in found)
    return (
        f"Slices of different numbers of ranks lie here: {list_some(texts, separator='; ')}. run= (--run) chooses one "
        "of these runs"
    )
