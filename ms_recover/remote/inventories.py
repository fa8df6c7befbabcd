"""What a scan found, as JSON and back.

Parameters that slices share are listed once. Manifests and strategy files travel as they are written in files, so that
what reads files checks them.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any

from ms_recover.errors import MsRecoverError
from ms_recover.formats.dtypes import ITEM_SIZES, shape_of
from ms_recover.formats.group_info import encode_group_info
from ms_recover.formats.manifest import decode_manifest, encode_manifest
from ms_recover.formats.strategy import decode_strategy
from ms_recover.model.groups import GroupInfo, RankGroup
from ms_recover.model.inventory import GroupFile, Inventory, Note, RankPath, SliceFile, StrategyFile
from ms_recover.model.json_values import MAX_RANKS, as_kind, count, get, inside, text_or_none
from ms_recover.model.slices import Parameter
from ms_recover.model.steps import Step
from ms_recover.model.strategy import Strategy
from ms_recover.remote.messages import MOST_BYTES
from ms_recover.storage.digest import Digester

MOST_RANKS = 1 << 20
_MOST_PLACES = 8


def inventory_to_json(inventory: Inventory, strategies: Mapping[str, bytes]) -> dict[str, Any]:
    """Return an inventory as plain JSON values.

    Parameters
    ----------
    inventory : Inventory
        What was found.
    strategies : mapping of str to bytes
        The bytes of its strategy files, by digest; others are left out.
    """
    tables: dict[tuple[Parameter, ...], int] = {}
    slices = [_slice_to_json(file, tables.setdefault(file.parameters, len(tables))) for file in inventory.slices]
    return {
        "ranks": list(inventory.ranks),
        "parameters": [[[one.name, one.dtype, list(one.shape), one.nbytes] for one in table] for table in tables],
        "slices": slices,
        "group_files": [_group_to_json(file) for file in inventory.group_files],
        "strategies": {digest: base64.b64encode(data).decode() for digest, data in strategies.items()},
        "strategy_files": [
            {"rank": file.rank, "path": file.path, "digest": file.digest}
            for file in inventory.strategy_files
            if file.digest in strategies
        ],
        "notes": [[note.path, note.reason] for note in inventory.notes],
    }


def inventory_from_json(told: Mapping[str, Any], root: str) -> Inventory:
    """Read an inventory back.

    Parameters
    ----------
    told : mapping
        JSON of bounded size.
    root : str
        What its root is called; paths of slices are relative to it.

    Raises
    ------
    KeyError, TypeError, ValueError
        When it cannot be one.
    """
    ranks = {_rank(rank) for rank in get(told, "ranks", list)}
    tables = [tuple(_parameter(row) for row in as_kind(table, list)) for table in get(told, "parameters", list)]
    judged = [(table, _sound(table)) for table in tables]
    slices = [_slice(as_kind(item, dict), judged) for item in get(told, "slices", list)]
    groups = [_group(as_kind(item, dict)) for item in get(told, "group_files", list)]
    strategies = {digest: _strategy(digest, data) for digest, data in get(told, "strategies", dict).items()}
    if len({file.path for file in slices}) != len(slices) or not {file.rank for file in slices} <= ranks:
        raise ValueError("one path has two slices, or a slice a rank that is not there")
    return Inventory(
        root=root,
        ranks=tuple(sorted(ranks)),
        slices=tuple(sorted(slices, key=lambda file: (file.rank, file.step, file.path))),
        group_files=tuple(sorted(groups, key=lambda file: file.path)),
        strategy_files=tuple(
            StrategyFile(_rank(item["rank"]), get(item, "path", str), strategies[item["digest"]], item["digest"])
            for item in (as_kind(item, dict) for item in get(told, "strategy_files", list))
        ),
        notes=tuple(Note(as_kind(path, str), as_kind(reason, str)) for path, reason in get(told, "notes", list)),
    )


def _slice_to_json(file: SliceFile, table: int) -> dict[str, Any]:
    return {
        "rank": file.rank,
        **file.step.to_json(),
        "place": list(file.place.parts),
        "prefix": file.prefix,
        "bytes": file.size,
        "mtime_ns": file.mtime_ns,
        "parameters": table,
        "problem": file.problem,
        "encryption": file.encryption,
        "crc": file.crc,
        "manifest": None if file.manifest is None else encode_manifest(file.manifest).decode(),
        "manifest_problem": file.manifest_problem,
    }


def _slice(told: Mapping[str, Any], tables: list[tuple[tuple[Parameter, ...], bool]]) -> SliceFile:
    rank, place = _rank(told["rank"]), _place(told)
    inside({"path": place.of(rank)}, "path")
    parameters, sound = tables[count(told, "parameters", len(tables))]
    manifest, problem = text_or_none(told, "manifest"), text_or_none(told, "problem")
    if not sound and problem is None:
        raise ValueError(f"{place.of(rank)} has parameters of a size that they cannot have")
    return SliceFile(
        rank=rank,
        step=Step(count(told, "epoch", 10**18), count(told, "step", 10**18)),
        place=place,
        prefix=get(told, "prefix", str),
        size=count(told, "bytes", MOST_BYTES),
        mtime_ns=get(told, "mtime_ns", int),
        parameters=parameters,
        problem=problem,
        encryption=text_or_none(told, "encryption"),
        crc=None if told["crc"] is None else count(told, "crc", 1 << 32),
        manifest=None if manifest is None else decode_manifest(manifest.encode(), "its manifest", parameters),
        manifest_problem=text_or_none(told, "manifest_problem"),
    )


def _place(told: Mapping[str, Any]) -> RankPath:
    parts = tuple(as_kind(part, str) for part in get(told, "place", list))
    if not 1 <= len(parts) <= _MOST_PLACES:
        raise ValueError(f"a path with {len(parts)} parts")
    return RankPath(parts)


def _parameter(row: object) -> Parameter:
    name, dtype, dims, nbytes = as_kind(row, list)
    shape = tuple(as_kind(size, int) for size in as_kind(dims, list))
    if not 0 <= as_kind(nbytes, int) < MOST_BYTES or min(shape, default=0) < 0 or max(shape, default=0) >= MOST_BYTES:
        raise ValueError(f"a parameter of {nbytes} bytes")
    return Parameter(as_kind(name, str), as_kind(dtype, str), shape, nbytes)


def _sound(table: tuple[Parameter, ...]) -> bool:
    """Whether parameters have the sizes that sound slices have."""
    known = (one for one in table if one.dtype in ITEM_SIZES)
    return all(shape_of(one.dtype, one.shape, one.nbytes)[1] is None for one in known)


def _group_to_json(file: GroupFile) -> dict[str, Any]:
    told: dict[str, Any] = {"rank": file.rank, "path": file.path, "problem": file.problem, "place": None, "info": None}
    if file.place is not None:
        told["place"] = list(file.place.parts)
    if file.info is not None:
        groups = [[group.name, list(group.ranks)] for group in file.info.groups]
        told["info"] = {"restore_ranks": list(file.info.restore_ranks), "groups": groups}
    return told


def _group(told: Mapping[str, Any]) -> GroupFile:
    rank = None if told["rank"] is None else _rank(told["rank"])
    place = None if told["place"] is None else _place(told)
    if place is not None:
        inside({"path": place.of(rank or 0)}, "path")
    info = None
    if told["info"] is not None:
        data = get(told, "info", dict)
        groups = tuple(RankGroup(as_kind(name, str), _ranks(ranks)) for name, ranks in get(data, "groups", list))
        info = GroupInfo(_ranks(data["restore_ranks"]), groups)
        encode_group_info(info)  # refuses what no file can say
    return GroupFile(rank, get(told, "path", str), place, info, text_or_none(told, "problem"))


def _strategy(digest: str, data: object) -> Strategy:
    try:
        raw = base64.b64decode(as_kind(data, str), validate=True)
        strategy = decode_strategy(raw, "a strategy file")
    except (binascii.Error, MsRecoverError) as error:
        raise ValueError(str(error)) from None
    digester = Digester()
    digester.update(memoryview(raw))
    if digester.digests().file != digest:
        raise ValueError("a strategy file that does not have its digest")
    return strategy


def _ranks(values: object) -> tuple[int, ...]:
    return tuple(_rank(value, MAX_RANKS) for value in as_kind(values, list))


def _rank(value: object, below: int = MOST_RANKS) -> int:
    rank = as_kind(value, int)
    if not 0 <= rank < below:
        raise ValueError(f"rank {rank}")
    return rank
