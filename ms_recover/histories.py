"""The verb history: at which steps replicas agreed, by manifests alone.

>>> from ms_recover import histories
>>> found = histories.history("/checkpoints")       # doctest: +SKIP
>>> for one in found.disagreements:                 # doctest: +SKIP
...     print(one.first, one.parameter, one.outvoted)
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from ms_recover.errors import MissingInputError
from ms_recover.model.inventory import Inventory
from ms_recover.model.options import DEFAULT_PLAN, DEFAULT_SCAN, PlanOptions, ScanOptions
from ms_recover.planning.facts import gather_facts
from ms_recover.planning.history.make_history import make_history
from ms_recover.scanning.scan import scan

if TYPE_CHECKING:
    from ms_recover.model.history import History

Progress = Callable[[int], None]
"""As in `ms_recover.api`."""


def history(
    tree: Inventory | str | os.PathLike[str],
    options: PlanOptions = DEFAULT_PLAN,
    *,
    layout: ScanOptions = DEFAULT_SCAN,
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

    Raises
    ------
    MissingInputError
        When the tree does not exist, or holds no slice and no manifest.
    UsageError, ContradictionError, StorageError
        As `ms_recover.api.scan` and `ms_recover.api.plan` do.
    """
    inventory = tree if isinstance(tree, Inventory) else scan(tree, replace(layout, headers=False, crc=False))
    if not inventory.slices and not inventory.orphans:
        raise MissingInputError(
            f"{inventory.root} holds no slice and no manifest: name another folder, or describe the file names with "
            "--pattern"
        )
    if not inventory.iterations:
        return make_history(gather_facts(inventory, options))
    from ms_recover.model.contents import NOTHING_READ
    from ms_recover.planning.plan_parts import Parts  # which other trees need not load

    return Parts(inventory, options, NOTHING_READ).history()
