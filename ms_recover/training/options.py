"""What a `SliceCheckpoint` can be given."""

from __future__ import annotations

from collections.abc import Collection

import mindspore as ms

from ms_recover.errors import UsageError
from ms_recover.training.world import World


def check_options(directory: str, prefix: str, save_steps: int | None, keep: int, world: World) -> None:
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
    if not prefix or "/" in prefix:
        raise UsageError(f"prefix={prefix!r}: it starts a file name, so it must not be empty or contain '/'")
    if world.size > 1 and "{rank}" not in directory:
        raise UsageError(
            f"directory={directory!r}: each of the {world.size} ranks needs its own, such as 'ckpt_dir{{rank}}'"
        )


def restore_ranks(group: Collection[int] | None, world: World) -> list[int] | None:
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
        return ranks
    if ms.get_auto_parallel_context("parallel_mode") == ms.ParallelMode.DATA_PARALLEL:
        return list(range(world.size))
    return [world.rank] if world.size == 1 else None
