"""Identify one file and list its contents."""

from __future__ import annotations

import os

from ms_recover.errors import FormatError
from ms_recover.file_names import COMMON_NAME, METADATA_NAME, TRACKER_NAME, weights_name
from ms_recover.formats.common_info import read_common, read_tracker
from ms_recover.formats.group_info import read_group_info
from ms_recover.formats.header import find_problem, read_header
from ms_recover.formats.identify import identify
from ms_recover.formats.shard_metadata import read_metadata
from ms_recover.formats.strategy import read_strategy
from ms_recover.model.inspection import Inspection
from ms_recover.model.inventory import RankPath
from ms_recover.scanning.naming import SliceName, rank_in_path, read_slice_name

_DOCUMENTS = {METADATA_NAME: "metadata", COMMON_NAME: "common", TRACKER_NAME: "tracker"}
_UNDECIDED = ("json", "unknown", "empty", "zeros")


def inspect_file(path: str | os.PathLike[str], *, crc: bool = True) -> Inspection:
    """Identify a file and list its contents; damage is listed in the ``problems``.

    With `crc`, a slice that has a CRC is read from end to end.

    Raises
    ------
    MissingInputError, StorageError
        When the file is not there or cannot be read.
    """
    name = os.fspath(path)
    kind = identify(name)
    if isinstance(read_slice_name(RankPath(("",)), 0, os.path.basename(name)), SliceName):
        kind = kind if kind in ("group_info", "strategy") else "slice"  # by its name; its problems follow below
    elif weights_name(os.path.basename(name)) is not None:
        kind = "slice"
    elif kind in _UNDECIDED:
        kind = _DOCUMENTS.get(os.path.basename(name), kind)
    try:
        if kind in ("ckpt", "encrypted-ckpt", "safetensors", "slice"):
            header = read_header(name)
            problem = find_problem(name, header, crc=crc)
            problems = header.problems if problem is None or header.problems else (problem,)
            return Inspection(name, header.kind, problems, header=header)
        if kind == "group_info":
            owner = rank_in_path(os.path.dirname(os.path.abspath(name)))
            return Inspection(name, kind, group_info=read_group_info(name, owner=owner))
        if kind == "strategy":
            return Inspection(name, kind, strategy=read_strategy(name))
        if kind == "metadata":
            return Inspection(name, kind, document=read_metadata(name))
        if kind == "common":
            return Inspection(name, kind, document=read_common(name))
        if kind == "tracker":
            return Inspection(name, kind, document=read_tracker(name))
    except FormatError as error:
        return Inspection(name, kind, (str(error),))
    return Inspection(name, kind, (f"not a slice, a group_info.pb or a strategy file but {kind}",))
