"""Writing ``group_info.pb``, the rank lists."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

from ms_recover.errors import MsRecoverError, VerificationError
from ms_recover.execution.targets import check_place
from ms_recover.formats.group_info import encode_restore_list, read_group_info
from ms_recover.model.groups import GroupInfo
from ms_recover.model.plan import GroupWrite
from ms_recover.stores.atomic import write_small
from ms_recover.stores.directories import DirectorySyncs


def write_group_info(
    path: str | os.PathLike[str],
    restore_ranks: Iterable[int],
    mode: int = 0o600,
    *,
    owner_of: str | None = None,
    syncs: DirectorySyncs | None = None,
) -> None:
    """Write a ``group_info.pb`` that holds nothing but a restore list, whole or not at all; one there is replaced.

    The `restore_ranks` are the global ranks that hold the same slice, the owner among them, and are written in
    ascending order. MindSpore's own files have mode 0600. Other parameters and errors are those of
    `ms_recover.stores.atomic.write_small` and `encode_restore_list`.
    """
    data = encode_restore_list(tuple(sorted(restore_ranks)))
    write_small(path, data, mode=mode, owner_of=owner_of, syncs=syncs)


def write_planned(
    root: str,
    write: GroupWrite,
    *,
    damaged: bool = False,
    follow: Sequence[str] = (),
    syncs: DirectorySyncs | None = None,
) -> bool:
    """Write a rank list of a plan; return False when it is there already.

    MindSpore writes rank lists as the job's user, so root gives them to the owner of their directory. A list that the
    plan saw `damaged` may be replaced. `follow` is as for `check_place`.

    Raises
    ------
    VerificationError
        When something else lies there: a sound list with other ranks, a file that the plan did not see.
    FormatError
        When its directory leads elsewhere through a link.
    StorageError, MissingInputError
        As `write_group_info`.
    """
    check_place(root, write.target, write.rank, follow)
    path = os.path.join(root, write.target)
    there = _usable_list(path, write.rank)
    if there is not None and set(there.restore_ranks) == set(write.restore_ranks):
        return False
    replaceable = damaged and there is None and (os.path.isfile(path) or os.path.islink(path))
    if os.path.lexists(path) and not replaceable:
        raise VerificationError(f"{path} appeared or changed after the plan was made; nothing was replaced: plan again")
    write_group_info(path, write.restore_ranks, owner_of=os.path.dirname(path), syncs=syncs)
    return True


def _usable_list(path: str, rank: int) -> GroupInfo | None:
    try:
        return read_group_info(path, owner=rank)
    except MsRecoverError:
        return None
