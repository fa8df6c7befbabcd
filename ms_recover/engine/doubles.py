"""Slices that lie on more than one node: they must be the same (pure)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ms_recover.engine.workers import Node
from ms_recover.errors import ContradictionError
from ms_recover.model.inventory import Inventory, SliceFile


@dataclass(frozen=True, slots=True)
class Copy:
    """The same slice on another node than the one that counts."""

    node: int
    file: SliceFile


def find_copies(
    inventories: Sequence[Inventory], holders: Mapping[str, int], nodes: Sequence[Node]
) -> dict[str, tuple[Copy, ...]]:
    """Return the copies on other nodes of the slices that count, by path, where no two manifests say that they agree.

    Raises
    ------
    ContradictionError
        When sizes, runs or manifests of sound ones differ.
    """
    copies: dict[str, tuple[Copy, ...]] = {}
    tables = [_by_path(inventory) for inventory in inventories]
    for path, index in holders.items():
        if path not in tables[index]:
            continue
        file = tables[index][path]
        for other, table in enumerate(tables):
            copy = table.get(path)
            if other == index or copy is None or file.problem is not None or copy.problem is not None:
                continue
            if _differ(file, copy):
                raise contradiction(path, nodes[index], nodes[other])
            if file.manifest is None or copy.manifest is None:
                copies[path] = (*copies.get(path, ()), Copy(other, copy))
    return copies


def contradiction(path: str, one: Node, other: Node) -> ContradictionError:
    """Return the error for a slice that two nodes have with different contents."""
    return ContradictionError(
        f"{path} lies on {one.label} and on {other.label} with different contents: they are not of one tree; name the "
        "nodes of the run, as node://{node1,node2}/..., or move the wrong one away"
    )


def _by_path(inventory: Inventory) -> dict[str, SliceFile]:
    return {file.path: file for file in inventory.slices}


def _differ(one: SliceFile, other: SliceFile) -> bool:
    if one.size != other.size:
        return True
    if one.manifest is None or other.manifest is None:
        return False
    return (one.manifest.digests.file, one.manifest.run_id) != (other.manifest.digests.file, other.manifest.run_id)
