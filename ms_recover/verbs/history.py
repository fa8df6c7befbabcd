"""The verb history: at which steps replicas agreed, by manifests alone.

>>> from ms_recover import api
>>> found = api.history("/checkpoints")       # doctest: +SKIP
>>> for one in found.disagreements:                 # doctest: +SKIP
...     print(one.first, one.parameter, one.outvoted)
"""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

from ms_recover.errors import MissingInputError
from ms_recover.model.inventory import Inventory
from ms_recover.model.options import DEFAULT_PLAN, DEFAULT_SCAN, PlanOptions, ScanOptions
from ms_recover.model.progress import Progress
from ms_recover.planning.history.make_history import make_tree_history
from ms_recover.planning.tree.tree_facts import TreeFacts
from ms_recover.scanning.scan import scan

if TYPE_CHECKING:
    from ms_recover.model.history import History, OddValues


def history(  # noqa: PLR0913 (the keywords of programs)
    tree: Inventory | str | os.PathLike[str],
    options: PlanOptions = DEFAULT_PLAN,
    *,
    layout: ScanOptions = DEFAULT_SCAN,
    read: bool = False,
    last: int | None = None,
    jobs: int = 1,
    progress: Progress | None = None,
) -> History:
    """Return the history of the run that `plan` would recover, by its manifests.

    Parameters
    ----------
    tree : Inventory, str or path
        The result of `ms_recover.scan`, or the root of a tree or its URL: of that only manifests are read, no slice is
        opened.
    options : PlanOptions
        `run`, `tolerate`, `lost`, `world_size` and the operator's word count.
    layout : ScanOptions
        How a tree that is named by its root is laid out.
    read : bool
        Read the slices as well, each contents once, to find NaN, Inf and parameters that became all zero.
    last : int, optional
        With `read`: read those of so many of the newest steps only.
    jobs : int
        Threads that read.
    progress : callable, optional
        See `ms_recover.model.progress.Progress`; the bytes that are read.

    Raises
    ------
    MissingInputError
        When the tree does not exist, or holds no slice and no manifest.
    UsageError, ContradictionError, StorageError
        As `ms_recover.api.scan` and `ms_recover.api.plan` do.
    """
    inventory = tree if isinstance(tree, Inventory) else scan(tree, replace(layout, headers=False))
    if not inventory.slices and not inventory.orphans:
        raise MissingInputError(
            f"{inventory.root} holds no slice and no manifest: name another folder, or describe the file names with "
            "--pattern"
        )
    facts = TreeFacts(inventory, options)
    by_manifests = make_tree_history(facts)
    if not read:
        return by_manifests
    return _with_values(by_manifests, facts, last, jobs, progress)


def _with_values(known: History, tree: TreeFacts, last: int | None, jobs: int, progress: Progress | None) -> History:
    """Return a history with what reading the slices of its steps shows."""
    from ms_recover.formats.finite import FLOATING
    from ms_recover.planning.history.values import ReadValues, choose_contents, find_odd_values
    from ms_recover.planning.history.witnesses import find_moments
    from ms_recover.scanning.read_values import read_values
    from ms_recover.stores.urls import open_store

    total = 0

    def count(more: int) -> None:
        nonlocal total
        with lock:
            total += more
        if progress is not None:
            progress(more)

    lock = threading.Lock()
    steps = {agreed.step for agreed in (known.steps[-last:] if last else known.steps)}
    odd: list[OddValues] = []
    zeros: set[str] = set()
    unread: dict[str, str] = {}
    with open_store(known.root) as store:
        for facts in tree.every():
            moments = [moment for moment in find_moments(facts, tree) if moment.step in steps]
            paths = frozenset(file.path for file in facts.inventory.slices)
            read = ReadValues()
            # Each contents once; where a slice cannot be read, another one that should hold the same is chosen.
            while wanted := choose_contents(moments, paths, FLOATING, read):
                read = read.with_found(wanted, read_values(store, wanted, jobs=jobs, progress=count))
            values, zero = find_odd_values(moments, read)
            odd += values
            zeros |= set(zero)
            unread |= read.unread
    places = {agreed.step: place for place, agreed in enumerate(known.steps)}
    return replace(
        known,
        read=True,
        read_bytes=total,
        values=tuple(sorted(odd, key=lambda value: (places[value.first], value.parameter, value.kind))),
        zeros=tuple(sorted(zeros)),
        unread=tuple(f"{path}: {why}" for path, why in sorted(unread.items())),
    )
