"""The directory that a saver writes to: its lock, its file names, and the slices of earlier runs in it."""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from ms_recover.arguments import is_whole
from ms_recover.errors import MsRecoverError, UsageError
from ms_recover.execution.directory_lock import DirectoryLock, lock_directory
from ms_recover.execution.save_slice import abandon_staged
from ms_recover.file_names import MANIFEST_SUFFIX
from ms_recover.formats.manifest import read_manifest
from ms_recover.model.manifest import TrainingRecord
from ms_recover.model.state import SliceClaim
from ms_recover.model.steps import Step
from ms_recover.model.texts import list_some
from ms_recover.planning.tree.lineage import identity_of
from ms_recover.training.deciding.experiment import experiment_of
from ms_recover.training.deciding.held_slice import Held, HeldSlice, prefix_of
from ms_recover.training.deciding.job import TrainingJob
from ms_recover.training.deciding.position import Feed
from ms_recover.training.deciding.rotation import NO_STEP, Earlier, Keeping
from ms_recover.training.held_slices import find_earlier, find_newer, held_slice, read_folder, rotate
from ms_recover.training.host import this_host
from ms_recover.training.in_process import of_process
from ms_recover.training.run import SharedNames, TrainingRun, begin_run
from ms_recover.training.set_aside import set_all_aside

_log = logging.getLogger(__name__)


