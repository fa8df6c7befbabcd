"""The slices of a split model's parts, with replicas, as `recover-ckpt` understands them.

Every part is saved `replicas` times, as the slices of the ranks from ``part * replicas`` on, of ``parts * replicas``
ranks: a part is a pipeline stage. ``rank_{rank}/split-1_{step}.ckpt`` with its manifest is the slice behind so many
trained steps; beside it ``group_info.pb`` holds the ranks of the same part, ``strategy.ckpt`` the layouts.
"""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from ms_recover import api
from ms_recover.errors import MsRecoverError, UnrecoverableError, UsageError, VerificationError
from ms_recover.execution.rank_lists import write_group_info
from ms_recover.execution.save_slice import SliceOrder, commit_staged, stage_slice, withdraw
from ms_recover.file_names import GROUP_INFO_NAME, MANIFEST_SUFFIX, STRATEGY_NAME
from ms_recover.formats.manifest import read_manifest
from ms_recover.formats.strategy import encode_strategy
from ms_recover.model.manifest import Digests, Manifest
from ms_recover.model.options import PlanOptions
from ms_recover.model.slices import Parameter
from ms_recover.model.strategy import Layout, Strategy
from ms_recover.splitting.saved_split import SavedSplit
from ms_recover.splitting.slice_directory import (
    LOCK_SECONDS,
    clear_directory,
    open_directory,
    saved_steps,
    set_aside_newer,
    slice_name,
    step_of,
)
from ms_recover.stores.atomic import write_small
from ms_recover.stores.digest import holds
from ms_recover.stores.directories import sync_directory
from ms_recover.stores.transfer import copy_bytes
from ms_recover.system_errors import explained


