"""The slices of a split model's parts, with replicas, as `recover-ckpt` understands them.

Every part is saved `replicas` times, as the slice of rank ``copy * parts + part`` of ``parts * replicas`` ranks:
``rank_{rank}/split-1_1.ckpt`` with its manifest, and ``group_info.pb`` with the ranks of the same part.
"""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import replace
from functools import partial

from ms_recover import api
from ms_recover.errors import MsRecoverError, UnrecoverableError, UsageError, VerificationError
from ms_recover.execution.rank_lists import write_group_info
from ms_recover.execution.save_slice import SliceOrder, commit_slice, withdraw
from ms_recover.file_names import GROUP_INFO_NAME, MANIFEST_SUFFIX
from ms_recover.formats.manifest import read_manifest
from ms_recover.model.manifest import Manifest
from ms_recover.model.options import PlanOptions
from ms_recover.splitting.slice_directory import LOCK_SECONDS, NAME, STEP, clear_directory, open_directory
from ms_recover.storage.digest import holds
from ms_recover.storage.directories import sync_directory
from ms_recover.storage.transfer import copy_bytes
from ms_recover.system_errors import explained


class SliceStore:
    """The slices of a split model's parts; its methods may be called from several threads.

    The directory is made if missing, and kept. The slices of an earlier splitter in it, with any number of parts, stay
    until the first is saved. By default it is a temporary one, removed by `close`, or when the store is garbage or the
    interpreter exits. Raises what `open_directory` raises, and UsageError when a number is too small.
    """

    def __init__(self, directory: str | os.PathLike[str] | None, parts: int, replicas: int = 2) -> None:
        if parts < 1 or replicas < 1:
            raise UsageError(f"invalid number of parts or replicas: {parts} and {replicas}, expected at least 1 each")
        self._parts = parts
        self._replicas = replicas
        self.run_id = secrets.token_hex(16)
        self._saved: dict[int, Manifest] = {}
        self._locks = tuple(threading.Lock() for _ in range(parts))
        self._tree = threading.Lock()
        self._cleared = False
        self.directory, self._finalizer = open_directory(self, directory)

    def save(self, part: int, write: Callable[[str], None], expected: Collection[str]) -> None:
        """Commit all slices of a part durably; they replace those saved before.

        `write` is called once with the path of the slice to write, `expected` are the names of the parameters in it: at
        least one, because MindSpore cannot load a slice without any. Raises VerificationError when the written slice is
        incomplete, or a replica differs.
        """
        self._check(part)
        with self._locks[part]:
            self._clear_once()
            for rank in self._group(part):
                self._save(part, rank, write if rank == part else partial(_copy, self._path(part)), expected)

    def _save(self, part: int, rank: int, write: Callable[[str], None], expected: Collection[str]) -> None:
        path, group = self._path(rank), self._group(part)
        folder = os.path.dirname(path)
        with explained("saving", path):
            with suppress(FileExistsError):
                os.mkdir(folder, 0o700)
                sync_directory(self.directory)
            withdraw([path])
        if len(group) > 1:
            write_group_info(os.path.join(folder, GROUP_INFO_NAME), group)
        size = self._parts * self._replicas
        manifest = commit_slice(
            SliceOrder(
                path=path,
                rank=rank,
                world_size=size,
                step=STEP,
                cumulative_step=1,
                run_id=self.run_id,
                group=group,
                expected=frozenset(expected),
            ),
            write,
        )
        if rank == part:
            self._saved[part] = manifest
        elif manifest.digests != self._saved[part].digests:
            withdraw([path])
            raise VerificationError(
                f"{path} differs from {self._path(part)}, of which it is a copy: the device or its memory alters data; "
                "check the system log"
            )

    def path(self, part: int) -> tuple[str, str | None]:
        """Return a slice of a part whose bytes were verified now; the recovery core repairs damaged ones.

        It is the first copy, or an undamaged one if that cannot be written. Beside it stands a description of the
        repair, or of its failure; None when the first copy was undamaged, and then no other one is read. Raises
        UnrecoverableError when every slice of the part is damaged.
        """
        self._check(part)
        with self._locks[part]:
            saved = self._saved.get(part)
            if saved is None:
                raise UsageError(f"part {part} was never saved to {self.directory}: save it first")
            if _is_committed(self._path(part), saved):
                return self._path(part), None
            with self._tree:
                words = self._repair(self._group(part))
            for rank in self._group(part):
                if _holds(self._path(rank), saved):
                    return self._path(rank), f"part {part}: {words}"
        raise UnrecoverableError(
            f"part {part}: none of its {self._replicas} slice(s) in {self.directory} is whole: {words}. "
            "Split the model again; more replicas, on other disks, outlive more"
        )

    def close(self) -> None:
        """Release the directory, and remove a temporary one; a second call does nothing."""
        self._finalizer()

    def _check(self, part: int) -> None:
        if not 0 <= part < self._parts:
            raise UsageError(f"there is no part {part}: the parts are 0 to {self._parts - 1}")
        if not self._finalizer.alive:
            raise UsageError(f"the slices in {self.directory} are closed: make a new splitter")

    def _group(self, part: int) -> tuple[int, ...]:
        return tuple(range(part, self._parts * self._replicas, self._parts))

    def _path(self, rank: int) -> str:
        return os.path.join(self.directory, f"rank_{rank}", NAME)

    def _clear_once(self) -> None:
        """Before the first save, remove the slices of an earlier splitter."""
        with self._tree:
            if not self._cleared:
                clear_directory(self.directory)
                self._cleared = True

    def _repair(self, group: tuple[int, ...]) -> str:
        """Let the recovery core restore one part, without reading the other parts; return the outcome as text."""
        try:
            found = api.scan(self.directory)
            slices = tuple(file for file in found.slices if file.rank in group)
            lists = tuple(file for file in found.group_files if file.rank in group)
            size = self._parts * self._replicas
            narrowed = replace(found, slices=slices, group_files=lists)
            plan = api.plan(narrowed, PlanOptions(step=STEP, world_size=size, ranks=frozenset(group)))
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
