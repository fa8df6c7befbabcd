"""Saves of other callbacks whose manifests are due, and the thread that writes them beside the training."""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from threading import Condition, Event, Thread

from ms_recover.errors import MsRecoverError
from ms_recover.execution.manifests import NamedSlice
from ms_recover.execution.rank_lists import write_group_info
from ms_recover.execution.saved_manifest import commit_manifest, prove_saved, remove_manifest
from ms_recover.file_names import GROUP_INFO_NAME, MANIFEST_SUFFIX
from ms_recover.formats.group_info import read_group_info
from ms_recover.training.same_ranks import SameRanks, listed_ranks

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Save:
    """One save of a checkpoint callback: this rank's files of it."""

    series: int
    """The callback."""
    number: int
    """Its place among the saves of its series, from 1."""
    slices: tuple[NamedSlice, ...]
    same: SameRanks
    """The ranks that hold the same."""
    kept: int | None
    """So many of the newest saves of the series are in place while training goes on; older ones are removed together
    with their directory. None where each rank has a directory of its own, which stays.
    """

    def is_safe(self, newest: int) -> bool:
        """Whether nobody removes its directory before the save behind `newest` has ended.

        A directory that is being removed must not get new files, and on NFS no file in it may be open: the removal
        would fail, and the training with it.
        """
        return self.kept is None or self.number > newest + 1 - self.kept


class ManifestQueue:
    """Works off saves in their order, in a thread that lasts from the first one until `close`.

    Starting a thread for each save would make training wait until it is scheduled.

    Parameters
    ----------
    prepare : callable
        Called in the thread with the directory of a rank, before a manifest is written there; returns the digest of the
        strategy file that the slices are saved under.
    """

    def __init__(self, prepare: Callable[[str], str | None] = lambda folder: None) -> None:
        self._prepare = prepare
        self._state = Condition()
        self._due: deque[Save] = deque()
        self._thread: Thread | None = None
        self._at_work: tuple[Save, Event] | None = None
        self._closing = False
        self._failures: list[Exception] = []
        self._sealed: dict[int, list[str]] = {}

    def put(self, save: Save) -> None:
        """Have a save worked off beside the training."""
        with self._state:
            self._due.append(save)
            self._state.notify_all()
        if self._thread is None:
            self._closing = False
            self._thread = Thread(target=self._run, name="slice-manifests", daemon=True)
            self._thread.start()

    def do_now(self, save: Save) -> None:
        """Work off a save, and return when it is done."""
        self._work(save, lambda: False)

    def drop_unsafe(self, series: int, newest: int) -> None:
        """Give up the saves whose directories may be removed from now on, `newest` being the last save of the series.

        None of their files is open when this returns.
        """

        def unsafe(save: Save) -> bool:
            return save.series == series and not save.is_safe(newest)

        with self._state:
            dropped = [save for save in self._due if unsafe(save)]
            self._due = deque(save for save in self._due if not unsafe(save))
            at_work = self._at_work
            if at_work is not None and unsafe(at_work[0]):
                at_work[1].set()
                dropped.append(at_work[0])
                self._state.wait_for(lambda: self._at_work is not at_work)
        for save in dropped:
            _log.info("%s: no manifest, because it is removed before long", save.slices[0])

    def join(self) -> None:
        """Wait until all saves are worked off."""
        with self._state:
            self._state.wait_for(lambda: not self._due and self._at_work is None)

    def close(self) -> None:
        """Work off all saves, and end the thread."""
        with self._state:
            self._closing = True
            self._state.notify_all()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def failures(self) -> list[Exception]:
        """Return the errors since the last call, each with rank, step and path; they were logged."""
        with self._state:
            failures, self._failures = self._failures, []
        return failures

    def _run(self) -> None:
        while True:
            with self._state:
                self._state.wait_for(lambda: self._due or self._closing)
                if not self._due:
                    return
                self._at_work = save, stop = self._due.popleft(), Event()
            try:
                self._work(save, stop.is_set)
            finally:
                with self._state:
                    self._at_work = None
                    self._state.notify_all()

    def _work(self, save: Save, stop: Callable[[], bool]) -> None:
        for order in save.slices:
            if stop():
                return
            try:
                self._seal(save, order, stop)
            except BaseException as error:  # the panic of an extension module is no Exception
                text = (
                    f"{order} got no manifest: {error or type(error).__name__}. Check it with recover-ckpt verify; "
                    "recover-ckpt seal writes the missing manifests"
                )
                kind = type(error) if isinstance(error, MsRecoverError) else MsRecoverError
                _log.error("%s", text)
                with self._state:
                    self._failures.append(kind(text))

    def _seal(self, save: Save, order: NamedSlice, stop: Callable[[], bool]) -> None:
        folder, strategy, same = os.path.dirname(order.path), None, save.same
        if save.kept is None:
            if os.path.lexists(order.path + MANIFEST_SUFFIX):
                remove_manifest(order.path)  # of a file that was there before under this name
            if os.path.isdir(folder):
                strategy = self._prepare(folder)
            if not same.known:
                same = listed_ranks(os.path.join(folder, GROUP_INFO_NAME), order.rank, order.world_size) or same
        proven = prove_saved(order, same.holders, strategy, stop)
        if proven is None or stop():
            _log.info("%s: no manifest, because it was removed or replaced", order)
            return
        if save.kept is None and same.known:
            _list_ranks(folder, proven.manifest.group)
        if commit_manifest(proven):
            _log.info("%s: manifest written", order)
        if save.kept is None:
            self._follow_rotation(save.series, order.path)

    def _follow_rotation(self, series: int, newest: str) -> None:
        """Remove the manifests of the slices of a series that its callback has removed."""
        sealed = self._sealed.setdefault(series, [])
        for path in [path for path in sealed if not os.path.lexists(path)]:
            remove_manifest(path)
            sealed.remove(path)
        if newest not in sealed:
            sealed.append(newest)


def _list_ranks(folder: str, group: tuple[int, ...]) -> None:
    """Write the rank list of a rank's directory, unless it says the same already."""
    path = os.path.join(folder, GROUP_INFO_NAME)
    with suppress(MsRecoverError):
        if set(read_group_info(path).restore_ranks) == set(group):
            return
    write_group_info(path, group, owner_of=folder)