class SliceStore:
    """The slices of a split model's parts; its methods may be called from several threads.

    The directory is made if missing, and kept. The slices of an earlier splitter in it stay until the first is saved,
    and for good where the store goes on from them (`found`). By default it is a temporary one, removed by `close`, or
    when the store is garbage or the interpreter exits. Raises what `open_directory` raises, and UsageError when a
    number is too small.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str] | None,
        parts: int,
        replicas: int = 2,
        found: SavedSplit | None = None,
    ) -> None:
        if parts < 1 or replicas < 1:
            raise UsageError(f"invalid number of parts or replicas: {parts} and {replicas}, expected at least 1 each")
        self._parts = parts
        self._replicas = replicas
        self.run_id = secrets.token_hex(16) if found is None else found.run_id
        self.step = 0 if found is None else found.step
        """The step whose slices are all saved; 0 before the first training step."""
        self._saved: dict[tuple[int, int], Manifest] = {}
        self._locks = tuple(threading.Lock() for _ in range(parts))
        self._tree = threading.Lock()
        self._cleared = found is not None
        self.directory, self._finalizer = open_directory(self, directory)
        if found is not None:
            set_aside_newer(self.directory, found.step)
            self._saved = {(found.step, part): manifest for part, manifest in enumerate(found.manifests)}

    def save(self, part: int, write: Callable[[str], Digests | None], expected: Collection[str], step: int = 0) -> None:
        """Commit all slices of a part behind so many trained steps durably; they replace those of the same step.

        `write` is called once with the path of the slice to write, and returns the digests of what it wrote, if it
        knows them. `expected` are the names of the parameters in it: at least one, because MindSpore cannot load a
        slice without any. Raises VerificationError when the written slice is incomplete, or a replica differs.
        """
        self._check(part)
        with self._locks[part]:
            self._clear_once()
            first, *others = self._group(part)
            self._save(part, first, write, expected, step)
            for rank in others:
                self._save(part, rank, partial(_copy, self._path(first, step)), expected, step)

    def _save(
        self, part: int, rank: int, write: Callable[[str], Digests | None], expected: Collection[str], step: int
    ) -> None:
        path, group = self._path(rank, step), self._group(part)
        folder = os.path.dirname(path)
        with explained("saving", path):
            with suppress(FileExistsError):
                os.mkdir(folder, 0o700)
                sync_directory(self.directory)
            withdraw([path])
        if len(group) > 1:
            write_group_info(os.path.join(folder, GROUP_INFO_NAME), group)
        staged = stage_slice(
            SliceOrder(
                path=path,
                rank=rank,
                world_size=self._parts * self._replicas,
                step=step_of(step),
                cumulative_step=step,
                run_id=self.run_id,
                group=group,
                expected=frozenset(expected),
            ),
            write,
        )
        _write_changed(os.path.join(folder, STRATEGY_NAME), _layouts(part, self._replicas, staged.header.parameters))
        manifest = commit_staged(staged)
        if rank == group[0]:
            self._saved[step, part] = manifest
        elif manifest.digests != self._saved[step, part].digests:
            withdraw([path])
            raise VerificationError(
                f"{path} differs from {self._path(group[0], step)}, of which it is a copy: the device or its memory "
                "alters data; check the system log"
            )

    def settle(self, step: int) -> None:
        """Make a step the one that counts, now that all its slices are saved; keep the one before, remove all others.

        Raises UsageError when a slice of the step was not saved.
        """
        missing = [part for part in range(self._parts) if (step, part) not in self._saved]
        if missing:
            raise UsageError(f"step {step} has no slices of part {missing[0]} in {self.directory}")
        kept = {step, self.step}
        for rank in range(self._parts * self._replicas):
            folder = os.path.join(self.directory, f"rank_{rank}")
            old = [os.path.join(folder, slice_name(each)) for each in saved_steps(folder) if each not in kept]
            with explained("removing old slices", folder):
                withdraw(old)
        self._saved = {key: manifest for key, manifest in self._saved.items() if key[0] in kept}
        self.step = step

    def is_saved(self, part: int) -> bool:
        """Whether there are slices of a part at the step that counts."""
        return (self.step, part) in self._saved

    def path(self, part: int) -> tuple[str, str | None]:
        """Return a slice of a part whose bytes were verified now; the recovery core repairs damaged ones.

        It is the first copy, or an undamaged one if that cannot be written. Beside it stands a description of the
        repair, or of its failure; None when the first copy was undamaged, and then no other one is read. Raises
        UnrecoverableError when every slice of the part is damaged.
        """
        self._check(part)
        with self._locks[part]:
            step = self.step
            saved = self._saved.get((step, part))
            if saved is None:
                raise UsageError(f"part {part} was never saved to {self.directory}: save it first")
            first = self._path(self._group(part)[0], step)
            if _is_committed(first, saved):
                return first, None
            with self._tree:
                words = self._repair(self._group(part), step)
            for rank in self._group(part):
                if _holds(self._path(rank, step), saved):
                    return self._path(rank, step), f"part {part}: {words}"
        raise UnrecoverableError(
            f"part {part}: none of its {self._replicas} slice(s) in {self.directory} is whole: {words}. "
            "Split the model again; more replicas, on other disks, outlive more"
        )

    def weights(self) -> dict[str, Any]:
        """Return the weights of all parts at the step that counts, as parameters by name; raises as `path`."""
        from mindspore import Parameter

        from ms_recover.splitting.values import SliceFile

        files = [SliceFile(self.path(part)[0]) for part in range(self._parts)]
        return {name: Parameter(file.read(name), name=name) for file in files for name in file.weights}

    def close(self) -> None:
        """Release the directory, and remove a temporary one; a second call does nothing."""
        self._finalizer()

    def _check(self, part: int) -> None:
        if not 0 <= part < self._parts:
            raise UsageError(f"there is no part {part}: the parts are 0 to {self._parts - 1}")
        if not self._finalizer.alive:
            raise UsageError(f"the slices in {self.directory} are closed: make a new splitter")

    def _group(self, part: int) -> tuple[int, ...]:
        return tuple(range(part * self._replicas, (part + 1) * self._replicas))

    def _path(self, rank: int, step: int) -> str:
        return os.path.join(self.directory, f"rank_{rank}", slice_name(step))

    def _clear_once(self) -> None:
        """Before the first save, remove the slices of an earlier splitter."""
        with self._tree:
            if not self._cleared:
                clear_directory(self.directory)
                self._cleared = True

    def _repair(self, group: tuple[int, ...], step: int) -> str:
        """Let the recovery core restore one part, without reading the other parts; return the outcome as text."""
        try:
            found = api.scan(self.directory)
            slices = tuple(file for file in found.slices if file.rank in group)
            lists = tuple(file for file in found.group_files if file.rank in group)
            size = self._parts * self._replicas
            narrowed = replace(found, slices=slices, group_files=lists)
            plan = api.plan(narrowed, PlanOptions(step=step_of(step), world_size=size, ranks=frozenset(group)))
            if not plan.recoverable:
                return "; ".join(f"rank {rank}: {plan.ranks[rank].reason}" for rank in group)
            outcome = api.apply(plan, ranks=group, lock_timeout=LOCK_SECONDS)
        except (MsRecoverError, OSError) as error:
            return f"not restored: {error}"
        restored = [
            f"{result.target} {'restored from' if result.error is None else 'not restored from'} {result.source} "
            f"({result.error or plan.ranks[result.rank].reason})"
            for result in outcome.results
        ]
        return "; ".join([*restored, *outcome.errors]) or "a manifest is missing, and no slice is left that has one"


def _layouts(part: int, replicas: int, parameters: Iterable[Parameter]) -> bytes:
    """Return the strategy file of a part, whose ranks all hold its parameters whole."""
    whole = [Layout(each.name, (replicas,), ((),) * len(each.shape)) for each in parameters if each.shape]
    return encode_strategy(Strategy((part,), 1, tuple(sorted(whole, key=lambda layout: layout.parameter))))


def _write_changed(path: str, data: bytes) -> None:
    with suppress(OSError), open(path, "rb") as file:
        if file.read(len(data) + 1) == data:
            return
    write_small(path, data)


def _is_committed(path: str, saved: Manifest) -> bool:
    """Whether a slice and its manifest are those that were saved."""
    try:
        there = read_manifest(path + MANIFEST_SUFFIX, like=saved.parameters)
    except MsRecoverError:
        return False
    return (there.run_id, there.digests.file) == (saved.run_id, saved.digests.file) and _holds(path, saved)


def _holds(path: str, saved: Manifest) -> bool:
    """Whether a file holds the bytes that were saved."""
    with suppress(OSError):
        return holds(path, saved.size, saved.digests.file, lambda: False) is not None
    return False


def _copy(source: str, target: str) -> None:
    with open(source, "rb") as reading, open(target, "xb") as writing:
        copy_bytes(reading.fileno(), writing.fileno(), lambda: False, lambda count: None)
