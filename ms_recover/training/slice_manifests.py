"""Manifests and rank lists for slices that MindSpore's or MindFormers' own callback saves."""

from __future__ import annotations

import functools
import logging
import os
import time
from collections import deque
from collections.abc import Collection, Iterable
from math import prod
from typing import Any

import mindspore as ms
from mindspore.train import Callback

from ms_recover.errors import UsageError
from ms_recover.execution.manifests import strategy_digest
from ms_recover.file_names import STRATEGY_NAME
from ms_recover.model.manifest import TrainingRecord
from ms_recover.model.strategy import Layout
from ms_recover.stores.digest import digest_file
from ms_recover.training.deciding.experiment import given_prefix
from ms_recover.training.deciding.position import batch_size_of
from ms_recover.training.deciding.rotation import NO_STEP
from ms_recover.training.foreign_saves import (
    ForeignSaves,
    checkpoint_callbacks,
    is_of_mindformers,
    is_saving,
)
from ms_recover.training.host import this_host
from ms_recover.training.in_process import of_process
from ms_recover.training.layouts import check_layouts, write_strategy
from ms_recover.training.manifest_queue import ManifestQueue, Save
from ms_recover.training.mindspore_inside import directory_of
from ms_recover.training.number_of_ranks import check_number_of_ranks
from ms_recover.training.options import restore_ranks
from ms_recover.training.other_world import set_other_world_aside
from ms_recover.training.run import Runs, TrainingRun, begin_run
from ms_recover.training.run_directory import last_start
from ms_recover.training.same_ranks import SameRanks, compiled_ranks, listed_ranks
from ms_recover.training.sample_order import sample_order
from ms_recover.training.shards import warn_of_shards
from ms_recover.training.this_process import current_job

_log = logging.getLogger(__name__)


