"""Identify one file and list its contents."""

from __future__ import annotations

import os

from ms_recover.errors import FormatError, UsageError
from ms_recover.file_names import COMMON_NAME, METADATA_NAME, TRACKER_NAME, weights_name
from ms_recover.formats.common_info import MAX_COMMON, MAX_TRACKER, decode_common, decode_tracker
from ms_recover.formats.group_info import decode_group_info
from ms_recover.formats.header import crc_problem, parse_header
from ms_recover.formats.identify import HEAD, classify
from ms_recover.formats.reading import MAX_SMALL_FILE
from ms_recover.formats.shard_metadata import decode_metadata
from ms_recover.formats.strategy import decode_strategy
from ms_recover.model.inspection import Inspection
from ms_recover.model.inventory import RankPath
from ms_recover.scanning.naming import SliceName, rank_in_path, read_slice_name
from ms_recover.stores.local_store import LocalFile
from ms_recover.stores.store import OpenFile
from ms_recover.stores.urls import is_url, open_store

_DOCUMENTS = {METADATA_NAME: "metadata", COMMON_NAME: "common", TRACKER_NAME: "tracker"}
_UNDECIDED = ("json", "unknown", "empty", "zeros")


def inspect(path: str | os.PathLike[str], *, crc: bool = True) -> Inspection:
    """Identify a slice, ``group_info.pb``, strategy file or document of MindFormers, and list contents and problems.

    With `crc` the CRC of a slice that has one is checked, which reads the whole file. The path may be a URL.

    Raises
    ------
    MissingInputError, StorageError
        When the file is not there or cannot be read.
    """
    name = os.fspath(path)
    if not is_url(name):
        with LocalFile(name) as opened:
            return _inspect(opened, name, crc=crc)
    folder, _, last = name.rpartition("/")
    if not last or folder.endswith(("/", ":")):
        raise UsageError(f"{name} names no file: write the URL of one file in a tree")
    with open_store(folder) as store, store.open(last) as opened:
        return _inspect(opened, opened.name, crc=crc)


def _inspect(opened: OpenFile, name: str, *, crc: bool) -> Inspection:
    read_at, base = opened.read_at, os.path.basename(name)
    kind = classify(read_at(0, min(opened.size, HEAD)), opened.size)
    if isinstance(read_slice_name(RankPath(("",)), 0, base), SliceName):
        kind = kind if kind in ("group_info", "strategy") else "slice"  # by its name; its problems follow below
    elif weights_name(base) is not None:
        kind = "slice"
    elif kind in _UNDECIDED:
        kind = _DOCUMENTS.get(base, kind)

    def small(what: str, limit: int = MAX_SMALL_FILE) -> bytes:
        if opened.size > limit:
            raise FormatError(f"{name}: {opened.size} bytes, and {what} never has more than {limit}; check the path")
        return opened.read_at(0, opened.size)

    try:
        if kind in ("ckpt", "encrypted-ckpt", "safetensors", "slice"):
            header = parse_header(read_at, opened.size, name=name)
            problems = header.problems
            if crc and not problems:
                problem = crc_problem(read_at, opened.size, header)
                problems = () if problem is None else (problem,)
            return Inspection(name, header.kind, problems, header=header)
        if kind == "group_info":
            owner = rank_in_path(os.path.dirname(name if is_url(name) else os.path.abspath(name)))
            data = small("a group_info.pb")
            return Inspection(name, kind, group_info=decode_group_info(data, name, owner=owner))
        if kind == "strategy":
            return Inspection(name, kind, strategy=decode_strategy(small("a strategy file"), name))
        if kind == "metadata":
            return Inspection(name, kind, metadata=decode_metadata(read_at, opened.size, name))
        if kind == "common":
            return Inspection(name, kind, common=decode_common(small("a common.json", MAX_COMMON), name))
        if kind == "tracker":
            return Inspection(name, kind, iteration=decode_tracker(small("the tracker", MAX_TRACKER), name))
    except FormatError as error:
        return Inspection(name, kind, (str(error),))
    return Inspection(name, kind, (f"not a slice, a group_info.pb or a strategy file but {kind}",))
