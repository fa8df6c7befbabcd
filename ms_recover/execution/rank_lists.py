"""Writing ``group_info.pb``, the rank lists."""

from __future__ import annotations

import os
from collections.abc import Iterable

from ms_recover.formats.group_info import encode_restore_list
from ms_recover.stores.atomic import write_small


def write_group_info(
    path: str | os.PathLike[str],
    restore_ranks: Iterable[int],
    mode: int = 0o600,
    *,
    owner_of: str | None = None,
) -> None:
    """Write a ``group_info.pb`` that holds nothing but a restore list, whole or not at all; one there is replaced.

    The `restore_ranks` are the global ranks that hold the same slice, the owner among them, and are written in
    ascending order. MindSpore's own files have mode 0600. Other parameters and errors are those of
    `ms_recover.stores.atomic.write_small` and `encode_restore_list`.
    """
    data = encode_restore_list(tuple(sorted(restore_ranks)))
    write_small(path, data, mode=mode, owner_of=owner_of)