class SliceManifests(Callback):  # type: ignore[misc]
    """Write a manifest for each slice that the checkpoint callbacks beside it save, and the lists of equal ranks.

    The slices are those of MindSpore's ``ModelCheckpoint`` and MindFormers' ``CheckpointMonitor``, in both of its
    formats, saved synchronously or not; nothing about their saving changes. All ranks have this callback, before or
    behind the others in the list.

    A slice is read back when it has its final name, in a thread beside the training, and is made durable. Then
    ``{name}.manifest.json`` is written beside it, with digests of the file and of each parameter, the run, the step and
    the ranks that hold the same; and ``group_info.pb`` in each directory that belongs to one rank. A slice that was
    removed or replaced meanwhile gets none. Manifests of slices that the other callback has removed are removed too.

    A manifest that cannot be written is logged at once with rank, step and path, and raised at the next save or at the
    end of the training. The training waits for manifests at its end only; and after each save where MindFormers keeps a
    single iteration, whose directory nobody may use while the next one is saved.

    Parameters
    ----------
    group : collection of int, optional
        Ranks that hold the same slice as this one, itself included; by default those of `layouts`.
    layouts : iterable of Layout, optional
        The layout of each weight of a network that is built from explicit collectives, see
        `ms_recover.training.cut`. They are written beside the slices as ``strategy.ckpt``. By default the layouts that
        MindSpore's compiler knows are used.
    on_error : {"raise", "log"}
        Whether an error ends the training at the next save, or is only logged.

    Attributes
    ----------
    run_id : str
        The same for all ranks and in all manifests of a training, see `SliceCheckpoint`.
    waits : list of float
        Seconds that the training waited for this callback, for each save and at the end.

    Raises
    ------
    UsageError
        When an argument is invalid; when the training begins, if no other callback saves slices, or one of MindSpore's
        would save beside slices of its prefix that another number of ranks saved.
    MsRecoverError
        While training, when a manifest could not be written.

    Examples
    --------
    >>> saver = ModelCheckpoint("net", f"ckpt_dir{rank}", config)  # doctest: +SKIP
    >>> model.train(4, dataset, callbacks=[saver, SliceManifests()])  # doctest: +SKIP

    For MindFormers see `ms_recover.mindformers`.
    """

    def __init__(
        self,
        group: Collection[int] | None = None,
        layouts: Iterable[Layout] | None = None,
        on_error: str = "raise",
    ) -> None:
        super().__init__()
        if on_error not in ("raise", "log"):
            raise UsageError(f"on_error={on_error!r}: it must be 'raise' or 'log'")
        self._raises = on_error == "raise"
        self._group, self._layouts = group, None if layouts is None else tuple(layouts)
        if self._layouts is not None:
            check_layouts(self._layouts)
        self._sources: list[ForeignSaves] = []
        self._unfinished: deque[Save] = deque()
        self._same: SameRanks | None = None
        self._params: Any = None
        self._loops = 0
        self._strategy = ""
        self._written: set[str] = set()
        self._queue = ManifestQueue(self._prepare)
        self._run: TrainingRun | None = None
        self.run_id = ""
        self.waits: list[float] = []

    def on_train_begin(self, run_context: Any) -> None:
        """Find the callbacks that save, and agree on the id of the run."""
        self._leave_run()
        self._params = params = run_context.original_args()
        job = self._job = current_job()
        with job.ending_together("beginning to write manifests"):
            savers = self._checked_savers()
            order = sample_order(getattr(params, "train_dataset", None))
        warn_of_shards(job, order)
        self._same = None
        folders = [directory_of(saver) for saver in savers]
        set_other_world_aside(job, folders[0], of_process(Runs))
        run = self._run = begin_run(job, params, NO_STEP, last_start(set(folders)))
        self.run_id = run.run_id
        epoch_steps = getattr(params, "batch_num", None)
        batch_size = batch_size_of(getattr(params, "train_dataset", None))
        host, machine = this_host()
        record = TrainingRecord(
            run.started,
            run.resumed_from,
            epoch_steps,
            batch_size,
            host=host,
            machine=machine,
            resharded_from=run.resharded_from,
        )
        self._sources = [ForeignSaves(saver, number, job, run.run_id, record) for number, saver in enumerate(savers)]
        for source in self._sources:
            if source.kept is not None and source.kept < 2:
                _log.warning(
                    "rank %d: MindFormers keeps a single iteration, so training waits for its manifests; "
                    "set keep_checkpoint_max (save_max) to 2 or more",
                    job.rank,
                )

    def _checked_savers(self) -> list[Any]:
        """Return the callbacks that save.

        UsageError where there are none, and where one of MindSpore's would save beside slices of another number of
        ranks. MindFormers resumes by itself from such slices.
        """
        savers = checkpoint_callbacks(getattr(self._params, "list_callback", None))
        if not savers:
            raise UsageError(
                "SliceManifests: no ModelCheckpoint or CheckpointMonitor is among the callbacks, so there are no "
                "slices to write manifests for; add one, or use SliceCheckpoint, which saves by itself"
            )
        if self._layouts is not None:
            check_layouts(self._layouts, self._job.size)
        for saver in savers:
            folder, base = directory_of(saver), given_prefix(saver)
            if folder and base is not None and not is_of_mindformers(saver):
                check_number_of_ranks(self._job, folder, base)
        return savers

    def on_train_step_end(self, run_context: Any) -> None:
        """Take up the saves that ended."""
        self._take_saves(run_context.original_args().cur_step_num)

    def on_train_end(self, run_context: Any) -> None:
        """Wait until the manifests of the saves so far are written."""
        began = time.perf_counter()
        self._take_saves(run_context.original_args().cur_step_num)
        self._finish(began)

    def __enter__(self) -> SliceManifests:
        """Count the loops that use this callback: an evaluation may run within the training."""
        self._loops += 1
        return self

    def __exit__(self, *error: object) -> None:
        """Take up what callbacks behind this one have saved at the end of the training, also where it failed."""
        self._loops -= 1
        if self._loops > 0 or self._params is None:
            return
        began = time.perf_counter()
        raises, self._raises = self._raises, self._raises and error[:1] in ((), (None,))
        try:
            self._take_saves(self._params.cur_step_num)
            self._finish(began)
        finally:
            self._queue.close()
            self._leave_run()
            self._raises, self._sources, self._params = raises, [], None
            for save in self._unfinished:
                _log.warning("%s: no manifest, because it is still being written", save.slices[0])
            self._unfinished.clear()

    def _leave_run(self) -> None:
        if self._run is not None:
            self._run.leave()
        self._run = None

    def _take_saves(self, trained: int) -> None:
        began = time.perf_counter()
        taken = []
        for source in self._sources:
            save = source.take(self._same_ranks, trained)
            if save is None:
                continue
            taken.append(save)
            self._queue.drop_unsafe(save.series, save.number)
            self._begin([one for one in self._unfinished if one.series == save.series])  # MindSpore waited for it
            if not save.slices:
                _log.warning("rank %d: no manifest for a slice whose name states no step", self._job.rank)
            elif source.is_asynchronous:
                self._unfinished.append(save)
            else:
                self._begin([save])
        if self._unfinished and not is_saving():
            self._begin(list(self._unfinished))
        if taken:
            self.waits.append(time.perf_counter() - began)
            self._raise_failures()

    def _begin(self, saves: Iterable[Save]) -> None:
        """Work off saves whose slices are written."""
        newest = {source.series: source.number for source in self._sources}
        for save in saves:
            if save in self._unfinished:
                self._unfinished.remove(save)
            if save.is_safe(newest[save.series]):
                self._queue.put(save)
            elif save.number == newest[save.series]:
                self._queue.do_now(save)
            else:
                _log.info("%s: no manifest, because it is removed before long", save.slices[0])

    def _finish(self, began: float) -> None:
        self._queue.join()
        self.waits.append(time.perf_counter() - began)
        self._raise_failures()

    def _raise_failures(self) -> None:
        failures = self._queue.failures()
        if failures and self._raises:
            raise failures[0]

    def _same_ranks(self) -> SameRanks:
        """Return the ranks that hold the same; the network is compiled when there is a save."""
        if self._same is None:
            job = self._job
            found: SameRanks | None = None
            if self._group is None and self._layouts is None:
                found = compiled_ranks(self._params.train_network, job.rank, job.size)
                found = found or listed_ranks(os.environ.get("GROUP_INFO_FILE", ""), job.rank, job.size)
            if found is None:
                ranks = restore_ranks(self._group, self._layouts, job)
                found = SameRanks(job.rank, None if ranks is None else tuple(ranks))
            if not found.known:
                _log.warning(
                    "rank %d: the ranks that hold the same slice are unknown; give SliceManifests the group or layouts",
                    job.rank,
                )
            self._same = found
            self._strategy = str(ms.get_auto_parallel_context("strategy_ckpt_save_file") or "")
        return self._same

    def _prepare(self, folder: str) -> str | None:
        """Write the layouts beside the first slice; return the digest of the strategy file."""
        if self._layouts is not None and folder not in self._written:
            stage = self._job.rank // prod(self._layouts[0].device_matrix)
            write_strategy(os.path.join(folder, STRATEGY_NAME), self._layouts, self._params.train_network, stage)
            self._written.add(folder)
        beside = strategy_digest(folder)
        if beside is not None or not os.path.isfile(self._strategy):
            return beside
        status = os.stat(self._strategy)
        return _digest(self._strategy, status.st_size, status.st_mtime_ns)


@functools.lru_cache(maxsize=8)
def _digest(path: str, size: int, mtime_ns: int) -> str:
    return digest_file(path).file
