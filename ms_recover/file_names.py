"""Every name and suffix that lies on disk, ours and those that MindSpore and MindFormers write.

A slice of a rank and step is ``{prefix}-{epoch}_{step}.ckpt`` or ``.safetensors`` in the rank's directory, its manifest
has the same name and a suffix. `ms_recover.scanning.naming` holds the grammar that reads these names.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Literal, NamedTuple, get_args

SliceFormat = Literal["ckpt", "safetensors"]
"""Format of a slice, as ``mindspore.save_checkpoint`` calls it and as its name ends."""

SLICE_FORMATS: tuple[SliceFormat, ...] = get_args(SliceFormat)
SLICE_ENDINGS = tuple(f".{form}" for form in SLICE_FORMATS)

ANY_ORDER = ".safetensors"
"""The ending of the format that fixes the order of parameters and leaves that of metadata to chance: neither is a
property of the slice."""

MANIFEST_SUFFIX = ".manifest.json"
"""Behind the name of a slice: its manifest."""

STATE_SUFFIX = ".state"
"""Behind the name of a slice: the state of the training that is in no parameter."""

PARTIAL_MARK = ".partial"
COMPLETE_MARK = ".complete"
"""Before the ending of a slice: the surviving parameters of one; all parameters of a stage."""

SUPERSEDED_SUFFIX = ".superseded"
"""Behind the name of a slice that is newer than the step that training resumed from."""

OUTVOTED_SUFFIX = ".outvoted"
"""Behind the name of a slice that another one has replaced, though nothing proves it damaged."""

BESIDE_SLICE = (MANIFEST_SUFFIX, STATE_SUFFIX)
"""Behind the name of a slice, also of one that is set aside: what goes where it goes."""

TEMPORARY_SUFFIX = ".ms_recover.tmp"
"""Behind the name of a file that ms_recover has not finished; such names begin with a dot."""

FOREIGN_TEMPORARY_SUFFIX = ".tmp"
"""Behind the name of a file that MindSpore or another program has not finished."""

SAVING_DIRECTORY = f".saving{TEMPORARY_SUFFIX}"
"""Beside the slices: the next slice while it is saved."""

WATCH_LOCK_PREFIX = "ms_recover.watch."
"""In the folder for temporary files, never in the tree: locked by the process that watches a tree of this machine."""

JOURNAL_NAME = ".ms_recover.journal"
"""In the root: the finished actions of an interrupted recovery."""

RECOVERY_LOG_NAME = "ms_recover.log"
"""In the root: how recoveries ended, how long they took, and when the tree was last found sound; for metrics alone."""

RESHARD_NAME = ".ms_recover.reshard.json"
"""In the root of a tree that was cut anew: what it was cut from."""

RESHARDED_FOLDER = "resharded_from"
"""In the root: trees of slices that a training on other ranks was resumed from, each as a whole in a folder of its own.
"""

LOCK_NAME = ".ms_recover.lock"
"""In the directory of a rank, where directories cannot be locked: locked by the training that saves to it."""

BACKUP_MARK = "ms_recover.backup.json"
"""In the root of a backup, which holds the bytes of slices by their digests: makes it one."""

GROUP_INFO_NAME = "group_info.pb"
STRATEGY_NAME = "strategy.ckpt"
"""Beside the slices: the ranks that hold the same slice; the layouts of the parameters."""

GRAPH_SUFFIX = "-graph.meta"
"""Of the computing graph that ``ModelCheckpoint`` saves beside the slices."""

RANK_DIRECTORIES = ("ckpt_dir{rank}", "rank_{rank}", "rank_{rank}_ckpt")
VAGUE_RANK_DIRECTORIES = ("device{rank}", "ckpt_{rank}")
"""Names of the ranks' directories; the number in the vague ones may be that of a device of one node, or a step."""

TRACKER_NAME = "latest_checkpointed_iteration.txt"
"""In the root of a MindFormers "weights 2.0" tree: the newest iteration that was saved whole."""

METADATA_NAME = "metadata.json"
COMMON_NAME = "common.json"
"""In the directory of an iteration: the cut and the files of each parameter; the progress of training."""

ITERATION_CONTAINERS = ("", "checkpoint", "output/checkpoint")
"""The directories, the root or below it, that may hold iterations and the tracker."""

HUGGING_FACE_NAMES = ("model.safetensors.index.json",)
"""In the place of the tracker: MindFormers loads the files that it names."""

FULL_STEM = "model"
"""The name of a full checkpoint without its ending, as loaders of Hugging Face's models know it."""

MERGED_INDEX = "param_name_map.json"
MERGED_REST = "hyper_param.safetensors"
"""In the folder that MindSpore's ``unified_safetensors`` writes: the file of each parameter that a layout names;
the other ones, of rank 0.
"""

WeightKind = Literal["model", "opt"]
"""Of a file of an iteration: the parameters of the network, or those that only the optimizer has."""

WEIGHT_KINDS: tuple[WeightKind, ...] = get_args(WeightKind)

