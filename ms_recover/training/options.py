"""Checks of the arguments of a `SliceSaver`, and the ranks that they imply."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

import mindspore as ms

from ms_recover.arguments import check_type, whole_number
from ms_recover.arguments import ranks as listed_ranks
from ms_recover.errors import UsageError
from ms_recover.file_names import SLICE_FORMATS
from ms_recover.model.strategy import Layout
from ms_recover.training.deciding.job import TrainingJob
from ms_recover.training.layouts import check_layouts, layouts_given, same_slice

_log = logging.getLogger(__name__)


def check_options(directory: str, prefix: str, keep: int, form: str, job: TrainingJob) -> None:
    """Raise UsageError, which names the argument and the reason, when one is invalid."""
    if whole_number("keep", keep) < 2:
        raise UsageError(
            f"keep={keep}: when the newest slice proves damaged there would be nothing to go back to; keep at least 2"
        )
    if form not in SLICE_FORMATS:
        raise UsageError(f"format={form!r}: it must be one of {', '.join(SLICE_FORMATS)}")
    check_type("prefix", prefix, str, "a text")
    if not prefix or "/" in prefix or "\0" in prefix:
        raise UsageError(f"prefix={prefix!r}: it starts a file name, so it must not be empty or contain '/'")
    if job.size > 1 and "{rank}" not in directory:
        raise UsageError(
            f"directory={directory!r}: each of the {job.size} ranks needs its own, such as 'ckpt_dir{{rank}}'"
        )


def check_save_steps(save_steps: int | None) -> None:
    """Raise UsageError when slices cannot be saved at such steps."""
    if save_steps is not None and whole_number("save_steps", save_steps) < 1:
        raise UsageError(f"save_steps={save_steps}: it must be at least 1, or None to save once per epoch")


def check_place(directory: Path) -> None:
    """Raise an OSError when a directory is none that can be written, or could not be made; nothing is made."""
    place = directory
    while not os.path.lexists(place) and place != place.parent:
        place = place.parent
    if not place.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(place))
    if not os.access(place, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(place))


def listed_layouts(layouts: Iterable[Layout] | None, world_size: int) -> tuple[Layout, ...] | None:
    """Return layouts as a tuple; UsageError when they are none, or contradict each other or the number of ranks."""
    if layouts is None:
        return None
    listed = layouts_given("layouts", layouts)
    check_layouts(listed, world_size)
    return listed


def restore_ranks(
    group: Collection[int] | None, layouts: Collection[Layout] | None, job: TrainingJob
) -> list[int] | None:
    """Return the ranks to list in group_info.pb; None when only MindSpore's compiler knows them.

    Raises UsageError when the group is not one of this rank.
    """
    sharded = optimizer_is_shared_out()
    if group is None and layouts is None:
        if sharded or job.size == 1:
            return [job.rank]
        return list(range(job.size)) if is_data_parallel() else None
    alike = None if layouts is None else same_slice(layouts, job.rank, job.size)
    ranks = _checked_group(group, alike, job) if group is not None else alike
    assert ranks is not None
    if sharded and len(ranks) > 1:
        _log.warning(
            "rank %d: the group is %s, but with enable_parallel_optimizer in data_parallel mode each rank updates only "
            "its own part of the optimizer states, so that no rank holds the slice of another; leave group and layouts "
            "out",
            job.rank,
            ranks,
        )
    return ranks


def _checked_group(group: Collection[int], alike: Collection[int] | None, job: TrainingJob) -> list[int]:
    """Return the operator's group, sorted; `alike` are the ranks with the same slice by the layouts, if known."""
    ranks = listed_ranks("group", group)
    if len(set(ranks)) != len(ranks):
        raise UsageError(f"group={ranks}: a rank is listed twice")
    if job.rank not in ranks:
        raise UsageError(f"group={ranks}: it must include this rank, rank {job.rank}, which is missing")
    if ranks[0] < 0 or ranks[-1] >= job.size:
        raise UsageError(f"group={ranks}: the ranks of this job are 0 to {job.size - 1}")
    others = sorted(set(ranks) - set(ranks if alike is None else alike))
    if others:
        raise UsageError(f"group={ranks}: by the layouts rank {others[0]} has other parts than rank {job.rank}")
    return ranks


def is_data_parallel() -> bool:
    """Whether all ranks hold the same parameters, whose gradients MindSpore averages."""
    return bool(ms.get_auto_parallel_context("parallel_mode") == ms.ParallelMode.DATA_PARALLEL)


def optimizer_is_shared_out() -> bool:
    """Whether MindSpore shares the parameters out among the data-parallel ranks for the optimizer to update.

    Each rank then updates the optimizer states of its own parameters only, and the weights alone are exchanged: see
    ``Optimizer._use_parallel_optimizer`` and ``_get_parameter_group_id`` (``mindspore/nn/optim/optimizer.py``).
    """
    return is_data_parallel() and bool(ms.get_auto_parallel_context("enable_parallel_optimizer"))


_NUMBERS = ("Int8", "UInt8", "Int16", "UInt16", "Int32", "UInt32", "Int64", "UInt64", "Float16", "Float32", "Float64")
_LOADED_TYPES = frozenset({"Bool", "Int4", "BFloat16", *_NUMBERS})
"""Types that ``mindspore.load_checkpoint`` knows (``tensor_to_ms_type`` in ``train/serialization.py``)."""

_CACHE_KEY = ".__param_key__"
"""In names of slices: what lies behind it is the key of a cached parameter."""

_METADATA = ("__metadata__", "format")
"""Names that MindSpore's safetensors have for something else; its loader looks parameters up among them."""


def check_parameters(form: str, network: Any) -> None:
    """Raise UsageError when the network has a parameter that a slice of the format could not give back.

    MindSpore saves types and names that it cannot load again. It makes safetensors from numpy arrays, and numpy 2 has
    no bfloat16.
    """
    for parameter in network.get_parameters():
        name, kind = parameter.name, str(parameter.dtype)
        if kind not in _LOADED_TYPES:
            raise UsageError(
                f"parameter {name} is of type {kind}, which MindSpore cannot load from a slice: keep it as parameters "
                "of types that it can load, such as the real and the imaginary part as Float32"
            )
        if _CACHE_KEY in name or (form == "safetensors" and name in _METADATA):
            raise UsageError(
                f"parameter {name!r} has a name that means something else in slices, so that it could not be loaded: "
                "rename it"
            )
        if form == "safetensors" and kind == "BFloat16" and not _numpy_takes_bfloat16():
            raise UsageError(
                f"format='safetensors': MindSpore cannot save {name}, which is bfloat16, with this version of numpy; "
                "save with format='ckpt', or install numpy below 2"
            )


def _numpy_takes_bfloat16() -> bool:
    try:
        ms.Tensor(0, ms.bfloat16).asnumpy()
    except TypeError:
        return False
    return True
