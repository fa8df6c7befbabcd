"""Where the parts of a split model keep their weights: slices with replicas, as `recover-ckpt` knows them.

Every part is saved `replicas` times, as the slice of rank ``copy * parts + part`` of ``parts * replicas`` ranks:
``rank_{rank}/split-1_1.ckpt`` with its manifest, and ``group_info.pb`` that lists the ranks of the same part.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import stat
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Collection
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial

from ms_recover import api
from ms_recover.errors import MsRecoverError, StorageError, UnrecoverableError, UsageError, VerificationError
from ms_recover.execution.journal import JOURNAL_NAME
from ms_recover.execution.lock import lock_tree
from ms_recover.execution.rank_lists import write_group_info
from ms_recover.execution.save_slice import STAGING, SliceOrder, clear_leftovers, commit_slice, withdraw
from ms_recover.formats.manifest import read_manifest
from ms_recover.model.manifest import MANIFEST_SUFFIX, Manifest
from ms_recover.model.options import PlanOptions
from ms_recover.model.steps import Step
from ms_recover.scanning.naming import GROUP_INFO_NAME
from ms_recover.storage.atomic import TEMPORARY_SUFFIX, AtomicFile, sync_directory, temporary_path
from ms_recover.storage.digest import holds
from ms_recover.storage.transfer import copy_bytes
from ms_recover.system_errors import explained

STEP = Step(1, 1)
NAME = f"split-{STEP}.ckpt"
LOCK_SECONDS = 60.0
"""How long a repair waits for another recovery that is at work on the directory."""

_OWN = "ms_recover-split-"
_STALE_S = 3600.0
_CLAIM = "splitter"
_RANK = re.compile(r"rank_(0|[1-9]\d{0,7})\Z", re.ASCII)
_SLICE, _LIST, _TEMPORARY = map(re.escape, (NAME, GROUP_INFO_NAME, TEMPORARY_SUFFIX))
_FINAL = rf"{_SLICE}(?:{re.escape(MANIFEST_SUFFIX)})?"
_OURS = re.compile(rf"(?:{_FINAL}|{_LIST}|\.(?:{_FINAL}|{_LIST}(?:\.\w+)?){_TEMPORARY})\Z", re.ASCII)
_MOST_NAMED = 4


class SliceStore:
    """The slices of a split model's parts; its methods may be called from several threads.

    Parameters
    ----------
    directory : str or path-like, optional
        Where they lie; made when it is missing, and kept. The slices of an earlier splitter in it, also of one with
        another number of parts, are there until the first is saved. By default a directory of its own, which is
        removed by `close`, or when the store is garbage or the interpreter exits.
    parts : int
        Number of parts.
    replicas : int
        Slices of each part.
    run_id : str, optional
        What the manifests tell; by default new and unique.

    Raises
    ------
    UsageError
        When another splitter uses the directory, something that is no splitter's is in it, or a number is too small.
    StorageError
        When the directory cannot be made or read.
    """

    def __init__(
        self, directory: str | os.PathLike[str] | None, parts: int, replicas: int = 2, run_id: str | None = None
    ) -> None:
        if parts < 1 or replicas < 1:
            raise UsageError(f"{parts} parts with {replicas} slices each: give at least 1 of both")
        self._parts, self._replicas = parts, replicas
        self.run_id = run_id or secrets.token_hex(16)
        self._saved: dict[int, Manifest] = {}
        self._locks = tuple(threading.Lock() for _ in range(parts))
        self._tree = threading.Lock()
        self._cleared = False
        own = directory is None
        with explained("making", "a temporary directory" if directory is None else os.fspath(directory)):
            if directory is None:
                _sweep(tempfile.gettempdir())
                self._directory = os.path.realpath(tempfile.mkdtemp(prefix=_OWN))
            else:
                self._directory = os.path.realpath(directory)
                os.makedirs(self._directory, 0o700, exist_ok=True)
        _find_ranks(self._directory)
        claim = _claim(self._directory)
        self._finalizer = weakref.finalize(self, _let_go, claim, self._directory if own else None, os.getpid())

    @property
    def directory(self) -> str:
        """Absolute path of the tree: ``recover-ckpt plan`` and the other commands take it."""
        return self._directory

    def save(self, part: int, write: Callable[[str], None], expected: Collection[str]) -> None:
        """Commit all slices of a part; when it returns they are durable. What was saved of it before is replaced.

        Parameters
        ----------
        part : int
            The part.
        write : callable
            Writes the slice under the path it is given, as ``mindspore.save_checkpoint`` does; called once.
        expected : collection of str
            Names of the parameters, as `write` saves them; at least one, because MindSpore cannot load a slice
            without any.

        Raises
        ------
        UsageError
            When there is no such part, it has no parameter, the store is closed, or the directory holds what is no
            splitter's.
        StorageError
            When the file system refuses.
        VerificationError
            When what `write` wrote is not whole, or a replica is not the same.
        """
        self._check(part)
        if not expected:
            example = f"append_dict={{'split.part': {part}}}"
            raise UsageError(f"part {part} has no parameter: save one of your own with it, such as by {example}")
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
                sync_directory(self._directory)
            withdraw([path])
        if len(group) > 1:
            write_group_info(os.path.join(folder, GROUP_INFO_NAME), group)
        size = self._parts * self._replicas
        manifest = commit_slice(SliceOrder(path, rank, size, STEP, 1, self.run_id, group, frozenset(expected)), write)
        if rank == part:
            self._saved[part] = manifest
        elif manifest.digests != self._saved[part].digests:
            withdraw([path])
            raise VerificationError(
                f"{path} is not the same as {self._path(part)}, of which it is a copy: the device or its memory "
                "alters data; check the system log"
            )

    def path(self, part: int) -> tuple[str, str | None]:
        """Return a slice of a part, its bytes proven now; the recovery core repairs what proves bad.

        Parameters
        ----------
        part : int
            The part.

        Returns
        -------
        (str, str or None)
            The slice: the first copy, or one that is whole where that cannot be written. And what was repaired, or
            could not be, for people; None when the first copy was right, and then nothing else is read.

        Raises
        ------
        UsageError
            When there is no such part, it was never saved, or the store is closed.
        UnrecoverableError
            When no slice of the part is whole.
        """
        self._check(part)
        with self._locks[part]:
            told = self._saved.get(part)
            if told is None:
                raise UsageError(f"part {part} was never saved to {self._directory}: save it first")
            if _is_committed(self._path(part), told):
                return self._path(part), None
            with self._tree:
                words = self._repair(self._group(part))
            for rank in self._group(part):
                if _holds(self._path(rank), told):
                    return self._path(rank), f"part {part}: {words}"
        raise UnrecoverableError(
            f"part {part}: none of its {self._replicas} slice(s) in {self._directory} is whole: {words}. "
            "Split the model again; more replicas, on other disks, outlive more"
        )

    def close(self) -> None:
        """Let the directory go, and remove it unless it was given; a second time does nothing."""
        self._finalizer()

    def _check(self, part: int) -> None:
        if not 0 <= part < self._parts:
            raise UsageError(f"there is no part {part}: the parts are 0 to {self._parts - 1}")
        if not self._finalizer.alive:
            raise UsageError(f"the slices in {self._directory} are closed: make a new splitter")

    def _group(self, part: int) -> tuple[int, ...]:
        return tuple(range(part, self._parts * self._replicas, self._parts))

    def _path(self, rank: int) -> str:
        return os.path.join(self._directory, f"rank_{rank}", NAME)

    def _clear_once(self) -> None:
        """Remove what an earlier splitter left, and no name that is not ours; its slices are of another model."""
        with self._tree:
            if self._cleared:
                return
            with explained("clearing", self._directory), lock_tree(self._directory, timeout=LOCK_SECONDS):
                folders = _find_ranks(self._directory)
                withdraw([os.path.join(folder, NAME) for folder in folders])
                for folder in folders:
                    clear_leftovers(folder)
                    for name in os.listdir(folder):
                        if _OURS.match(name):
                            os.unlink(os.path.join(folder, name))
                    os.rmdir(folder)
            self._cleared = True

    def _repair(self, group: tuple[int, ...]) -> str:
        """Let the recovery core restore the slices of one part; return what came of it.

        The other parts' slices are left out of the inventory: they need not be read for it.
        """
        try:
            found = api.scan(self._directory)
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
        said = [
            f"{result.target} {'restored from' if result.error is None else 'not restored from'} {result.source} "
            f"({result.error or plan.ranks[result.rank].reason})"
            for result in outcome.results
        ]
        return "; ".join([*said, *outcome.errors]) or "a manifest is missing, and no slice is left that has one"


def _is_committed(path: str, told: Manifest) -> bool:
    """Whether a slice lies beside its manifest and holds what was saved."""
    if not os.path.isfile(path + MANIFEST_SUFFIX):
        return False  # opening a pipe would wait for a writer
    try:
        there = read_manifest(path + MANIFEST_SUFFIX, like=told.parameters)
    except MsRecoverError:
        return False
    return (there.run_id, there.digests.file) == (told.run_id, told.digests.file) and _holds(path, told)


def _holds(path: str, told: Manifest) -> bool:
    """Whether a file holds the bytes that were saved."""
    with suppress(OSError):
        return holds(path, told.size, told.digests.file, lambda: False) is not None
    return False


def _copy(source: str, target: str) -> None:
    with open(source, "rb") as reading, open(target, "xb") as writing:
        copy_bytes(reading.fileno(), writing.fileno(), lambda: False, lambda count: None)


def _find_ranks(directory: str) -> list[str]:
    """Return the ranks' directories; refuse a directory with anything in it that a splitter does not leave there."""
    folders, strange = [], []
    files = {JOURNAL_NAME, os.path.basename(temporary_path(_CLAIM))}
    with explained("reading", directory):
        for entry in sorted(os.scandir(directory), key=lambda entry: entry.name):
            if _RANK.match(entry.name) and entry.is_dir(follow_symlinks=False):
                folders.append(entry.path)
                for inner in sorted(os.scandir(entry.path), key=lambda inner: inner.name):
                    known = inner.name == STAGING and inner.is_dir(follow_symlinks=False)
                    if not known and not (_OURS.match(inner.name) and inner.is_file(follow_symlinks=False)):
                        strange.append(f"{entry.name}/{inner.name}")
            elif entry.name not in files or not entry.is_file(follow_symlinks=False):
                strange.append(entry.name)
    if strange:
        named = ", ".join(strange[:_MOST_NAMED]) + (", ..." if len(strange) > _MOST_NAMED else "")
        raise UsageError(
            f"{directory} holds what is no splitter's: {named}. Give a directory that is empty or a splitter's own"
        )
    return folders


