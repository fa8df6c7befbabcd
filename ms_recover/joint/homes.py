"""On which node the slices of a rank belong (pure).

One that knows only itself and those that serve asks `lives_here`; one that looks after all of them, `find_homes`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Protocol

from ms_recover.errors import UsageError
from ms_recover.joint.union import Union
from ms_recover.model.inventory import Inventory
from ms_recover.model.texts import list_some


class Named(Protocol):
    """A node as an operator names it."""

    @property
    def label(self) -> str:
        """Name in messages."""

    @property
    def names(self) -> Collection[str]:
        """Everything that it may be called by."""


def lives_here(union: Union, rank: int, ranks: Collection[int] | None) -> bool:
    """Whether a rank's slice belongs on this node: by `ranks`, or because its files are not only on others."""
    return rank in ranks if ranks is not None else rank not in union.away


def held_ranks(inventory: Inventory) -> dict[int, tuple[tuple[int, int], int]]:
    """Return the ranks with files of their own on a node: their newest step there, and how many files they have."""
    newest: dict[int, tuple[int, int]] = {}
    for file in inventory.slices:
        newest[file.rank] = max(newest.get(file.rank, (-2, -2)), (file.step.epoch, file.step.step))
    counts = Counter(file.rank for file in inventory.slices)
    counts.update(orphan.rank for orphan in inventory.orphans)
    counts.update(file.rank for file in inventory.group_files if file.rank is not None and file.place is not None)
    counts.update(meta.rank for meta in inventory.meta_files)
    counts.update(rank for rank, _ in inventory.denied)
    return {rank: (newest.get(rank, (-2, -2)), counts[rank]) for rank in counts}


def parse_homes(texts: Iterable[tuple[Collection[int], str]], nodes: Sequence[Named]) -> dict[int, int]:
    """Return the nodes that the operator names for ranks, by index.

    Raises
    ------
    UsageError
        When there is no such node, or two are named for one rank.
    """
    homes: dict[int, int] = {}
    for ranks, name in texts:
        found = [index for index, node in enumerate(nodes) if name in node.names]
        if len(found) != 1:
            known = list_some([node.label for node in nodes])
            raise UsageError(f"--home ...={name}: {'no' if not found else 'more than one'} node; the nodes are {known}")
        for rank in ranks:
            if homes.setdefault(rank, found[0]) != found[0]:
                raise UsageError(f"--home names two nodes for rank {rank}")
    return homes


def find_homes(ranks: Iterable[int], union: Union, world_size: int, named: Mapping[int, int]) -> dict[int, int]:
    """Return the node of each rank among the others, by index.

    It is the one that is `named`, or the one that has files of the rank, those of the newest step first. For a rank
    without any it is the one that the other ranks leave for it: in blocks or in turns of equal size, between its
    neighbours, or the only node that has no ranks.

    Raises
    ------
    UsageError
        When that leaves more than one node.
    """
    held = [held_ranks(inventory) for inventory in union.others]
    known = [set(ranks_there) for ranks_there in held]
    for rank, index in named.items():
        known[index].add(rank)
    homes: dict[int, int] = {}
    unknown = []
    for rank in sorted(set(ranks)):
        having = [index for index, ranks_there in enumerate(held) if rank in ranks_there]
        if rank in named:
            homes[rank] = named[rank]
        elif having:
            homes[rank] = max(having, key=lambda index: (held[index][rank], -index))
        else:
            found = _left_for(rank, known, world_size)
            if found is None:
                unknown.append(rank)
            else:
                homes[rank] = found
    if unknown:
        empty = [node.root for node, ranks_there in zip(union.others, known, strict=True) if not ranks_there]
        labels = empty or [node.root for node in union.others]
        raise UsageError(
            f"no node has a file of rank {list_some(unknown)}, and it may belong to any of {list_some(labels)}: say "
            f"where, for example --home {unknown[0]}-{unknown[-1]}={labels[0]}, or name fewer nodes"
        )
    return homes


def _left_for(rank: int, held: Sequence[Collection[int]], world_size: int) -> int | None:
    """Return the node that the ranks of the others leave for one; None when there is more than one, or none."""
    empty = [index for index, ranks in enumerate(held) if not ranks]
    answers: set[int | None] = set()
    if world_size % len(held) == 0:
        size = world_size // len(held)
        for share in (partial(_block, size), partial(_turn, len(held))):
            owners: dict[int, int] = {}
            regular = True
            for index, ranks in enumerate(held):
                shares = {share(one) for one in ranks}
                regular = regular and len(shares) <= 1 and shares.isdisjoint(owners)
                owners.update(dict.fromkeys(shares, index))
            if regular:
                answers.add(owners.get(share(rank), empty[0] if len(empty) == 1 else None))
    if answers:
        return answers.pop() if len(answers) == 1 else None
    between = [index for index, ranks in enumerate(held) if ranks and min(ranks) < rank < max(ranks)]
    candidates = between or empty
    return candidates[0] if len(candidates) == 1 else None


def _block(size: int, rank: int) -> int:
    return rank // size


def _turn(nodes: int, rank: int) -> int:
    return rank % nodes
