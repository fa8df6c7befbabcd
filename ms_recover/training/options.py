"""What a `SliceCheckpoint` can be given."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import mindspore as ms

from ms_recover.errors import UsageError
from ms_recover.file_names import SLICE_FORMATS
from ms_recover.model.strategy import Layout
from ms_recover.training.layouts import same_slice
from ms_recover.training.world import World


def check_options(directory: str, prefix: str, save_steps: int | None, keep: int, form: str, world: World) -> None:
    """Refuse what cannot be meant.

    Raises
    ------
    UsageError
        It says why.
    """
    if keep < 2:
        raise UsageError(
            f"keep={keep}: when the newest slice proves damaged there would be nothing to go back to; keep at least 2"
        )
    if save_steps is not None and save_steps < 1:
        raise UsageError(f"save_steps={save_steps}: it must be at least 1, or None to save once per epoch")
    if form not in SLICE_FORMATS:
        raise UsageError(f"format={form!r}: it must be one of {', '.join(SLICE_FORMATS)}")
    if not prefix or "/" in prefix:
        raise UsageError(f"prefix={prefix!r}: it starts a file name, so it must not be empty or contain '/'")
    if world.size > 1 and "{rank}" not in directory:
        raise UsageError(
            f"directory={directory!r}: each of the {world.size} ranks needs its own, such as 'ckpt_dir{{rank}}'"
        )


def restore_ranks(group: Collection[int] | None, layouts: Collection[Layout] | None, world: World) -> list[int] | None:
    """Return the ranks to list in group_info.pb, None when MindSpore's compiler has to tell.

    Raises
    ------
    UsageError
        When the group cannot be that of this rank.
    """
    if group is not None:
        ranks = sorted(group)
        if len(set(ranks)) != len(ranks):
            raise UsageError(f"group={ranks}: a rank stands in it twice")
        if world.rank not in ranks:
            raise UsageError(
                f"group={ranks}: it lists the ranks that hold the slice of rank {world.rank}, which is missing"
            )
        if ranks[0] < 0 or ranks[-1] >= world.size:
            raise UsageError(f"group={ranks}: the ranks of this job are 0 to {world.size - 1}")
        strangers = sorted(set(ranks) - set(ranks if layouts is None else same_slice(layouts, world.rank, world.size)))
        if strangers:
            raise UsageError(
                f"group={ranks}: by the layouts rank {strangers[0]} has other parts than rank {world.rank}"
            )
        return ranks
    if layouts is not None:
        return same_slice(layouts, world.rank, world.size)
    if ms.get_auto_parallel_context("parallel_mode") == ms.ParallelMode.DATA_PARALLEL:
        return list(range(world.size))
    return [world.rank] if world.size == 1 else None


def check_types(form: str, network: Any) -> None:
    """Refuse parameters of a type that slices of a format cannot hold.

    MindSpore makes safetensors from numpy arrays. Where numpy does not know bfloat16, such parameters cannot be saved.

    Raises
    ------
    UsageError
        It names the first one.
    """
    if form != "safetensors":
        return
    names = [parameter.name for parameter in network.get_parameters() if parameter.dtype == ms.bfloat16]
    if names and not _numpy_takes_bfloat16():
        raise UsageError(
            f"format='safetensors': MindSpore cannot save {names[0]}, which is bfloat16, with this version of numpy; "
            "save with format='ckpt', or install numpy below 2"
        )


def _numpy_takes_bfloat16() -> bool:
    try:
        ms.Tensor(0, ms.bfloat16).asnumpy()
    except TypeError:
        return False
    return True
