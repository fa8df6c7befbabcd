"""Inventories as JSON between nodes, and back.

Parameters that slices share are listed once. Manifests and strategy files travel as they are written in files, so that
the readers of files check them. Inodes are numbered from 0: slices with one number are one file on their node.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

from ms_recover.errors import FormatError, MsRecoverError, VerificationError
from ms_recover.file_names import GROUP_INFO_NAME, META_NAME, WeightKind
from ms_recover.formats.codec import (
    Count,
    Digest,
    Fields,
    Meta,
    Rank,
    Size,
    convert,
    decode,
    field,
    fill,
    make_with,
    to_json,
)
from ms_recover.formats.dtypes import ITEM_SIZES, shape_of
from ms_recover.formats.group_info import encode_group_info
from ms_recover.formats.manifest import decode_manifest, encode_manifest
from ms_recover.formats.strategy import decode_strategy
from ms_recover.model.groups import GroupInfo, RankGroup
from ms_recover.model.inventory import (
    GroupFile,
    Inventory,
    MetaFile,
    Note,
    OrphanManifest,
    RankPath,
    SliceFile,
    StrategyFile,
    UnhealthySlice,
)
from ms_recover.model.manifest import Manifest
from ms_recover.model.slices import Parameter
from ms_recover.model.steps import Step
from ms_recover.model.strategy import Strategy
from ms_recover.scanning.sent_documents import SentDocuments, receive_documents, send_documents
from ms_recover.scanning.sent_paths import check_below, check_beside, check_named, is_name
from ms_recover.stores.digest import digest_of

VERSION = 1
MOST_RANKS = 1 << 20
_FREE = 200 << 20
_WEIGHTS, _WITH_HALVES = (120, 36), (320, 160)
"""Bytes that a list or an object of an inventory, and what stands behind a comma, takes in memory at most."""

_HALF = re.compile(rb"\\u[dD][89a-fA-F]")

_PART, _BACKSLASH = 1 << 20, ord("\\")
_SHOWN = 500
_MOST_NOTES = 10_000
_SentRank = Annotated[int, Meta(ge=0, lt=MOST_RANKS)]
_Epoch = Annotated[int, Meta(ge=-1, lt=10**18)]
_StepNumber = Annotated[int, Meta(ge=0, lt=10**18)]
_Place = Annotated[tuple[str, ...], Meta(min_length=1, max_length=8)]
_Digits = Annotated[int, Meta(ge=1, le=7)]
_Row = tuple[str, str, tuple[Count, ...], Size]


class _SliceFields(Fields):
    rank: _SentRank
    epoch: _Epoch
    step: _StepNumber
    place: _Place
    prefix: str
    bytes: Size
    mtime_ns: int
    parameters: Count
    problem: str | None
    encryption: str | None
    crc: Annotated[int, Meta(ge=0, lt=1 << 32)] | None
    manifest: str | None
    manifest_problem: str | None
    denied: bool = False
    failing: bool = False
    inode: Count | None = None
    kind: WeightKind | None = field(name="part", default=None)
    digits: _Digits = 1
    numbers: Count | None = None
    dealt: bool = False
    global_step: Count | None = None
    step_num: Count | None = None


class _OrphanFields(Fields):
    rank: _SentRank
    epoch: _Epoch
    step: _StepNumber
    place: _Place
    prefix: str
    manifest: str | None
    problem: str | None
    kind: WeightKind | None = field(name="part", default=None)
    digits: _Digits = 1
    numbers: Count | None = None


class _InfoFields(Fields):
    restore_ranks: tuple[Rank, ...]
    groups: tuple[tuple[str, tuple[Rank, ...]], ...]


class _GroupFields(Fields):
    rank: _SentRank | None
    path: str
    problem: str | None
    place: _Place | None
    info: _InfoFields | None


class _StrategyFields(Fields):
    rank: _SentRank
    path: str
    digest: Digest


class _MetaFields(Fields):
    rank: _SentRank
    place: _Place
    epoch: _StepNumber | None
    step: _StepNumber | None
    file: str
    prefix: str
    problem: str | None


class _UnhealthyFields(Fields):
    prefix: str
    epoch: _StepNumber
    step: _StepNumber
    path: str


class _InventoryFields(Fields):
    ranks: tuple[_SentRank, ...]
    parameters: tuple[tuple[_Row, ...], ...]
    slices: tuple[_SliceFields, ...]
    group_files: tuple[_GroupFields, ...]
    strategies: dict[Digest, str]
    strategy_files: tuple[_StrategyFields, ...]
    notes: tuple[tuple[str, str], ...]
    denied: tuple[tuple[_SentRank, str, str], ...] = ()
    orphans: tuple[_OrphanFields, ...] = ()
    documents: SentDocuments | None = None
    numbers: tuple[tuple[_SentRank, ...], ...] = ()
    meta_files: tuple[_MetaFields, ...] = ()
    unhealthy: tuple[_UnhealthyFields, ...] = ()


class _Sent(Fields):
    version: int
    inventory: _InventoryFields


class _Said(Fields):
    """What is looked at first; the rest is passed over."""

    version: Any = None
    refused: Any = None


def encode_inventory(
    inventory: Inventory, strategies: Mapping[str, bytes], documents: Mapping[str, bytes] | None = None
) -> bytes:
    """Return an inventory as it is sent; see `inventory_to_json`."""
    sent = {"version": VERSION, "inventory": inventory_to_json(inventory, strategies, documents)}
    return json.dumps(sent, separators=(",", ":")).encode()


def decode_inventory(data: bytes | bytearray, where: str) -> Inventory:
    """Read an inventory of bounded length that another node sent; `where` is the name of its root.

    Raises
    ------
    FormatError
        When it is no possible inventory.
    VerificationError
        When the node refuses to send one, for the reason in ``refused``.
    """
    try:
        halves = _HALF.search(data) is not None
        if halves:
            _check_entries(data, halves=True)
        said = decode(data, _Said, halves=halves)  # builds nothing of the rest, unless there are halves
        if isinstance(said.refused, str):
            raise VerificationError(f"{where} refuses: {said.refused[:_SHOWN]}")
        if said.version != VERSION:
            raise ValueError(f"version {str(said.version)[:20]}, this side has version {VERSION}")
        if not halves:
            _check_entries(data, halves=False)
        return _inventory(decode(data, _Sent, halves=halves).inventory, where)
    except ValueError as error:
        raise FormatError(
            f"{where} sent an invalid inventory ({str(error)[:_SHOWN]}): does it run the same version?"
        ) from None


def inventory_to_json(
    inventory: Inventory, strategies: Mapping[str, bytes], documents: Mapping[str, bytes] | None = None
) -> dict[str, Any]:
    """Return an inventory as plain JSON values.

    `strategies` has the bytes of strategy files by digest, `documents` those of the documents of iterations by path;
    others are left out.
    """
    numbers: dict[tuple[int, ...], int] = {}
    tables: dict[tuple[Parameter, ...], int] = {}
    inodes: dict[tuple[int, int], int] = {}
    slices = tuple(
        fill(
            _SliceFields,
            file,
            bytes=file.size,
            parameters=tables.setdefault(file.parameters, len(tables)),
            inode=None if file.inode is None else inodes.setdefault(file.inode, len(inodes)),
            **_placed(file, numbers),
        )
        for file in inventory.slices
    )
    fields = _InventoryFields(
        ranks=inventory.ranks,
        parameters=tuple(tuple((one.name, one.dtype, one.shape, one.nbytes) for one in table) for table in tables),
        slices=slices,
        group_files=tuple(_group_fields(file) for file in inventory.group_files),
        strategies={digest: base64.b64encode(data).decode() for digest, data in strategies.items()},
        strategy_files=tuple(
            _StrategyFields(file.rank, file.path, file.digest)
            for file in inventory.strategy_files
            if file.digest in strategies
        ),
        notes=tuple((note.path, note.reason) for note in inventory.notes),
        denied=tuple((rank, note.path, note.reason) for rank, note in inventory.denied),
        orphans=tuple(fill(_OrphanFields, orphan, **_placed(orphan, numbers)) for orphan in inventory.orphans),
        meta_files=tuple(_meta_fields(meta) for meta in inventory.meta_files),
        unhealthy=tuple(fill(_UnhealthyFields, one.step, one) for one in inventory.unhealthy),
    )
    if inventory.iterations:
        fields.documents = send_documents(inventory.iterations, inventory.tracker, documents or {})
    fields.numbers = tuple(numbers)
    return to_json(fields)


def inventory_from_json(data: Mapping[str, Any], root: str) -> Inventory:
    """Read an inventory from JSON values of bounded size; `root` is the name of its root.

    Raises
    ------
    ValueError
        When it is no possible inventory.
    """
    return _inventory(convert(data, _InventoryFields), root)


def _inventory(fields: _InventoryFields, root: str) -> Inventory:
    ranks = set(fields.ranks)
    tables = [tuple(Parameter(*row) for row in table) for table in fields.parameters]
    judged = [(table, _is_sound(table)) for table in tables]
    device = -1 - int.from_bytes(root.encode(errors="surrogateescape"), "big")  # no device of this node or another
    slices = [_read_slice(one, judged, device, fields.numbers) for one in fields.slices]
    iterations, tracker = ((), None) if fields.documents is None else receive_documents(fields.documents)
    strategies = {digest: _read_strategy(digest, data) for digest, data in fields.strategies.items()}
    if len({file.path for file in slices}) != len(slices) or not {file.rank for file in slices} <= ranks:
        raise ValueError("two slices have one path, or a slice has a rank that is not listed")
    if any(one.digest not in strategies for one in fields.strategy_files):
        raise ValueError("a strategy file is listed and not sent")
    return Inventory(
        root=root,
        ranks=tuple(sorted(ranks)),
        slices=tuple(sorted(slices, key=lambda file: (file.rank, file.step, file.path))),
        group_files=tuple(sorted((_read_group(one) for one in fields.group_files), key=lambda file: file.path)),
        strategy_files=tuple(
            StrategyFile(one.rank, check_named(one.path), strategies[one.digest], one.digest)
            for one in fields.strategy_files
        ),
        notes=_read_notes(fields.notes),
        denied=tuple((rank, Note(path, reason)) for rank, path, reason in fields.denied),
        orphans=tuple(_read_orphan(one, fields.numbers) for one in fields.orphans),
        iterations=iterations,
        tracker=tracker,
        meta_files=tuple(_read_meta(one) for one in fields.meta_files),
        unhealthy=tuple(
            make_with(UnhealthySlice, one, step=Step(one.epoch, one.step), path=f"{root}: {one.path}")
            for one in fields.unhealthy
        ),
    )


def _check_entries(data: bytes | bytearray, *, halves: bool) -> None:
    """Raise a ValueError when JSON would take more memory than twice its length and some 200 MiB.

    Entries in texts, such as manifests, do not count: where all together are too many they are counted without. Where
    there are `halves` of characters everything is built twice, and they count.
    """
    most = _FREE + len(data) * 3 // 2
    if _weight(data, halves=halves) <= most:
        return
    weight = 0
    for part in _outside_texts(data):
        weight += _weight(part, halves=halves)
        if halves or weight > most:
            raise ValueError("it has too many entries")


def _outside_texts(data: bytes | bytearray) -> Iterator[bytes]:
    """Yield well-formed JSON without its texts, in parts that take little memory."""
    within, place = 0, 0
    while place < len(data):
        end = min(place + _PART, len(data))
        while end < len(data) and data[end - 1] == _BACKSLASH:
            end += 1  # what is escaped is not parted
        parts = bytes(data[place:end]).replace(rb"\\", b"").replace(rb"\"", b"").split(b'"')
        yield b"".join(parts[within::2])
        within = (within + len(parts) - 1) % 2
        place = end


def _weight(data: bytes | bytearray, *, halves: bool) -> int:
    bracket, comma = _WITH_HALVES if halves else _WEIGHTS
    return bracket * (data.count(b"{") + data.count(b"[")) + comma * data.count(b",")


def _placed(file: SliceFile | OrphanManifest, numbers: dict[tuple[int, ...], int]) -> dict[str, Any]:
    """Return the members that slices and orphans state in another form than the inventory."""
    manifest = None if file.manifest is None else encode_manifest(file.manifest).decode()
    return {
        "epoch": file.step.epoch,
        "step": file.step.step,
        "place": file.place.parts,
        "digits": file.place.digits,
        "numbers": numbers.setdefault(file.place.numbers, len(numbers)) if file.place.numbers else None,
        "manifest": manifest,
    }


def _read_notes(sent: Sequence[tuple[str, str]]) -> tuple[Note, ...]:
    """Return the notes that people can read; a scan folds those of one kind."""
    notes = [Note(path[:_SHOWN], reason[:_SHOWN]) for path, reason in sent[:_MOST_NOTES]]
    if len(sent) > _MOST_NOTES:
        notes.append(Note("", f"and {len(sent) - _MOST_NOTES:,} more notes"))
    return tuple(notes)


def _read_place(fields: _SliceFields | _OrphanFields, numbers: tuple[tuple[int, ...], ...]) -> RankPath:
    if (fields.kind is None) != (fields.epoch >= 0):
        raise ValueError(f"a slice of epoch {fields.epoch} is of the part {fields.kind}")
    if fields.numbers is None:
        return RankPath(fields.place, fields.digits)
    if fields.numbers >= len(numbers):
        raise ValueError("the numbers of files are not sent")
    return RankPath(fields.place, fields.digits, numbers[fields.numbers])


def _read_slice(
    fields: _SliceFields,
    tables: list[tuple[tuple[Parameter, ...], bool]],
    device: int,
    numbers: tuple[tuple[int, ...], ...],
) -> SliceFile:
    place = _read_place(fields, numbers)
    path = check_below(place.of(fields.rank))
    if fields.parameters >= len(tables):
        raise ValueError(f"{path} has parameters that are not listed")
    parameters, sound = tables[fields.parameters]
    if not sound and fields.problem is None:
        raise ValueError(f"{path} has parameters of an impossible size")
    return make_with(
        SliceFile,
        fields,
        step=Step(fields.epoch, fields.step),
        place=place,
        size=fields.bytes,
        parameters=parameters,
        manifest=_read_manifest(fields.manifest, path, parameters),
        inode=None if fields.inode is None else (device, fields.inode),
    )


def _read_orphan(fields: _OrphanFields, numbers: tuple[tuple[int, ...], ...]) -> OrphanManifest:
    place = _read_place(fields, numbers)
    manifest = _read_manifest(fields.manifest, check_below(place.of(fields.rank)), ())
    return make_with(OrphanManifest, fields, step=Step(fields.epoch, fields.step), place=place, manifest=manifest)


def _meta_fields(meta: MetaFile) -> _MetaFields:
    epoch, step = (None, None) if meta.step is None else (meta.step.epoch, meta.step.step)
    return fill(_MetaFields, meta, place=meta.place.parts, epoch=epoch, step=step)


def _read_meta(fields: _MetaFields) -> MetaFile:
    place = RankPath(fields.place)
    step = None if fields.epoch is None or fields.step is None else Step(fields.epoch, fields.step)
    path = check_beside(place.of(fields.rank), META_NAME)
    if fields.file and not is_name(fields.file):
        return MetaFile(rank=fields.rank, path=path, place=place, problem="names what can be no slice")
    return make_with(MetaFile, fields, path=path, place=place, step=step)


def _read_manifest(text: str | None, path: str, like: tuple[Parameter, ...]) -> Manifest | None:
    return None if text is None else decode_manifest(text.encode(), f"the manifest of {path}", like)


def _is_sound(table: tuple[Parameter, ...]) -> bool:
    """Whether parameters have the sizes that sound slices have."""
    known = (one for one in table if one.dtype in ITEM_SIZES)
    return all(shape_of(one.dtype, one.shape, one.nbytes)[1] is None for one in known)


def _group_fields(file: GroupFile) -> _GroupFields:
    info = None
    if file.info is not None:
        groups = tuple((group.name, group.ranks) for group in file.info.groups)
        info = _InfoFields(file.info.restore_ranks, groups)
    return _GroupFields(file.rank, file.path, file.problem, file.place.parts if file.place else None, info)


def _read_group(fields: _GroupFields) -> GroupFile:
    place = None if fields.place is None else RankPath(fields.place)
    if place is None:
        check_named(fields.path)
    else:
        check_beside(fields.path, GROUP_INFO_NAME)
        if fields.rank is None or place.of(fields.rank) != fields.path:
            raise ValueError(f"the rank list {fields.path} is not at its place")
    info = None
    if fields.info is not None:
        groups = tuple(RankGroup(name, ranks) for name, ranks in fields.info.groups)
        info = GroupInfo(fields.info.restore_ranks, groups)
        encode_group_info(info)  # refuses rank lists that no file can have
    return GroupFile(fields.rank, fields.path, place, info, fields.problem)


def _read_strategy(digest: str, data: str) -> Strategy:
    try:
        raw = base64.b64decode(data, validate=True)
        strategy = decode_strategy(raw, "a strategy file")
    except (binascii.Error, MsRecoverError) as error:
        raise ValueError(str(error)) from None
    if digest_of(raw) != digest:
        raise ValueError("a strategy file does not have its digest")
    return strategy
