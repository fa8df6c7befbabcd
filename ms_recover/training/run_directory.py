"""The directory that a saver writes to: its lock, its file names, and the slices of earlier runs in it."""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Callable
from dataclasses import replace

from ms_recover.errors import MsRecoverError, UsageError
from ms_recover.execution.directory_lock import DirectoryLock, lock_directory
from ms_recover.execution.save_slice import abandon_staged
from ms_recover.file_names import MANIFEST_SUFFIX
from ms_recover.formats.manifest import read_manifest
from ms_recover.model.steps import Step
from ms_recover.planning.lineage import identity_of
from ms_recover.training.job import TrainingJob
from ms_recover.training.rotation import (
    NO_STEP,
    Earlier,
    Keeping,
    find_earlier,
    find_newer,
    next_prefix,
    rotate,
)
from ms_recover.training.run import SharedNames, TrainingRun, begin_run
from ms_recover.training.set_aside import set_aside

_log = logging.getLogger(__name__)


class RunDirectory:
    """The part of one saver in a directory; savers of a run share its names, and all of a process its lock.

    Parameters
    ----------
    job : TrainingJob
        The ranks.
    folder : str
        The directory of this rank, absolute.
    prefix : str
        Start of the file names of all runs.
    keep : int
        Slices that the saver keeps, see `Keeping`.
    keep_runs : int
        Runs of which so many slices are kept, the present one included.
    """

    def __init__(self, job: TrainingJob, folder: str, prefix: str, keep: int, keep_runs: int) -> None:
        if not isinstance(keep_runs, int) or isinstance(keep_runs, bool) or keep_runs < 1:
            raise UsageError(
                f"keep_runs={keep_runs!r}: it must be a whole number from 1, which is the present run alone"
            )
        self._job, self._folder, self._base = job, folder, prefix
        self._keeping = Keeping(keep, set())
        self._keep_runs = keep_runs
        self._lock: DirectoryLock | None = None
        self._release: list[weakref.finalize[[], RunDirectory]] = []
        self._names: SharedNames | None = None
        self._run: TrainingRun | None = None
        self._begun = NO_STEP
        self._earlier: Earlier | None = None

    @property
    def prefix(self) -> str:
        """Start of the file names of this run."""
        return self._names.prefix if self._names is not None else self._base

    def lock(self) -> None:
        """Lock the directory, so that no other process saves to it; StorageError when one does."""
        lock = self._lock = lock_directory(self._folder)
        self.release()
        self._release.append(weakref.finalize(self, lock.release))

    def release(self) -> None:
        """Give the lock back, and leave the run; the last saver of the process that does it unlocks the directory."""
        while self._release:
            self._release.pop()()

    def begin(self, owner: object, first: Step, every: int | None, stride: int) -> TrainingRun:
        """Begin a run or join that of another saver; all ranks call it together. See `begin_run` and `Keeping`."""
        run = self._run = begin_run(self._job, owner, first, _last_start(self._folder), but_not=self._run)
        self._release.append(weakref.finalize(self, run.leave))
        key = os.path.realpath(self._folder), self._base
        if key not in run.names:
            abandon_staged(self._folder)
            run.names[key] = SharedNames(prefix=next_prefix(os.listdir(self._folder), self._base))
        names = self._names = run.names[key]
        self._keeping = replace(self._keeping, saved=set(), every=every, stride=stride)
        names.savers.append(self._keeping)
        run.newest = max(run.newest, first)
        self._begun, self._earlier = NO_STEP, None
        return run

    def set_aside_newer(self, begun: Step) -> None:
        """Set aside the slices of other runs that are newer than the step behind which this run begins.

        Raises StorageError when the file system refuses.
        """
        assert self._run is not None
        self._begun, self._earlier = begun, None
        where = f"step {begun}, behind which" if begun > NO_STEP else "the first step, with which"
        for one in find_newer(self._folder, self._base, self.prefix, self._run.record(begun), begun):
            set_aside(self._job.rank, one.path, f"is of another run and newer than {where} this training begins")

    def note(self, step: Step) -> None:
        """Note a step that is to be saved."""
        assert self._run is not None
        self._run.newest = max(self._run.newest, step)

    def commit(self, step: Step, save: Callable[[], None]) -> None:
        """Save a step, unless another saver of the run has saved it; one slice is written at a time."""
        assert self._names is not None
        assert self._lock is not None
        with self._lock.writing:
            if step not in self._names.saved:
                save()
                self._names.saved.add(step)
            self._keeping.saved.add(step)

    def rotate(self, floor: Step) -> None:
        """Remove what no saver of the run keeps; see `ms_recover.training.rotation.rotate`."""
        assert self._run is not None
        assert self._names is not None
        assert self._lock is not None
        rank, prefix = self._job.rank, self.prefix
        with self._lock.writing:
            try:
                if self._earlier is None:
                    self._earlier = find_earlier(self._folder, self._base, prefix, self._run.record(self._begun))
                gone = rotate(self._folder, prefix, self._names.savers, floor, self._earlier, self._keep_runs)
            except OSError as error:  # nothing is lost by it; the next save tries again
                _log.warning("rank %d, step %s: old slices not removed: %s", rank, floor, error)
            else:
                self._earlier = self._earlier.without(gone)
                for one in gone:
                    name = os.path.basename(one.path)
                    _log.info("rank %d: removed %s; every rank has step %s", rank, name, floor)


def _last_start(folder: str) -> int:
    """Return the start of the last run whose manifests lie in a directory, 0 without one."""
    starts = [0]
    for name in os.listdir(folder):
        if name.endswith(MANIFEST_SUFFIX):
            try:
                started = identity_of(read_manifest(os.path.join(folder, name)))[1]
            except MsRecoverError:
                continue
            starts.append(started or 0)
    return max(starts)
