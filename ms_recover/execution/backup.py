"""Copy one step into a backup: contents once each, by digest, read back, and an index at the end."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import xxhash

from ms_recover.errors import MissingInputError, UsageError, VerificationError
from ms_recover.file_names import BACKUP_MARK, MANIFEST_SUFFIX, STATE_SUFFIX
from ms_recover.model.actions import FileState
from ms_recover.model.backup import BackupFile, BackupIndex, BackupOutcome
from ms_recover.model.inventory import Inventory
from ms_recover.model.progress import expect_bytes
from ms_recover.model.steps import Step
from ms_recover.stores.atomic import FileForm
from ms_recover.stores.backup_index import encode_index, encode_mark, index_path, object_path
from ms_recover.stores.backup_store import is_backup
from ms_recover.stores.digest import digest_of, name_digest
from ms_recover.stores.local import StoppedError
from ms_recover.stores.store import Stop, Store

_log = logging.getLogger(__name__)
_POLL_SECONDS = 0.2
_OBJECT_MODE = 0o444
_T = TypeVar("_T")
_R = TypeVar("_R")


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """A file to copy: what is known of it, or its bytes where they lie nowhere yet."""

    path: str
    state: FileState | None = None
    digest: str | None = None
    data: bytes | None = None


def files_of_step(
    inventory: Inventory,
    step: Step,
    digests: Mapping[str, str],
    manifests: Mapping[str, bytes],
    states: Collection[str],
) -> list[Given]:
    """Return the files of a step: slices with their digests, manifests and states, and the lists beside them.

    `manifests` has those that are made for slices without one, by the path of the slice; `states` the paths of slices
    with a sound state file. The documents of MindFormers that name another step are left out.
    """
    found: list[Given] = []
    for file in inventory.slices:
        if file.step == step and file.path in digests:
            found.append(Given(path=file.path, state=FileState(file.size, file.mtime_ns), digest=digests[file.path]))
            beside = file.path + MANIFEST_SUFFIX
            made = manifests.get(file.path)
            state = None if made is None else FileState(len(made), file.mtime_ns)
            found.append(Given(path=beside, state=state, data=made))
            if file.path in states:
                found.append(Given(path=file.path + STATE_SUFFIX))
    others = [one.path for one in inventory.group_files if one.info is not None]
    others += [one.path for one in inventory.strategy_files]
    others += [meta.path for meta in inventory.meta_files if meta.step == step]
    for iteration in inventory.iterations:
        if iteration.step == step:
            others += [one.path for one in (iteration.metadata, iteration.common) if one.value is not None]
    if inventory.tracker is not None and inventory.tracker.value == step.step and step.is_iteration:
        others.append(inventory.tracker.path)
    taken = {one.path for one in found}
    return found + [
        Given(path=path) for path in dict.fromkeys(others) if not path.startswith("/") and path not in taken
    ]


def copy_step(
    source: Store,
    target: Store,
    given: Sequence[Given],
    index: BackupIndex,
    *,
    jobs: int = 1,
    verify: bool = True,
    progress: Callable[[int], None] = lambda count: None,
) -> BackupOutcome:
    """Copy the files of a step into a backup; `index` is that of the backup, still without files.

    What a run that was killed has copied is not copied again. Without the index, which comes last, nothing counts.

    Raises
    ------
    UsageError
        When the target is neither a backup nor empty, or is only read.
    VerificationError
        When a file changes meanwhile, or the backup does not give back what was copied.
    StorageError, MissingInputError, PermissionDeniedError
        When reading or writing fails.
    KeyboardInterrupt
        When no thread writes any more.
    """
    _mark(target)
    stop = threading.Event()
    files = _in_threads(jobs, stop, lambda one: _look(source, one, stop.is_set), given)
    bytes_of = {one.path: one.data for one in given if one.data is not None}
    objects: dict[str, BackupFile] = {}
    for file in files:
        objects.setdefault(object_path(file.digest, file.size), file)
    total = sum(file.size for file in objects.values())
    expect_bytes(progress, total)

    def put(item: tuple[str, BackupFile]) -> int:
        path, file = item
        return _put(source, target, path, file, bytes_of.get(file.path), stop.is_set, verify, progress)

    sizes = _in_threads(jobs, stop, put, objects.items())
    whole = replace(index, files=tuple(sorted(files, key=lambda file: file.path)))
    where = index_path(whole)
    if not _is_there(target, where):
        _write(target, where, encode_index(whole))
    return BackupOutcome(
        root=index.root,
        url=target.url,
        step=index.step,
        index=where,
        files=len(files),
        objects=len(objects),
        bytes=total,
        uploaded=sum(size >= 0 for size in sizes),
        uploaded_bytes=sum(max(size, 0) for size in sizes),
        verified=verify,
    )


def _mark(target: Store) -> None:
    if not is_backup(target):
        try:
            entries = target.list("")
        except MissingInputError:
            entries = []
        if entries:
            raise UsageError(
                f"{target.url} is no backup and not empty (it holds {entries[0].name!r}): name a folder or prefix of "
                "its own"
            )
        _write(target, BACKUP_MARK, encode_mark())


def _look(source: Store, one: Given, stop: Stop) -> BackupFile:
    """Return the digest and form of a file; what is known of it is not read."""
    if one.data is not None:
        form = FileForm(0o644, one.state.mtime_ns if one.state is not None else 0)
        digest, size = digest_of(one.data), len(one.data)
    else:
        with closing(source.open(one.path, one.state)) as file:
            form, size = file.form(), file.size
            digest = one.digest or file.digest(stop)
            file.check_unchanged()
    return BackupFile(path=one.path, digest=digest, size=size, mode=form.mode & 0o777, mtime_ns=max(form.mtime_ns, 0))


def _put(
    source: Store,
    target: Store,
    path: str,
    file: BackupFile,
    data: bytes | None,
    stop: Stop,
    verify: bool,
    progress: Callable[[int], None],
) -> int:
    """Bring an object into the backup; return its bytes where they were sent, -1 where it was there."""
    sent = -1
    if not _holds(target, path, file, stop, verify):
        _send(source, target, path, file, data, stop)
        sent = file.size
        if verify and not _holds(target, path, file, stop, verify):
            raise VerificationError(
                f"{target.url}/{path} does not give back the bytes of {file.path} that were written there: check the "
                "store before you rely on it"
            )
    progress(file.size)
    return sent


def _holds(target: Store, path: str, file: BackupFile, stop: Stop, verify: bool) -> bool:
    try:
        if target.stat(path).size != file.size:
            return False
        if not verify:
            return True
        with target.open(path) as opened:
            return opened.digest(stop) == file.digest
    except MissingInputError:
        return False


def _send(source: Store, target: Store, path: str, file: BackupFile, data: bytes | None, stop: Stop) -> None:
    """Write an object, which gets its name only if its bytes have its digest."""
    digest, count = xxhash.xxh3_128(), 0
    with target.create(path) as new:

        def take(piece: memoryview) -> None:
            nonlocal count
            if stop():
                raise StoppedError
            digest.update(piece)
            new.write(piece)
            count += len(piece)

        if data is not None:
            take(memoryview(data))
        else:
            with source.open(file.path) as opened:
                opened.read_range(0, opened.size, take, stop)
        if count != file.size or name_digest(digest) != file.digest:
            raise VerificationError(
                f"{source.url}/{file.path} is not what was read before ({count} bytes, {name_digest(digest)}; before "
                f"{file.size} bytes, {file.digest}): it changes, or its device fails; copy again"
            )
        new.commit(FileForm(_OBJECT_MODE, file.mtime_ns))
    _log.info("%s copied to %s, %d bytes", file.path, path, file.size)


def _is_there(target: Store, path: str) -> bool:
    try:
        target.stat(path)
    except MissingInputError:
        return False
    return True


def _write(target: Store, path: str, data: bytes) -> None:
    with target.create(path) as new:
        new.write(data)
        new.commit()
    with target.open(path) as opened:
        if opened.read_at(0, opened.size) != data:
            raise VerificationError(f"{target.url}/{path} does not give back what was written there: check the store")


def _in_threads(jobs: int, stop: threading.Event, work: Callable[[_T], _R], items: Iterable[_T]) -> list[_R]:
    """Return the results in order; the first error, or Ctrl-C, stops the others."""
    pool = ThreadPoolExecutor(max(1, jobs), thread_name_prefix="backup")
    futures: list[Future[Any]] = []
    try:
        futures += [pool.submit(work, item) for item in items]
        pending = set(futures)
        while pending:
            done, pending = wait(pending, timeout=_POLL_SECONDS, return_when=FIRST_EXCEPTION)
            for future in done:
                future.result()
        return [future.result() for future in futures]
    finally:
        if any(not future.done() for future in futures):
            stop.set()
        pool.shutdown(wait=True, cancel_futures=True)
