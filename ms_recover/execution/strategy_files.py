"""Writing the strategy files of a plan."""

from __future__ import annotations

import os
from collections.abc import Sequence

from ms_recover.errors import VerificationError
from ms_recover.execution.targets import check_place
from ms_recover.formats.reading import MAX_SMALL_FILE, read_small
from ms_recover.model.plan import StrategyWrite
from ms_recover.stores.atomic import write_small
from ms_recover.stores.digest import digest_of
from ms_recover.stores.directories import DirectorySyncs
from ms_recover.stores.store import Store


def write_strategy_file(
    root: str,
    write: StrategyWrite,
    store: Store,
    *,
    follow: Sequence[str] = (),
    syncs: DirectorySyncs | None = None,
) -> bool:
    """Copy a strategy file from a store, whole or not at all; return False when the same one is there already.

    `follow` is as for `check_place`.

    Raises
    ------
    VerificationError
        When the source is not what the plan saw, or something else lies at the target.
    FormatError
        When the target's directory leads elsewhere through a link.
    StorageError, MissingInputError
        As `ms_recover.stores.atomic.write_small` and `Store.read_small`.
    """
    check_place(root, write.target, write.rank, follow)
    path = os.path.join(root, write.target)
    data = store.read_small(write.source, "a strategy file", MAX_SMALL_FILE)
    if digest_of(data) != write.digest:
        raise VerificationError(f"{store.url}/{write.source} changed after the plan was made: plan again")
    if os.path.lexists(path):
        if os.path.isfile(path) and read_small(path, "a strategy file") == data:
            return False
        raise VerificationError(f"{path} appeared or changed after the plan was made; nothing was replaced: plan again")
    write_small(path, data, mode=0o600, owner_of=os.path.dirname(path), syncs=syncs)
    return True
