"""Saving: each rank writes its own slice, and the list of ranks that hold the same."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection
from pathlib import Path
from typing import Any

import mindspore as ms
from mindspore.train import Callback, CheckpointConfig, ModelCheckpoint

from ms_recover.errors import StorageError, UsageError
from ms_recover.formats.group_info import write_group_info
from ms_recover.training.world import World, current_world, device_target

_log = logging.getLogger(__name__)


class SliceCheckpoint(Callback):  # type: ignore[misc]
    """Save this rank's slice, and who else holds the same slice, as recovery needs them.

    Slices have the names that MindSpore's ``ModelCheckpoint`` gives: ``{prefix}-{epoch}_{step}.ckpt``, the prefix
    with ``_N`` behind it when the directory holds slices of an earlier start already. Nothing is gathered from other
    ranks (``integrated_save=False``), and the optimizer state is saved too.

    ``group_info.pb`` in the same directory lists the ranks that hold the same slice. Make the callback after
    ``mindspore.communication.init`` and before anything is compiled, because

    - for a network built from explicit collectives, MindSpore cannot know those ranks: give them as `group`;
    - in data-parallel mode all ranks are listed;
    - otherwise, on a device other than CPU, the variable GROUP_INFO_FILE is set, which makes the compiler of
      (semi-)auto parallel write the list. On CPU the variable would make MindSpore fail, and is left alone.

    Parameters
    ----------
    directory : str
        Where this rank saves; ``{rank}`` stands for the rank.
    prefix : str
        Start of the file names.
    save_steps : int, optional
        Steps between two slices, counted from the start of the training; by default one slice per epoch. In sink
        mode a slice is saved at the end of the first sink at or behind each multiple.
    keep : int
        Slices to keep, at least 2: MindSpore deletes the oldest before it writes the newest, so that with 1 a crash
        while saving leaves none.
    group : collection of int, optional
        Ranks that hold the same slice as this one, itself included.

    Raises
    ------
    UsageError
        When an argument cannot be meant.
    StorageError
        When the directory cannot be made.

    Examples
    --------
    >>> model.train(4, dataset, callbacks=[SliceCheckpoint(prefix="test")])  # doctest: +SKIP
    """

    def __init__(
        self,
        directory: str = "ckpt_dir{rank}",
        prefix: str = "CKP",
        save_steps: int | None = None,
        keep: int = 4,
        group: Collection[int] | None = None,
    ) -> None:
        super().__init__()
        world = current_world()
        _check(directory, prefix, save_steps, keep, world)
        self._rank = world.rank
        self._directory = Path(directory.replace("{rank}", str(world.rank))).absolute()
        self._prefix = prefix
        self._save_steps = save_steps
        self._keep = keep
        self._inner: ModelCheckpoint | None = None
        self._last = 0
        restore_ranks = _restore_ranks(group, world)
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            if restore_ranks is not None:
                write_group_info(str(self.group_info), restore_ranks)
        except OSError as error:
            raise StorageError(
                f"rank {world.rank} cannot save to {self._directory}: {error}; choose another directory"
            ) from error
        if restore_ranks is None and device_target() != "CPU":
            os.environ["GROUP_INFO_FILE"] = str(self.group_info)
        elif restore_ranks is None:
            _log.warning(
                "rank %d: nobody can tell who else holds its slice; give SliceCheckpoint the group",
                world.rank,
            )

    @property
    def directory(self) -> Path:
        """Where this rank saves."""
        return self._directory

    @property
    def group_info(self) -> Path:
        """Where the list of ranks that hold the same slice is, or will be once the network is compiled."""
        return self._directory / "group_info.pb"

    def on_train_begin(self, run_context: Any) -> None:
        """Choose the file names; not earlier, because a recovery may have put slices into the directory."""
        self._last = run_context.original_args().cur_step_num
        self._inner = ModelCheckpoint(
            self._prefix,
            str(self._directory),
            CheckpointConfig(save_checkpoint_steps=1, keep_checkpoint_max=self._keep, integrated_save=False),
        )

    def on_train_step_end(self, run_context: Any) -> None:
        """Save a slice when one is due."""
        params = run_context.original_args()
        every = self._save_steps or params.batch_num
        if params.cur_step_num // every > self._last // every:
            self._checkpoint().step_end(run_context)
            self._last = params.cur_step_num
            _log.info("rank %d: saved %s", self._rank, self._checkpoint().latest_ckpt_file_name)

    def on_train_end(self, run_context: Any) -> None:
        """Save the last step, unless it is saved already."""
        if run_context.original_args().cur_step_num > self._last:
            self._checkpoint().end(run_context)

    def _checkpoint(self) -> ModelCheckpoint:
        if self._inner is None:
            raise UsageError("SliceCheckpoint was used outside of Model.train; give it to Model.train as a callback")
        return self._inner


def _check(directory: str, prefix: str, save_steps: int | None, keep: int, world: World) -> None:
    if keep < 2:
        raise UsageError(
            f"keep={keep}: MindSpore deletes the oldest slice before it writes the newest, so a crash while saving "
            "would leave none; keep at least 2"
        )
    if save_steps is not None and save_steps < 1:
        raise UsageError(f"save_steps={save_steps}: it must be at least 1, or None to save once per epoch")
    if not prefix or "/" in prefix:
        raise UsageError(f"prefix={prefix!r}: it starts a file name, so it must not be empty or contain '/'")
    if world.size > 1 and "{rank}" not in directory:
        raise UsageError(
            f"directory={directory!r}: each of the {world.size} ranks needs its own, such as 'ckpt_dir{{rank}}'"
        )


def _restore_ranks(group: Collection[int] | None, world: World) -> list[int] | None:
    """Return the ranks to list in group_info.pb, None when MindSpore's compiler has to tell."""
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
