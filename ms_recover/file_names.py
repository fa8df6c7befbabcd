"""Every name and suffix that lies on disk, ours and those that MindSpore and MindFormers write.

A slice of a rank and step is ``{prefix}-{epoch}_{step}.ckpt`` or ``.safetensors`` in the rank's directory, its manifest
has the same name and a suffix. `ms_recover.scanning.naming` holds the grammar that reads these names.
"""

from __future__ import annotations

import re
from typing import Literal, get_args

SliceFormat = Literal["ckpt", "safetensors"]
"""Format of a slice, as ``mindspore.save_checkpoint`` calls it and as its name ends."""

SLICE_FORMATS: tuple[SliceFormat, ...] = get_args(SliceFormat)
SLICE_ENDINGS = tuple(f".{form}" for form in SLICE_FORMATS)

ANY_ORDER = ".safetensors"
"""The ending of the format that fixes the order of parameters and leaves that of metadata to chance: neither is a
property of the slice."""

MANIFEST_SUFFIX = ".manifest.json"
"""Behind the name of a slice: its manifest."""

PARTIAL_MARK = ".partial"
COMPLETE_MARK = ".complete"
"""Before the ending of a slice: the surviving parameters of one; all parameters of a stage."""

SUPERSEDED_SUFFIX = ".superseded"
"""Behind the name of a slice that is newer than the step that training resumed from."""

TEMPORARY_SUFFIX = ".ms_recover.tmp"
"""Behind the name of a file that ms_recover has not finished; such names begin with a dot."""

FOREIGN_TEMPORARY_SUFFIX = ".tmp"
"""Behind the name of a file that MindSpore or another program has not finished."""

SAVING_DIRECTORY = f".saving{TEMPORARY_SUFFIX}"
"""Beside the slices: the next slice while it is saved."""

JOURNAL_NAME = ".ms_recover.journal"
"""In the root: the finished actions of an interrupted recovery."""

GROUP_INFO_NAME = "group_info.pb"
STRATEGY_NAME = "strategy.ckpt"
"""Beside the slices: the ranks that hold the same slice; the layouts of the parameters."""

GRAPH_SUFFIX = "-graph.meta"
"""Of the computing graph that ``ModelCheckpoint`` saves beside the slices."""

RANK_DIRECTORIES = ("ckpt_dir{rank}", "rank_{rank}")
CONTAINERS = ("", "checkpoints", "checkpoint")
"""Names of the ranks' directories, and the directories below the root that may hold them."""

_NAMED_RANK = re.compile(r"(?:^|_)rank_(?P<rank>\d+)(?=[_.-]|\Z)", re.ASCII)


def ending_of(path: str) -> str:
    """Return the ending by which MindSpore knows the format of a slice; empty for other names."""
    return next((ending for ending in SLICE_ENDINGS if path.endswith(ending)), "")


def format_of(path: str) -> SliceFormat | None:
    """Return the format that the name of a slice states; None for other names."""
    return next((form for form in SLICE_FORMATS if path.endswith(f".{form}")), None)


def last_named_rank(name: str) -> re.Match[str] | None:
    """Return the match of a file name's last ``rank_{rank}``, whose group ``rank`` is the rank; None without one.

    The last is the slice's: MindFormers appends it to a prefix that may have one of its own, such as ``lora_rank_8``,
    and MindSpore may append ``_{N}`` to it.
    """
    return max(_NAMED_RANK.finditer(name), key=re.Match.start, default=None)


def marked(path: str, mark: str) -> str:
    """Return the path of a slice with `PARTIAL_MARK` or `COMPLETE_MARK` before its ending."""
    stem, dot, ending = path.rpartition(".")
    return f"{stem}{mark}{dot}{ending}"


def temporary_name(name: str) -> str:
    """Return the name of an unfinished file: hidden, so that neither MindSpore nor a scan takes it for a slice."""
    return f".{name}{TEMPORARY_SUFFIX}"