def _claim(directory: str) -> ExitStack:
    """Take the directory for this store alone; recoveries have a lock of their own, and may go on meanwhile."""
    with ExitStack() as stack:
        try:
            stack.enter_context(AtomicFile(os.path.join(directory, _CLAIM)))
        except StorageError as error:
            if isinstance(error.__cause__, OSError):
                raise
            raise UsageError(
                f"another splitter keeps its slices in {directory}: close it first, or give another directory"
            ) from None
        return stack.pop_all()


def _sweep(folder: str) -> None:
    """Remove the temporary directories that killed splitters of this user left, some time ago, and nothing else."""
    for entry in os.scandir(folder):
        with suppress(MsRecoverError, OSError):
            about = entry.stat(follow_symlinks=False)
            old = time.time() - about.st_mtime > _STALE_S
            if entry.name.startswith(_OWN) and stat.S_ISDIR(about.st_mode) and about.st_uid == os.geteuid() and old:
                _find_ranks(entry.path)
                with _claim(entry.path):  # nobody uses it
                    shutil.rmtree(entry.path, ignore_errors=True)


def _let_go(claim: ExitStack, directory: str | None, process: int) -> None:
    if os.getpid() != process:
        return  # a forked child: it is its parent's
    claim.close()
    if directory is not None:
        shutil.rmtree(directory, ignore_errors=True)
