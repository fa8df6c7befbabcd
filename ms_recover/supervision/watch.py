"""Seal the steps of a tree while a job saves to it: one that is complete and quiet gets its manifests.

The tree is polled, which works on every file system; what is sealed is not read again.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace

from ms_recover import api
from ms_recover.errors import MsRecoverError, StorageError
from ms_recover.execution.rank_lists import write_group_info
from ms_recover.file_names import GROUP_INFO_NAME, MANIFEST_SUFFIX, WATCH_LOCK_PREFIX
from ms_recover.model.inventory import Inventory
from ms_recover.model.options import DEFAULT_PLAN, DEFAULT_SCAN, PlanOptions, ScanOptions
from ms_recover.model.sealing import SealedStep
from ms_recover.planning.tree.world_size import find_world_size
from ms_recover.supervision.equal_ranks import missing_lists
from ms_recover.supervision.look import Directories, identity_of, is_sealed, sights, with_crc
from ms_recover.supervision.quiet import QuietSteps, StepSight
from ms_recover.system_errors import explained


@dataclass(kw_only=True)
class Watch:
    """A watch over one tree; `run` returns only by an exception, such as KeyboardInterrupt.

    Errors of the tree or the file system are told and do not end it: a root that is not there yet, a full disk, a
    recovery at work, ranks whose files may not be read.
    """

    root: str
    """The tree; it need not exist yet."""
    scanning: ScanOptions = DEFAULT_SCAN
    judging: PlanOptions = DEFAULT_PLAN
    """Its `ranks` are those whose slices lie below the root; None for all of the world."""
    quiet_for: float = 30.0
    """Seconds without a change after which a complete step is sealed."""
    interval: float = 5.0
    """Seconds between two looks."""
    jobs: int = 1
    """Threads that read."""
    on_sealed: Callable[[SealedStep], None]
    """Told of each step that was sealed."""
    on_trouble: Callable[[str], None]
    """Told what keeps a step from being sealed, once for each text."""
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic
    _told: set[str] = field(default_factory=set, init=False)

    def run(self) -> None:
        """Watch until an exception."""
        steps, directories = QuietSteps(self.quiet_for), Directories(self.root)
        last = ""
        while True:
            try:
                with self._alone():
                    while True:
                        self.round(steps, directories)
                        last = ""
                        self.sleep(self.interval)
            except MsRecoverError as error:
                if str(error) != last:
                    last = str(error)
                    self.on_trouble(last)
                self.sleep(self.interval)

    def round(self, steps: QuietSteps, directories: Directories) -> None:
        """Look at the tree once, and seal what is due, the newest step first.

        A MsRecoverError says that the tree is gone or cannot be read.
        """
        if not steps.looked(directories.look(steps.unsealed), self.clock()):
            return
        while due := self._find_due(steps):
            self._seal(*due, steps)

    def _find_due(self, steps: QuietSteps) -> tuple[Inventory, StepSight] | None:
        """Scan the tree; return the step that is to be sealed next, if any."""
        now = self.clock()
        try:
            inventory = api.scan(self.root, replace(self.scanning, crc=False))
            seen = sights(inventory, self.judging)
        except MsRecoverError:
            steps.scanned((), now)
            raise
        self._name_doubts(inventory)
        due = steps.scanned(seen, now)
        for sight in due.incomplete:
            self._tell(f"step {sight.step} is not sealed: {'; '.join(sight.missing)}")
        if self.judging.step is None:
            self._follow_rotation(inventory)
        self._list_ranks(inventory)
        return next(((inventory, sight) for step in due.steps[:1] for sight in seen if sight.step == step), None)

    def _seal(self, inventory: Inventory, sight: StepSight, steps: QuietSteps) -> None:
        began, step = self.clock(), sight.step
        checked = with_crc(inventory, step) if self.scanning.crc else inventory
        try:
            paths, found = api.seal(checked, replace(self.judging, step=step, ranks=None), jobs=self.jobs)
        except MsRecoverError as error:
            steps.failed(step, self.clock())
            self._tell(f"step {step} is not sealed yet: {error}")
            return
        changed = {path for path, identity in sight.unsealed.items() if identity_of(inventory, path) != identity}
        for path in changed.intersection(paths):
            self._withdraw(inventory, path)
        if changed:
            steps.failed(step, self.clock())
        else:
            steps.sealed(step)
        kept = tuple(path for path in paths if path not in changed)
        wrong = tuple(check for check in found.wrong if check.path not in changed)
        if kept or wrong:
            sizes = {file.path: file.size for file in inventory.slices}
            self.on_sealed(
                SealedStep(
                    root=inventory.root,
                    step=step,
                    sealed=kept,
                    wrong=wrong,
                    bytes=sum(sizes[path] for path in kept),
                    seconds=self.clock() - began,
                )
            )

    def _withdraw(self, inventory: Inventory, path: str) -> None:
        manifest = os.path.join(inventory.root, path + MANIFEST_SUFFIX)
        with explained("removing", manifest), suppress(FileNotFoundError):
            os.unlink(manifest)

    def _follow_rotation(self, inventory: Inventory) -> None:
        """Remove the manifests of steps that the job has removed: older ones of which no rank has a slice."""
        there = set(inventory.steps)
        proven = {step for step in there if all(is_sealed(file) for file in inventory.slices if file.step == step)}
        newest = max(proven, default=None)
        for orphan in inventory.orphans:
            if newest is not None and orphan.step not in there and orphan.step < newest and orphan.manifest is not None:
                self._withdraw(inventory, orphan.path)

    def _list_ranks(self, inventory: Inventory) -> None:
        """Write the rank lists that ranks lack, where layouts and the contents of the newest sealed step agree."""
        for rank, group in missing_lists(inventory, self.judging).items():
            place = next(file.path for file in reversed(inventory.slices) if file.rank == rank)
            folder = os.path.join(inventory.root, os.path.dirname(place))
            try:
                write_group_info(os.path.join(folder, GROUP_INFO_NAME), group, owner_of=folder)
            except MsRecoverError as error:
                self._tell(f"rank {rank}: no rank list: {error}")

    def _name_doubts(self, inventory: Inventory) -> None:
        for rank, note in inventory.denied:
            self._tell(f"rank {rank}: {note.path}: {note.reason}")
        for file in inventory.slices:
            if file.denied:
                self._tell(f"rank {file.rank}: {file.path}: {file.problem}")
        world = find_world_size(inventory, self.judging.world_size)
        beyond = [rank for rank in inventory.ranks if rank >= world.ranks]
        if beyond:
            self._tell(
                f"rank {beyond[0]} has files, but the world has {world.ranks} ranks ({world.source}): its slices are "
                "not sealed; give --world-size"
            )
        elif world.guessed and self.judging.ranks is None and not any(step.is_iteration for step in inventory.steps):
            self._tell(f"the world is taken to be {world.ranks} ranks by {world.source}; --world-size states it")

    def _tell(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            self.on_trouble(text)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Keep other watches of the tree on this machine waiting; the lock dies with its process.

        It lies outside the tree, which MindFormers may list to load everything in it. Two watches on two machines, or
        where there are no locks, do the same work twice, and no harm. A StorageError says that another one is at work.
        """
        with explained("looking at", self.root, "it is watched as soon as it is there"):
            status = os.stat(self.root)
        path = os.path.join(tempfile.gettempdir(), f"{WATCH_LOCK_PREFIX}{status.st_dev}-{status.st_ino}")
        descriptor = -1
        try:
            with suppress(OSError):
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            self._lock(descriptor)
            yield
        finally:
            if descriptor >= 0:
                os.close(descriptor)

    def _lock(self, descriptor: int) -> None:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StorageError(f"another watch is at work on {self.root}; waiting for its end") from None
        except (OSError, ValueError):  # there are no locks
            pass
