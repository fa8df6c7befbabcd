"""The inventories of nodes as one."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import replace

from ms_recover.engine.workers import Node
from ms_recover.model.inventory import Inventory, Note
from ms_recover.model.options import ScanOptions
from ms_recover.model.slices import Parameter
from ms_recover.model.strategy import Strategy


def named_files(options: ScanOptions) -> Inventory:
    """Return the rank lists and strategy files that options name, which lie on this host; errors as for a scan."""
    if not options.group_info and not options.strategy:
        return Inventory(root="")
    from ms_recover.scanning.scan import scan

    own = ScanOptions(group_info=options.group_info, strategy=options.strategy, may_be_empty=True)
    with tempfile.TemporaryDirectory(prefix="ms_recover-") as empty:
        found = scan(empty, own)
    return Inventory(root="", group_files=found.group_files, strategy_files=found.strategy_files)


def sharing(inventories: Iterable[Inventory]) -> tuple[Inventory, ...]:
    """Return the inventories of nodes with what a scan of one tree has: equal lists and strategies are one object.

    Inodes are numbered, so that no two nodes have the same.
    """
    lists: dict[tuple[Parameter, ...], tuple[Parameter, ...]] = {}
    strategies: dict[tuple[str, tuple[int, ...]], Strategy] = {}
    inodes: dict[tuple[int, tuple[int, int]], int] = {}
    shared = []
    for number, inventory in enumerate(inventories):
        slices = []
        for file in inventory.slices:
            parameters = lists.setdefault(file.parameters, file.parameters)
            inode = None
            if file.inode is not None:
                inode = (-1, inodes.setdefault((number, file.inode), len(inodes)))
            manifest = file.manifest
            if manifest is not None:
                same = lists.setdefault(manifest.parameters, manifest.parameters)
                manifest = replace(manifest, parameters=same)
            slices.append(replace(file, parameters=parameters, inode=inode, manifest=manifest))
        files = []
        for one in inventory.strategy_files:
            key = (one.digest, one.stages)  # a merged file gives one strategy for each stage
            files.append(replace(one, strategy=strategies.setdefault(key, one.strategy)) if one.digest else one)
        shared.append(replace(inventory, slices=tuple(slices), strategy_files=tuple(files)))
    return tuple(shared)


def completed(whole: Inventory, inventories: Sequence[Inventory], nodes: Sequence[Node]) -> Inventory:
    """Add what only a scan of the whole tree states."""
    there = {file.path for file in whole.slices}
    orphans = {one.path: one for inventory in reversed(inventories) for one in inventory.orphans}
    aside = {one.aside: one for inventory in reversed(inventories) for one in inventory.set_aside}
    gone = tuple(Note(f"{node.label}{node.root}", "does not exist there") for node in nodes if node.gone)
    return replace(
        whole,
        notes=(*gone, *whole.notes),
        denied=tuple(sorted(one for inventory in inventories for one in inventory.denied)),
        orphans=tuple(
            sorted(
                (one for one in orphans.values() if one.path not in there),
                key=lambda one: (one.rank, one.step, one.path),
            )
        ),
        set_aside=tuple(sorted(aside.values(), key=lambda one: (one.rank, one.step, one.path))),
        other_sets=tuple(dict.fromkeys(one for inventory in inventories for one in inventory.other_sets)),
    )


def why_empty(inventory: Inventory) -> str:
    """Return why a node has no slices, as far as it says so."""
    return inventory.notes[0].reason if inventory.notes else "empty"