class _Directories:
    """What this process knows of the directories that it saves to."""

    def __init__(self) -> None:
        self.idle: weakref.WeakSet[RunDirectory] = weakref.WeakSet()
        """Those of savers that have not begun: what they are to keep of earlier runs stays until they do."""
        self.ended: set[tuple[str, str]] = set()
        """Directories and prefixes of trainings that have come to their end."""


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
        if not is_whole(keep_runs, 1, int):
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
        self._is_said = False
        of_process(_Directories).idle.add(self)

    @property
    def prefix(self) -> str:
        """Start of the file names of this run."""
        return self._names.prefix if self._names is not None else self._base

    @property
    def base(self) -> str:
        """Start of the file names of all runs."""
        return self._base

    @property
    def experiment(self) -> str:
        """The experiment that manifests state."""
        return experiment_of(self._base)

    @property
    def start_number(self) -> int:
        """The N of ``_N`` in the prefix of this run, 0 for none."""
        return self._names.number if self._names is not None else 0

    @property
    def claim(self) -> SliceClaim | None:
        """What the state files of this run claim; None before it begins."""
        if self._run is None:
            return None
        return SliceClaim(self.experiment, self.prefix, self._run.run_id, self._run.started)

    def record(self, feed: Feed | None) -> TrainingRecord:
        """Return what the manifests of this run state about it."""
        assert self._run is not None
        host, machine = this_host()
        return TrainingRecord(
            started=self._run.started,
            resumed_from=self._run.resumed_from,
            resharded_from=self._run.resharded_from,
            epoch_steps=feed.epoch_steps if feed is not None else None,
            batch_size=feed.batch_size if feed is not None else None,
            host=host,
            machine=machine,
            base_prefix=self.experiment,
            start_number=self.start_number,
        )

    @property
    def _key(self) -> tuple[str, str]:
        return os.path.realpath(self._folder), self._base

    def lock(self) -> None:
        """Lock the directory, so that no other process saves to it; StorageError when one does."""
        lock = self._lock = lock_directory(self._folder)
        self.release()
        self._release.append(weakref.finalize(self, lock.release))

    def release(self) -> None:
        """Give the lock back, and leave the run; the last saver of the process that does it unlocks the directory."""
        while self._release:
            self._release.pop()()

    def note_ended(self) -> None:
        """Note that the training of this run has come to its end."""
        of_process(_Directories).ended.add(self._key)

    def begin(self, owner: object, first: Step, every: int | None, stride: int) -> TrainingRun:
        """Begin a run or join that of another saver; all ranks call it together. See `begin_run` and `Keeping`."""
        of_process(_Directories).idle.discard(self)
        known = last_start([self._folder])
        run = self._run = begin_run(self._job, owner, first, known, self._run, experiment=self.experiment)
        self._release.append(weakref.finalize(self, run.leave))
        if self._key not in run.names:
            if run.resumed_from is None and self._key in of_process(_Directories).ended and self._job.rank == 0:
                _log.warning(
                    "rank 0: a training with the prefix %r has come to its end in this process, and another one begins "
                    "in %s with the same: its slices take the place of the first one's, from which no later start "
                    "resumes then; give each training of a script a prefix of its own",
                    self._base,
                    self._folder,
                )
            abandon_staged(self._folder)
            number = Held(read_folder(self._folder), self._base).next_start(os.listdir(self._folder))
            run.names[self._key] = SharedNames(prefix=prefix_of(self._base, number), number=number)
        names = self._names = run.names[self._key]
        self._keeping = replace(self._keeping, saved=set(), every=every, stride=stride)
        names.savers.append(self._keeping)
        run.newest = max(run.newest, first)
        self._begun, self._earlier, self._is_said = NO_STEP, None, False
        return run

    def set_aside_newer(self, begun: Step) -> None:
        """Set aside the slices of other runs that are newer than the step behind which this run begins.

        Raises StorageError when the file system refuses.
        """
        assert self._run is not None
        self._begun, self._earlier = begun, None
        where = f"step {begun}, behind which" if begun > NO_STEP else "the first step, with which"
        newer = find_newer(self._folder, self._base, self.prefix, self._run.record(begun), begun)
        why = f"of other runs of {self.experiment!r} and newer than {where} this training begins"
        set_all_aside(self._job.rank, [(one.path, one.step) for one in newer], why)

    def note(self, step: Step) -> None:
        """Note a step that is to be saved."""
        assert self._run is not None
        self._run.newest = max(self._run.newest, step)

    def commit(self, step: Step, path: str, save: Callable[[], None]) -> None:
        """Save a step under a path, unless another saver of the run has saved it; one slice is written at a time."""
        assert self._names is not None
        assert self._lock is not None
        with self._lock.writing:
            if step not in self._names.saved:
                save()
                self._names.saved[step] = path
            self._keeping.saved.add(step)

    def rotate(self, floor: Step) -> None:
        """Remove what no saver of the run keeps; see `ms_recover.training.held_slices.rotate`."""
        assert self._run is not None
        assert self._names is not None
        assert self._lock is not None
        rank, prefix, saved = self._job.rank, self.prefix, self._names.saved
        with self._lock.writing:
            try:
                if self._earlier is None:
                    record = self._run.record(self._begun)
                    self._earlier = find_earlier(self._folder, self._base, prefix, record, rank)
                idle = [one._keeping for one in of_process(_Directories).idle if one._key == self._key]
                savers = [*self._names.savers, *idle]
                mine = [held_slice(*os.path.split(path)) for path in saved.values() if path and os.path.lexists(path)]
                gone = rotate(filter(None, mine), savers, floor, self._earlier, self._keep_runs)
            except OSError as error:  # nothing is lost by it; the next save tries again
                _log.warning("rank %d, step %s: old slices not removed: %s", rank, floor, error)
            else:
                self._say(gone, self._earlier)
                self._earlier = self._earlier.without(gone)
                paths = {one.path for one in gone}
                saved.update({step: "" for step, path in saved.items() if path in paths})
                for one in gone:
                    name = os.path.basename(one.path)
                    _log.info("rank %d: removed %s; every rank has step %s", rank, name, floor)

    def _say(self, gone: Sequence[HeldSlice], earlier: Earlier) -> None:
        """Name the slices that were given up when one of them is removed; once a start, for all."""
        given_up = [*earlier.others, *earlier.halves]
        paths = {one.path for one in given_up}
        if self._is_said or paths.isdisjoint(one.path for one in gone):
            return
        self._is_said = True
        _log.warning(
            "rank %d: %d slice(s) of %r that runs before this one saved behind the step from which training went on, "
            "or had not committed, are removed as soon as every rank has come as far, up to step %s: %s",
            self._job.rank,
            len(given_up),
            self.experiment,
            max(one.step for one in given_up),
            list_some(sorted(map(os.path.basename, paths)), 3),
        )


def last_start(folders: Iterable[str]) -> int:
    """Return the start of the last run whose manifests lie in some directories, 0 without one."""
    starts = [0]
    for folder in filter(os.path.isdir, folders):
        for name in os.listdir(folder):
            if name.endswith(MANIFEST_SUFFIX):
                try:
                    started = identity_of(read_manifest(os.path.join(folder, name)))[1]
                except MsRecoverError:
                    continue
                starts.append(started or 0)
    return max(starts)
