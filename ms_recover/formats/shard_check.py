"""``metadata.json`` as a whole: every fragment has files, holders fit the layouts, names fit the ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ms_recover.errors import FormatError
from ms_recover.file_names import WeightsName, weights_name
from ms_recover.model.shard_metadata import ShardedParameter, ShardMetadata, StoredShard

_Shards = tuple[tuple[StoredShard, ...], ...]


def check_storage(
    parameters: Mapping[str, ShardedParameter], stored: Mapping[str, Mapping[int, tuple[StoredShard, ...]]]
) -> tuple[dict[str, _Shards], bool]:
    """Return the files of the shards of each parameter, in the order of its chunks, and whether rank groups are stated.

    Groups that are not stated are filled in from the layouts and the files.

    Raises
    ------
    FormatError
        When a fragment has no files, a shard is of no parameter, or the holders contradict the layout.
    """
    stated = {bool(items[0].rank_group) for held in stored.values() for items in held.values()}
    if len(stated) > 1:
        raise FormatError("storage_data states the rank_group of some shards and not of others")
    for name in stored:
        if name not in parameters:
            raise FormatError(f"storage_data lists {name!r}, which state_dict_metadata does not have")
    found: dict[str, _Shards] = {}
    checked: dict[tuple[int, ...], _Shards] = {}
    same: dict[tuple[StoredShard, ...], tuple[StoredShard, ...]] = {}
    for name, parameter in parameters.items():
        held = stored.get(name, {})
        if len(held) != len(parameter.chunks) or any(index not in held for index in parameter.chunks):
            missing = sorted(set(parameter.chunks) - held.keys()) or sorted(held.keys() - set(parameter.chunks))
            raise FormatError(
                f"storage_data and the chunks of {name!r} differ: fragment {missing[0]} is only in one of them"
            )
        shards = tuple(held[index] for index in parameter.chunks)
        key = (id(parameter.layout), *map(id, shards))
        if key not in checked:
            try:
                whole = shards if stated == {True} else tuple(_with_group(parameter, *one) for one in held.items())
                _check_holders(parameter, whole)
            except FormatError as error:
                raise FormatError(f"storage_data[{name!r}]: {error}") from None
            checked[key] = tuple(same.setdefault(items, items) for items in whole)
        found[name] = checked[key]
    return found, stated != {False}


def check_files(metadata: ShardMetadata) -> None:
    """Check the names of files against the ranks that wrote them; a FormatError says what contradicts what."""
    stages = metadata.stages
    if len({len(ranks) for ranks in stages}) > 1:
        raise FormatError(f"its layouts have stages of {len(stages[0])} and of other numbers of ranks")
    written: dict[str, int] = {}
    for items in metadata.shards:
        for item in items:
            if written.setdefault(item.file_name, item.storage_rank) != item.storage_rank:
                raise FormatError(
                    f"{item.file_name!r} is said to be written by rank {written[item.file_name]} and by rank "
                    f"{item.storage_rank}"
                )
    names = [(rank, name) for file, rank in written.items() if (name := weights_name(file))]
    if len({name.prefix for _, name in names}) > 1:
        raise FormatError("its files have different prefixes")
    for kind in ("model", "opt"):
        _check_names(metadata, sorted((rank, name) for rank, name in names if name.kind == kind))


def _with_group(parameter: ShardedParameter, fragment: int, items: tuple[StoredShard, ...]) -> tuple[StoredShard, ...]:
    """Return the files of a shard with the rank group that its version of MindFormers does not write."""
    ranks = {item.storage_rank for item in items}
    if parameter.layout:
        ranks.update(parameter.layout.holders[fragment])
    group = tuple(sorted(ranks))
    return tuple(replace(item, rank_group=group) for item in items)


def _check_holders(parameter: ShardedParameter, shards: _Shards) -> None:
    """Compare the rank groups with the holders by layout, which other stages may repeat for a shared parameter."""
    layout = parameter.layout
    if not layout:
        return
    size, first = len(layout.rank_list), layout.rank_list[0]
    starts: set[int] = set()
    for place, (fragment, items) in enumerate(zip(parameter.chunks, shards, strict=True)):
        group, holders = items[0].rank_group, layout.holders[fragment]
        if group != holders or starts - {first}:
            found = {rank // size * size for rank in group}
            if place and found != starts:
                raise FormatError("the fragments are held by different stages")
            starts = found
            expected = sorted(rank - first + start for start in starts | {first} for rank in holders)
            if list(group) != expected:
                raise FormatError(
                    f"fragment {fragment}: rank_group {_some(group)} contradicts layout, by which {_some(holders)} "
                    "hold it"
                )
        elif not place:
            starts = {first}


def _check_names(metadata: ShardMetadata, names: list[tuple[int, WeightsName]]) -> None:
    """Check the names of the files of one kind, by the ranks that wrote them."""
    counts = sorted({name.file_count for _, name in names})
    if len(counts) > 1:
        raise FormatError(f"the names of its files count {counts[0]} and {counts[1]} files")
    if len({rank for rank, _ in names}) != len(names):
        raise FormatError("a rank is said to have written two files of one kind")
    before = -1
    for rank, name in names:
        if name.file_index >= name.file_count or not before < name.file_index <= rank:
            raise FormatError(f"{name.name!r} is said to be written by rank {rank}, which its index contradicts")
        before = name.file_index
        if metadata.removed_redundancy is False and name.file_index != rank:
            raise FormatError(f"{name.name!r} is said to be written by rank {rank} although no redundancy was removed")
    if names and metadata.removed_redundancy is False and counts[0] != metadata.world_size:
        raise FormatError(f"the names of its files count {counts[0]} ranks, and it names {metadata.world_size}")


def _some(ranks: tuple[int, ...]) -> str:
    shown = ", ".join(map(str, ranks[:8]))
    return f"[{shown}{', ...' if len(ranks) > 8 else ''}]"
