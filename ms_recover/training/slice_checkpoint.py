"""Saving: each rank commits its own slice, with the list of ranks that hold the same."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import mindspore as ms
from mindspore.train import Callback
from mindspore.train.callback._checkpoint import _chg_ckpt_file_name_if_same_exist
from safetensors import SafetensorError

from ms_recover.errors import MsRecoverError, StorageError
from ms_recover.execution.rank_lists import write_group_info
from ms_recover.execution.save_slice import SliceOrder, commit_slice
from ms_recover.file_names import GROUP_INFO_NAME, STRATEGY_NAME, SliceFormat
from ms_recover.formats.group_info import read_group_info
from ms_recover.model.steps import Step
from ms_recover.model.strategy import Layout
from ms_recover.training.background import Background
from ms_recover.training.job import current_job, device_target
from ms_recover.training.layouts import check_layouts, write_strategy
from ms_recover.training.options import check_options, check_types, restore_ranks
from ms_recover.training.rotation import NO_STEP, agree_floor, rotate
from ms_recover.training.run_id import agree_run_id
from ms_recover.training.snapshot import flush_caches, saved_names, take_snapshot

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Stall:
    """The time that training stood still for a save."""

    step: Step
    """The saved step."""
    seconds: float
    """Duration, including the wait for the save before and for the other ranks."""


class SliceCheckpoint(Callback):  # type: ignore[misc]
    """Save this rank's slice with its manifest and the list of ranks that hold the same slice.

    All ranks create one, with the same arguments except `group`, and save at the same steps: at each save they exchange
    their committed steps.

    Slices have the names and the bytes that MindSpore's ``ModelCheckpoint`` gives them:
    ``{prefix}-{epoch}_{step}.{format}``, the prefix with ``_N`` behind it when the directory holds slices of an earlier
    start already. Nothing is gathered from other ranks (``integrated_save=False``), and the optimizer state is saved
    too. A slice counts when ``{name}.manifest.json`` lies beside it, which is written last: a save that is interrupted
    leaves the slices before it whole. The oldest slices are removed afterwards, once every rank has committed a newer
    step.

    ``group_info.pb`` in the same directory lists the ranks that hold the same slice. Create the callback after
    ``mindspore.communication.init`` and the parallel context, and before anything is compiled, because

    - for a network built from explicit collectives, MindSpore cannot know those ranks: give `layouts`, from which they
      follow, or at least the `group`;
    - in data-parallel mode all ranks are listed; with ``enable_parallel_optimizer`` each rank lists itself alone,
      because it updates only its own part of the optimizer states;
    - otherwise, on a device other than CPU, the variable GROUP_INFO_FILE is set, which makes the compiler of
      (semi-)auto parallel write the list. On CPU the variable would make MindSpore fail, and is left alone.

    ``strategy.ckpt`` holds the layouts of the parameters, from which a recovery finds the parameters of a lost slice
    that other ranks still hold. MindSpore's compiler writes it when ``strategy_ckpt_config`` names it; for a network
    built from explicit collectives give `layouts`, and it is written when training begins.

    Parameters
    ----------
    directory : str
        Directory of this rank; ``{rank}`` stands for the rank.
    prefix : str
        Start of the file names.
    save_steps : int, optional
        Steps between two slices, counted from the start of the training; by default one slice per epoch. In sink
        mode a slice is saved at the end of the first sink at or behind each multiple.
    keep : int
        Number of slices of this run to keep, at least 2, so that a recovery can go back behind a damaged one.
    group : collection of int, optional
        Ranks that hold the same slice as this one, itself included; by default those of `layouts`.
    async_save : bool
        Copy the parameters to host memory and go on training while they are written. One save is in flight at a time.
        An error of a save is raised at the next save, or at the end of the training.
    layouts : iterable of Layout, optional
        The layout of each weight, see `ms_recover.training.cut`. Optimizer states are cut like their weights; all ranks
        hold the other parameters whole.
    format : {"ckpt", "safetensors"}
        Format of the slices, and the ending of their names. A training may be resumed with the other one.

    Attributes
    ----------
    directory, group_info : Path
        The directory of this rank, and in it the list of ranks that hold the same slice; MindSpore's compiler may write
        the list later.
    stalls : list of Stall
        Times that training stood still, by save; the last entry of asynchronous saving is the wait at the end.
    run_id : str
        The same for all ranks and in all manifests of a training: MS_RECOVER_RUN_ID, or a random one of rank 0.

    Raises
    ------
    UsageError
        When an argument is invalid.
    StorageError
        When the directory cannot be made; while training, when a slice cannot be written.
    MsRecoverError
        While training, when another rank could not save.

    Examples
    --------
    >>> model.train(4, dataset, callbacks=[SliceCheckpoint(prefix="test")])  # doctest: +SKIP

    A network built from explicit collectives, its rows split over four ranks, each part held by two:

    >>> devices = {"dp": 2, "mp": 4}
    >>> layouts = [cut("fc.weight", devices, "mp", None), cut("fc.bias", devices, "mp")]  # doctest: +SKIP
    >>> model.train(4, dataset, callbacks=[SliceCheckpoint(prefix="test", layouts=layouts)])  # doctest: +SKIP
    """

    def __init__(
        self,
        directory: str = "ckpt_dir{rank}",
        prefix: str = "CKP",
        save_steps: int | None = None,
        keep: int = 4,
        group: Collection[int] | None = None,
        async_save: bool = False,
        layouts: Iterable[Layout] | None = None,
        format: SliceFormat = "ckpt",  # noqa: A002 (as MindSpore calls it)
    ) -> None:
        super().__init__()
        self._job = current_job()
        check_options(directory, prefix, save_steps, keep, format, self._job)
        self.directory = Path(directory.replace("{rank}", str(self._job.rank))).absolute()
        self.group_info = self.directory / GROUP_INFO_NAME
        self._prefix = self._run_prefix = prefix
        self._save_steps = save_steps
        self._keep = keep
        self._async = async_save
        self._format = format
        self._layouts = None if layouts is None else tuple(layouts)
        if self._layouts is not None:
            check_layouts(self._layouts, self._job.size)
        self._background = Background()
        self._committed = NO_STEP
        self._last = 0
        self.stalls: list[Stall] = []
        self.run_id = ""
        self._group = restore_ranks(group, self._layouts, self._job)
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            if self._group is not None:
                write_group_info(str(self.group_info), self._group)
        except OSError as error:
            raise StorageError(
                f"rank {self._job.rank} cannot save to {self.directory}: {error}; choose another directory"
            ) from error
        if self._group is None and device_target() != "CPU":
            os.environ["GROUP_INFO_FILE"] = str(self.group_info)
        elif self._group is None:
            _log.warning(
                "rank %d: the ranks that hold the same slice are unknown; give SliceCheckpoint the group or layouts",
                self._job.rank,
            )

    @property
    def committed(self) -> Step | None:
        """The last step that this rank has committed in this training, None before the first."""
        return None if self._committed == NO_STEP else self._committed

    def on_train_begin(self, run_context: Any) -> None:
        """Choose the file names, and write the strategy file.

        Not earlier: a recovery may have written slices into the directory, and until now the strategy file belonged to
        these.
        """
        self._background.outcome()  # of a training that ended with an exception; it was logged
        self._committed = NO_STEP
        params = run_context.original_args()
        self._last = params.cur_step_num
        check_types(self._format, params.train_network)
        if self._layouts is not None:
            stage = self._job.rank // prod(self._layouts[0].device_matrix)
            write_strategy(self.directory / STRATEGY_NAME, self._layouts, params.train_network, stage)
        self.run_id = agree_run_id(self._job)
        self._run_prefix = _chg_ckpt_file_name_if_same_exist(str(self.directory), self._prefix)

    def on_train_step_end(self, run_context: Any) -> None:
        """Save a slice when one is due."""
        params = run_context.original_args()
        every = self._save_steps or params.batch_num
        if params.cur_step_num // every > self._last // every:
            self._save(params)

    def on_train_end(self, run_context: Any) -> None:
        """Save the last step unless it is saved already, and wait until everything is committed."""
        params = run_context.original_args()
        if params.cur_step_num > self._last:
            self._save(params)
        if self._async:
            began = time.perf_counter()
            floor = self._floor()
            self._rotate(floor)
            self._stood_still(self._committed, began)

    def _save(self, params: Any) -> None:
        began = time.perf_counter()
        order, network = self._order(params), params.train_network
        self._last = params.cur_step_num
        flush_caches(network)
        if self._async:
            floor = self._floor()
            snapshot = take_snapshot(network)
            if snapshot is None:  # MindSpore has to read the parameters itself, so they must not change meanwhile
                self._background.do_now(lambda: self._commit(order, network, floor))
            else:
                self._background.begin(lambda: self._commit(order, snapshot, floor), f"save-{order.step}")
        else:
            self._background.do_now(lambda: self._commit(order, network, None))
            self._rotate(self._floor())
        self._stood_still(order.step, began)

    def _order(self, params: Any) -> SliceOrder:
        step = Step(params.cur_epoch_num, (params.cur_step_num - 1) % params.batch_num + 1)
        return SliceOrder(
            path=str(self.directory / f"{self._run_prefix}-{step}.{self._format}"),
            rank=self._job.rank,
            world_size=self._job.size,
            step=step,
            cumulative_step=params.cur_step_num,
            run_id=self.run_id,
            group=self._known_group(),
            expected=saved_names(params.train_network),
        )

    def _known_group(self) -> tuple[int, ...]:
        """Return the ranks that hold the same slice; this rank alone where they are unknown."""
        rank = self._job.rank
        if self._group is None and self.group_info.exists():
            try:
                self._group = list(
                    read_group_info(str(self.group_info), owner=rank, world_size=self._job.size).restore_ranks
                )
            except MsRecoverError as error:
                _log.warning("rank %d: the manifests cannot name its group: %s", rank, error)
                self._group = [rank]
        return tuple(self._group or [rank])

    def _commit(self, order: SliceOrder, parameters: Any, floor: Step | None) -> None:
        """Write and commit a slice; remove old ones if the newest step of every rank is given."""
        try:
            commit_slice(order, lambda path: self._write(parameters, path))
        except MsRecoverError as error:
            raise type(error)(_not_saved(order, error)) from error
        except Exception as error:  # of MindSpore: it must name rank and step
            raise MsRecoverError(_not_saved(order, error)) from error
        self._committed = order.step
        _log.info("%s: saved", order)
        if floor is not None:
            self._rotate(floor)

    def _write(self, parameters: Any, path: str) -> None:
        try:
            ms.save_checkpoint(parameters, path, integrated_save=False, format=self._format)
        except SafetensorError as error:  # of the file system; types were checked before
            raise StorageError(f"{error}; check the directory, and free some space there") from error

    def _floor(self) -> Step:
        """Wait for the write in flight; return the newest step that every rank has committed."""
        failure = self._background.outcome()  # first: only then is it known what this rank has committed
        return agree_floor(self._job, self._committed, failure)

    def _rotate(self, floor: Step) -> None:
        try:
            gone = rotate(str(self.directory), self._run_prefix, self._keep, floor)
        except OSError as error:  # nothing is lost by it; the next save tries again
            _log.warning("rank %d, step %s: old slices not removed: %s", self._job.rank, self._committed, error)
        else:
            for step in gone:
                _log.info("rank %d: removed the slice of step %s; every rank has step %s", self._job.rank, step, floor)

    def _stood_still(self, step: Step, began: float) -> None:
        stall = Stall(step, time.perf_counter() - began)
        self.stalls.append(stall)
        _log.info("rank %d, step %s: training stood still for %.3f s to save", self._job.rank, step, stall.seconds)


def _not_saved(order: SliceOrder, error: Exception) -> str:
    text = str(error) or type(error).__name__
    return (
        f"{order} was not saved: {text}. Slices that were committed before are whole: mend this, then resume from them"
    )
