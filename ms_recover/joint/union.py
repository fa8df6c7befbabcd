"""The inventories of several nodes as one (pure)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

from ms_recover.errors import ContradictionError
from ms_recover.model.inventory import GroupFile, Inventory, MetaFile, Note, SliceFile, StrategyFile
from ms_recover.model.iterations import Document
from ms_recover.model.slices import Parameter
from ms_recover.model.steps import Step
from ms_recover.model.strategy import Strategy

_T = TypeVar("_T")
Small = GroupFile | StrategyFile | MetaFile
HERE = -1
"""The node of the command itself; the others are numbered from 0."""


@dataclass(frozen=True)
class Union:
    """The inventories of this node and of others, as one."""

    inventory: Inventory
    """Of all nodes; paths are relative to the root of this node, or of the one that `holders` names."""
    here: Inventory
    others: tuple[Inventory, ...]
    """Their roots are the names of the nodes."""
    holders: Mapping[str, int]
    """The node that each slice and strategy file comes from, by path; those of this node are not in it."""
    lent: Mapping[str, int]
    """The node that each document of an iteration comes from, by path; those of this node are not in it."""
    away: frozenset[int]
    """Ranks with files on other nodes and none here."""
    denied: Mapping[int, Note]
    """Ranks whose directory on another node that node's server may not list."""

    def at(self, node: int) -> Inventory:
        """Return the inventory of a node."""
        return self.here if node == HERE else self.others[node]

    def name(self, node: int) -> str:
        """Return the name of a node."""
        return self.at(node).root

    def holder(self, path: str) -> int:
        """Return the node that a slice or a strategy file comes from."""
        return self.holders.get(path, HERE)

    @cached_property
    def small(self) -> tuple[Small, ...]:
        """Rank lists, strategy files and records of ranks' directories that only other nodes have."""
        known = {file.path for file in _small(self.here)}
        return tuple(file for file in _small(self.inventory) if file.path not in known)


@dataclass(frozen=True, slots=True)
class Double:
    """The same slice on another node than the one that counts."""

    node: int
    file: SliceFile


def unite(
    here: Inventory, others: Sequence[Inventory], backups: Collection[int] = (), *, spread: bool = False
) -> Union:
    """Unite the inventory of this node with those of others, whose roots are the names of the nodes.

    A rank's slice of a step counts once: this node's if its structure is sound, otherwise that of the first node that
    has a sound one. The `others` at the indexes in `backups` are not nodes: no rank lives there. In a tree that is
    `spread` over the others they are all looked after from here: no directory may be denied on any of them.
    """
    nodes = [here, *map(_naming_host, others)]
    slices, holders = _slices(nodes)
    groups = {file.path: file for node in reversed(nodes) for file in node.group_files}
    strategies = {(file.path, file.rank): file for node in reversed(nodes) for file in node.strategy_files}
    metas = {meta.path: meta for node in reversed(nodes) for meta in node.meta_files}
    orphans = {one.path: one for node in reversed(nodes) for one in node.orphans if one.path not in slices}
    aside = {one.aside: one for node in reversed(nodes) for one in node.set_aside}
    denied = [one for node in nodes[1:] for one in node.denied]
    together = Inventory(
        root=here.root,
        ranks=tuple(sorted({rank for node in nodes for rank in node.ranks})),
        slices=tuple(sorted(slices.values(), key=_place)),
        group_files=tuple(groups[path] for path in sorted(groups)),
        strategy_files=tuple(strategies[key] for key in sorted(strategies)),
        notes=(*here.notes, *(Note(f"{one.root}/{note.path}", note.reason) for one in others for note in one.notes)),
        denied=tuple(sorted([*here.denied, *denied], key=lambda one: one[0])) if spread else here.denied,
        orphans=tuple(sorted(orphans.values(), key=_place)),
        set_aside=tuple(sorted(aside.values(), key=_place)),
        other_sets=tuple(dict.fromkeys(one for node in (nodes if spread else [here]) for one in node.other_sets)),
        meta_files=tuple(metas[path] for path in sorted(metas)),
        unhealthy=tuple(dict.fromkeys(one for node in nodes for one in node.unhealthy)),
        seen=here.seen,
    )
    together, lent = _with_documents(together, nodes)
    elsewhere = {rank for number, one in enumerate(others) if number not in backups for rank in one.ranks}
    return Union(
        inventory=together,
        here=here,
        others=tuple(others),
        holders={**_lenders(here, others), **holders},
        lent=lent,
        away=frozenset(elsewhere - set(here.ranks)),
        denied={} if spread else dict(denied),
    )


def _place(file: Any) -> tuple[int, Step, str]:
    return file.rank, file.step, file.path


def _small(inventory: Inventory) -> Iterator[Small]:
    yield from inventory.group_files
    yield from inventory.strategy_files
    yield from inventory.meta_files


