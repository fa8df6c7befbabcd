"""``group_info.pb``: the ranks that hold the same slice.

MindSpore writes one per rank at compile time (``GROUP_INFO_FILE``). Its own reader returns an empty list or nonsense
for a file of another kind; this one refuses it and names its kind.
Source: ``ParallelGroupMap`` in ``mindspore/train/node_strategy_pb2.py`` of MindSpore 2.10.
"""

from __future__ import annotations

import os

from ms_recover.errors import FormatError, UsageError
from ms_recover.formats.identify import DESCRIPTIONS, HEAD, classify
from ms_recover.formats.proto import message_class, parse
from ms_recover.formats.reading import read_small
from ms_recover.model.groups import GroupInfo, KnownLists, RankGroup

MAX_RANK = 1 << 24
"""Ranks are smaller than this."""

_NO_GROUPS = b"\x0a\x00"
"""An item without the fields that it must have, as the only one of a file."""


def read_group_info(
    path: str | os.PathLike[str],
    *,
    owner: int | None = None,
    world_size: int | None = None,
) -> GroupInfo:
    """Read a ``group_info.pb``, as `decode_group_info`.

    Raises
    ------
    FormatError
        As `decode_group_info`.
    MissingInputError, StorageError
        As `ms_recover.formats.reading.open_regular`.
    """
    data = read_small(path, "a group_info.pb")
    return decode_group_info(data, os.fspath(path), owner=owner, world_size=world_size)


class KnownGroups(KnownLists):
    """Files that were decoded, by their bytes, and their lists, each of which there is once."""

    def __init__(self) -> None:
        super().__init__()
        self.files: dict[bytes, GroupInfo] = {}


def decode_group_info(
    data: bytes,
    where: str,
    *,
    owner: int | None = None,
    world_size: int | None = None,
    known: KnownGroups | None = None,
) -> GroupInfo:
    """Decode a ``group_info.pb``, `where` in messages.

    Its restore list must name its `owner`, and every rank in it be below the `world_size`, where these are given. Where
    they are not, `known` files are not decoded again, because the ranks of a group have equal ones; this one is added.

    Raises
    ------
    FormatError
        When it is no group file, is damaged, or names invalid ranks.
    """
    if known is not None and data in known.files:
        return known.files[data]
    kind = classify(data[:HEAD], len(data))
    if kind != "group_info":
        raise FormatError(f"{where}: no group_info.pb, the file is {DESCRIPTIONS[kind]}; name the rank's group_info.pb")
    try:
        message = parse("ParallelGroupMap", data.removesuffix(_NO_GROUPS))
        items = message.parallel_group_item
        groups = tuple(RankGroup(item.group_name, tuple(item.parallel_group_ranks.dim)) for item in items)
        ranks = tuple(message.ckpt_restore_rank_list.dim)
        info = GroupInfo(ranks if known is None else known.share(ranks), groups)
        _check(info, owner, world_size)
    except FormatError as error:
        raise FormatError(f"{where}: unusable group_info.pb: {error}; take a sound copy or a peer's file") from error
    if known is not None:
        known.files[data] = info
    return info


def encode_group_info(info: GroupInfo) -> bytes:
    """Return the bytes that MindSpore would write; a UsageError when a rank list is empty or invalid."""
    try:
        _check(info, None, None)
    except FormatError as error:
        raise UsageError(f"these ranks make no valid group_info.pb: {error}") from error
    message = message_class("ParallelGroupMap")()
    for group in info.groups:
        item = message.parallel_group_item.add()
        item.group_name = group.name
        item.parallel_group_ranks.SetInParent()
        item.parallel_group_ranks.dim.extend(group.ranks)
    message.ckpt_restore_rank_list.dim.extend(info.restore_ranks)
    data: bytes = message.SerializeToString()
    return data


def encode_restore_list(ranks: tuple[int, ...]) -> bytes:
    """Return a file that holds a restore list, and no communication groups because nobody knows them.

    With MS_COMPILER_CACHE_ENABLE MindSpore makes its groups from GROUP_INFO_FILE instead of compiling. A file that has
    none leaves it without groups; one that it cannot parse makes it compile. Its parser in C++ refuses an item without
    name and ranks, which protobuf's Python, and so ``mindspore.restore_group_info_list``, passes over
    (``CreateGroupsByCkptFile``, ``mindspore/ccsrc/frontend/parallel/step_parallel.cc``).

    UsageError when the list is empty or invalid.
    """
    return encode_group_info(GroupInfo(ranks)) + _NO_GROUPS


def _check(info: GroupInfo, owner: int | None, world_size: int | None) -> None:
    """Refuse invalid rank lists; the text names no file."""
    ranks = info.restore_ranks
    if not ranks:
        raise FormatError("its restore list is empty, it names no rank")
    limit = MAX_RANK if world_size is None else min(world_size, MAX_RANK)
    for what, listed in (("restore list", ranks), *((f"group {group.name!r}", group.ranks) for group in info.groups)):
        if listed and not 0 <= min(listed) <= max(listed) < limit:
            outside = max(listed) if max(listed) >= limit else min(listed)
            raise FormatError(f"its {what} names rank {outside}, ranks go from 0 to {limit - 1}")
        if len(set(listed)) != len(listed):
            repeated = next(rank for rank in listed if listed.count(rank) > 1)
            raise FormatError(f"its {what} names rank {repeated} twice")
    if owner is not None and owner not in ranks:
        raise FormatError(f"its restore list {_shown(ranks)} does not name rank {owner}, to which the file belongs")


def _shown(ranks: tuple[int, ...]) -> str:
    return str(list(ranks)) if len(ranks) <= 16 else f"[{', '.join(map(str, ranks[:16]))}, ...]"
