"""What MindSpore's ``ModelCheckpoint`` and MindFormers' ``CheckpointMonitor`` have saved, by their own records.

Sources: ``mindspore/train/callback/_checkpoint.py`` 2.10, ``mindformers/core/callback/callback.py`` and
``mindformers/checkpoint/checkpoint.py`` 2.0. A callback records a save when the slice is written, or when an
asynchronous save has begun.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from dataclasses import replace
from multiprocessing import active_children
from typing import Any

from mindspore.train import ModelCheckpoint

from ms_recover.arguments import texts
from ms_recover.execution.manifests import NamedSlice
from ms_recover.file_names import WeightsName, named_iteration
from ms_recover.model.manifest import TrainingRecord
from ms_recover.model.steps import Step
from ms_recover.scanning.naming import read_file_name
from ms_recover.training.deciding.experiment import experiment_of, given_prefix, with_experiment
from ms_recover.training.deciding.job import TrainingJob
from ms_recover.training.manifest_queue import Save
from ms_recover.training.mindspore_inside import config_of, listed_callbacks, saved_step_of
from ms_recover.training.same_ranks import SameRanks

_ASYNCHRONOUS = "asyn_save_ckpt"
"""Name of the thread or process in which MindSpore saves."""


def checkpoint_callbacks(callbacks: Any) -> list[Any]:
    """Return the callbacks of a training that save slices for MindSpore or MindFormers."""
    listed = callbacks if isinstance(callbacks, Iterable) else listed_callbacks(callbacks)
    return [callback for callback in listed if isinstance(callback, ModelCheckpoint)]


def is_of_mindformers(callback: Any) -> bool:
    """Whether a callback is MindFormers' own, whose trainers resume by themselves."""
    return hasattr(callback, "save_network_params")


def is_saving() -> bool:
    """Whether an asynchronous save of MindSpore's is under way in this process or a child of it."""
    if any(thread.name == _ASYNCHRONOUS for thread in threading.enumerate()):
        return True
    return any(child.name == _ASYNCHRONOUS for child in active_children())


class ForeignSaves:
    """The saves of one checkpoint callback, as they come.

    Parameters
    ----------
    callback : mindspore.train.ModelCheckpoint
        The callback; MindFormers' is a subclass.
    series : int
        Its number.
    job : TrainingJob
        The ranks.
    run_id : str
        The id of the run, for the manifests.
    training : TrainingRecord
        Facts about the training, for the manifests of MindSpore's slices. MindFormers resumes by itself, so that
        nothing tells what its runs go on from: its manifests state the host alone.
    """

    def __init__(self, callback: Any, series: int, job: TrainingJob, run_id: str, training: TrainingRecord) -> None:
        self._callback = callback
        self._job, self._run_id = job, run_id
        if is_of_mindformers(callback):
            training = TrainingRecord(None, host=training.host, machine=training.machine)
        self._training = training
        self.series = series
        self.number = 0
        self._newest = self._record()

    @property
    def is_asynchronous(self) -> bool:
        """Whether slices may still be written after a save is recorded."""
        return bool(getattr(config_of(self._callback), "async_save", True))

    @property
    def kept(self) -> int | None:
        """See `Save.kept`."""
        if not self._saves_iterations:
            return None
        kept = getattr(config_of(self._callback), "keep_checkpoint_max", None)
        return kept if isinstance(kept, int) else 1

    def take(self, same: Callable[[], SameRanks], trained: int) -> Save | None:
        """Return the save that was recorded since the last call, if any, after `trained` steps.

        `same` returns the ranks that hold the same.
        """
        newest = self._record()
        if newest is None or newest == self._newest:
            return None
        self._newest = newest
        self.number += 1
        slices = self._of_iteration(newest) if self._saves_iterations else self._of_step(newest, trained)
        return Save(series=self.series, number=self.number, slices=slices, same=same(), kept=self.kept)

    @property
    def _saves_iterations(self) -> bool:
        """Whether it writes MindFormers' format "weights 2.0", one directory an iteration for all ranks."""
        return not getattr(self._callback, "use_legacy_format", True)

    def _record(self) -> str | None:
        """Return the newest slice or directory of an iteration that the callback has recorded."""
        if self._saves_iterations:
            directories = self._callback.current_ckpt_step_list
            return str(directories[-1]) if directories else None
        return self._callback.latest_ckpt_file_name or None

    def _of_iteration(self, directory: str) -> tuple[NamedSlice, ...]:
        """Return the rank's files of an iteration.

        Their index is the rank also where redundancy is removed: MindFormers counts the ranks before it that were given
        a shard, and fails where a rank was given none (``checkpoint/fully_parallel.py``).
        """
        iteration = named_iteration(os.path.basename(directory))
        assert iteration is not None
        callback, job = self._callback, self._job
        names = [WeightsName(callback.origin_prefix, "model", job.rank, job.size)]
        if callback.save_optimizer:
            names.append(names[0]._replace(kind="opt"))
        record, prefix = self._training, callback.origin_prefix
        if prefix:
            record = replace(record, base_prefix=prefix, start_number=0)
        step = Step.iteration(iteration)
        return tuple(self._slice(os.path.join(directory, name.name), step, iteration, record) for name in names)

    def _of_step(self, path: str, trained: int) -> tuple[NamedSlice, ...]:
        """Return the slice, and the slices of weights alone that MindFormers saves with it; none without a step."""
        folder, name = os.path.split(os.path.abspath(path))
        named = read_file_name(name)
        if named is None or named.rest:
            return ()
        callback, prefix, rest = self._callback, named.prefix, name[len(named.prefix) :]
        paths = [os.path.join(folder, name)]
        if getattr(callback, "save_trainable_params", False):
            paths.append(os.path.join(callback.trainable_directory, f"{prefix}-trainable_params{rest}"))
        elif getattr(callback, "save_network_params", False):
            paths.append(os.path.join(callback.network_directory, f"{prefix}-network{rest}"))
        trained = saved_step_of(callback, trained)
        given = given_prefix(callback)
        slices = []
        for one in paths:
            training = with_experiment(self._training, os.path.basename(one).removesuffix(rest), given)
            slices.append(self._slice(os.path.abspath(one), named.step, trained, training))
        return tuple(slices)

    def _slice(self, path: str, step: Step, trained: int, training: TrainingRecord) -> NamedSlice:
        return NamedSlice(
            path=path,
            rank=self._job.rank,
            world_size=self._job.size,
            step=step,
            cumulative_step=trained,
            run_id=self._run_id,
            training=training,
        )


def given_experiments(prefix: Any, callbacks: Iterable[Any] = (), savers: Iterable[Any] = ()) -> tuple[str, ...]:
    """Return the experiments of a program: of the argument, of its savers, or else of MindSpore's own callbacks.

    Raises UsageError when the argument is no text and no list of texts.
    """
    given = set(map(experiment_of, texts("prefix", prefix))) if prefix is not None else set()
    given |= {saver.experiment for saver in savers}
    if not given:
        named = map(given_prefix, checkpoint_callbacks(list(callbacks)))
        given = {experiment_of(one) for one in named if one is not None}
    return tuple(sorted(given))