def _slices(nodes: Sequence[Inventory]) -> tuple[dict[str, SliceFile], dict[str, int]]:
    """Return the slices that count by path, and the nodes of those that are not on the first."""
    by_place: dict[tuple[int, Step, str | None], dict[int, list[SliceFile]]] = {}
    for number, node in enumerate(nodes):
        for file in node.slices:
            by_place.setdefault((file.rank, file.step, file.kind), {}).setdefault(number, []).append(file)
    slices: dict[str, SliceFile] = {}
    holders: dict[str, int] = {}
    for held in by_place.values():
        best = next((n for n in sorted(held) if any(file.problem is None for file in held[n])), min(held))
        for file in held[best]:
            if slices.setdefault(file.path, file) is file and best:
                holders[file.path] = best - 1
        for file in held.get(0, []) if best else ():
            slices.setdefault(file.path, file)
    return slices, holders


def _lenders(here: Inventory, others: Sequence[Inventory]) -> dict[str, int]:
    """Return the nodes of the strategy files that this one does not have."""
    known = {file.path for file in _small(here)}
    found = {file.path: number for number, one in reversed(list(enumerate(others))) for file in one.strategy_files}
    return {path: number for path, number in found.items() if path not in known}


def _with_documents(together: Inventory, nodes: Sequence[Inventory]) -> tuple[Inventory, dict[str, int]]:
    """Return the inventory with the iterations of all nodes; each document is this node's, where it has one."""
    lent: dict[str, int] = {}

    def best(held: Sequence[tuple[int, Document[_T]]]) -> Document[_T]:
        """Return the first that can be read, with what lies in its place on this node."""
        (number, first), (holder, found) = held[0], next((one for one in held if one[1].value is not None), held[0])
        if found.value is None or holder == number == 0:
            return first
        lent[first.path] = holder - 1
        return replace(first, value=found.value, problem=None, state=first.state if number == 0 else None)

    by_step: dict[Step, list[tuple[int, Any]]] = {}
    for number, node in enumerate(nodes):
        for one in node.iterations:
            by_step.setdefault(one.step, []).append((number, one))
    iterations = []
    for step in sorted(by_step, reverse=True):
        held = by_step[step]
        metadata = best([(number, one.metadata) for number, one in held])
        common = best([(number, one.common) for number, one in held])
        iterations.append(replace(held[0][1], metadata=metadata, common=common))
    trackers = [(number, node.tracker) for number, node in enumerate(nodes) if node.tracker is not None]
    tracker = best(trackers) if trackers else None
    return replace(together, iterations=tuple(iterations), tracker=tracker), lent


def _naming_host(node: Inventory) -> Inventory:
    """Return the inventory of another node whose denied paths name it."""
    host = f"at {node.root}"
    return replace(
        node,
        slices=tuple(replace(file, problem=f"{file.problem} {host}") if file.denied else file for file in node.slices),
        denied=tuple((rank, Note(note.path, f"{note.reason} {host}")) for rank, note in node.denied),
    )


def documents_at(inventory: Inventory) -> dict[str, Document[Any]]:
    """Return the documents of iterations on a node, by path."""
    found: list[Document[Any]] = [one for it in inventory.iterations for one in (it.metadata, it.common)]
    if inventory.tracker is not None:
        found.append(inventory.tracker)
    return {document.path: document for document in found}


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


def find_doubles(union: Union) -> dict[str, tuple[Double, ...]]:
    """Return the slices of other nodes that one that counts stands for, by path, unless two manifests say so.

    Raises
    ------
    ContradictionError
        When sizes, runs or manifests of sound ones differ.
    """
    doubles: dict[str, tuple[Double, ...]] = {}
    tables = [{file.path: file for file in inventory.slices} for inventory in union.others]
    for path, node in union.holders.items():
        if path not in tables[node]:
            continue
        file = tables[node][path]
        for other, table in enumerate(tables):
            double = table.get(path)
            if other == node or double is None or file.problem is not None or double.problem is not None:
                continue
            if _differ(file, double):
                raise contradiction(union, path, other)
            if file.manifest is None or double.manifest is None:
                doubles[path] = (*doubles.get(path, ()), Double(other, double))
    return doubles


def contradiction(union: Union, path: str, other: int) -> ContradictionError:
    """Return the error for a slice that another node has with other contents."""
    return ContradictionError(
        f"{path} lies on {union.name(union.holder(path))} and on {union.name(other)} with different contents: they are "
        "not of one tree; name the nodes of the run, as node://{node1,node2}/..., or move the wrong one away"
    )


def _differ(one: SliceFile, other: SliceFile) -> bool:
    if one.size != other.size:
        return True
    if one.manifest is None or other.manifest is None:
        return False
    return (one.manifest.digests.file, one.manifest.run_id) != (other.manifest.digests.file, other.manifest.run_id)