_ITERATION = re.compile(r"iteration_(\d{8}|[1-9]\d{8,17})\Z", re.ASCII)
_WEIGHTS = re.compile(
    r"(?:(?P<prefix>.*)-)?(?P<kind>model|opt)-(?P<index>\d{7}|[1-9]\d{7,17})-(?P<count>\d{7}|[1-9]\d{7,17})"
    r"\.safetensors\Z",
    re.ASCII | re.DOTALL,
)

NETWORK_MARK = "-network"
TRAINABLE_MARK = "-trainable_params"
"""Behind the prefix of slices that MindFormers' ``CheckpointMonitor`` saves beside whole ones: no optimizer."""

META_NAME = "meta.json"
"""Beside MindFormers' slices: the last one that was saved, from which its own resume begins."""

HEALTH_NAME = "health_ckpts.json"
"""Beside the folder of MindFormers' slices: the steps whose weights its health monitor found unsound."""

_STRATEGY_OF_RANK = re.compile(r"((?:ckpt_)?strategy_rank_)(?:0|[1-9]\d*)(\.(?:ckpt|json))", re.ASCII)
"""A strategy file of MindFormers, which has those of all ranks in one folder."""


def strategy_name(like: str, rank: int) -> str | None:
    """Return what the strategy file of a rank is called where one is called so, None where that is no such name."""
    if like == STRATEGY_NAME:
        return STRATEGY_NAME
    named = _STRATEGY_OF_RANK.fullmatch(like)
    return f"{named[1]}{rank}{named[2]}" if named is not None else None


STRATEGY_FOLDER = "strategy"
"""Beside the folder of MindFormers' slices: the strategy files of all ranks."""

_VAGUE_FORMS = [form.split("{rank}") for form in VAGUE_RANK_DIRECTORIES]
_RANK_FORMS = [*(form.split("{rank}") for form in RANK_DIRECTORIES), *_VAGUE_FORMS]
_OF_RANKS = re.compile(r"(?:.*[_-])?ranks?\Z", re.ASCII | re.DOTALL)
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


def aside_name(path: str, suffix: str, number: int = 1) -> str:
    """Return the path of a slice that is set aside: that of the first one, or of a later one where names are taken."""
    return f"{path}{suffix}" if number == 1 else f"{path}.{number}{suffix}"


def temporary_name(name: str) -> str:
    """Return the name of an unfinished file: hidden, so that neither MindSpore nor a scan takes it for a slice."""
    return f".{name}{TEMPORARY_SUFFIX}"


def index_name(form: str) -> str:
    """Return the name of the index of a full checkpoint of several files."""
    return f"{FULL_STEM}.{form}.index.json"


class WeightsName(NamedTuple):
    """The name of a file of an iteration: ``{prefix-}{model,opt}-{index:07d}-{count:07d}.safetensors``."""

    prefix: str | None
    """None where the name has neither a prefix nor its dash."""
    kind: WeightKind
    file_index: int
    """The rank, or its place among the ranks that were given a shard where redundancy was removed."""
    file_count: int
    """The number of files of this kind."""

    @property
    def name(self) -> str:
        """The name itself."""
        start = "" if self.prefix is None else f"{self.prefix}-"
        return f"{start}{self.kind}-{self.file_index:07d}-{self.file_count:07d}.safetensors"


def weights_name(name: str) -> WeightsName | None:
    """Return the parts of the name of a file of an iteration, None for other names.

    The prefix is everything before the last kind, index and count; it may look like such a name itself.
    """
    found = _WEIGHTS.match(name)
    if not found or "/" in name:
        return None
    kind: WeightKind = "model" if found["kind"] == "model" else "opt"
    return WeightsName(found["prefix"], kind, int(found["index"]), int(found["count"]))


def named_iteration(name: str) -> int | None:
    """Return the iteration whose directory has this name, None for other names."""
    found = _ITERATION.match(name)
    return int(found[1]) if found else None


def rank_in_folder(name: str, parent: str = "") -> tuple[str, str, str] | None:
    """Return the text before the rank in a directory's name, its digits, and the text behind; None without a rank.

    A bare number is a rank only where the name of the `parent` says so, as that of ``ckpt_of_rank`` does.
    """
    for head, tail in _RANK_FORMS:
        if name.startswith(head) and name.endswith(tail):
            digits = name[len(head) : len(name) - len(tail)]
            if digits.isascii() and digits.isdigit():
                return head, digits, tail
    if name.isascii() and name.isdigit() and _OF_RANKS.match(parent):
        return "", name, ""
    return None


def is_vague(name: str) -> bool:
    """Whether the number in a directory's name may be another one than a rank: a step, or a device of one node."""
    return any(name == f"{head}{name[len(head) :]}" and name[len(head) :].isdigit() for head, _ in _VAGUE_FORMS)


def ranks_in_folders(folders: Sequence[str], *, vague: bool = False) -> list[str]:
    """Return the digits of the ranks that the components of a path name, outermost first.

    With `vague`, a last one whose number may be another one counts as well.
    """
    found = [(name, rank_in_folder(name, parent)) for parent, name in pairwise(["", *folders])]
    named = [(name, form[1]) for name, form in found if form is not None]
    return [digits for name, digits in named if not is_vague(name) or (vague and name == named[-1][0])]
