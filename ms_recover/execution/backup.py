"""Copy one step into a backup: contents once each, by digest, and an index at the end.

An object gets its name only if its bytes have its digest, whatever its source holds by then; what is sent is read back.
"""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, field, replace

import xxhash

from ms_recover.errors import (
    FormatError,
    MissingInputError,
    MsRecoverError,
    PermissionDeniedError,
    StorageError,
    VerificationError,
)
from ms_recover.execution.backup_target import check_room, mark, write
from ms_recover.execution.sources import BadSourceError, Sources
from ms_recover.file_names import MANIFEST_SUFFIX, STATE_SUFFIX
from ms_recover.model.actions import FileState
from ms_recover.model.backup import BackupFile, BackupIndex, BackupOutcome
from ms_recover.model.inventory import Inventory, Note
from ms_recover.model.progress import expect_bytes
from ms_recover.model.steps import Step
from ms_recover.stores.atomic import FileForm
from ms_recover.stores.backup_index import MOST_INDEX_BYTES, decode_index, encode_index, index_path, object_path
from ms_recover.stores.digest import digest_of, name_digest
from ms_recover.stores.store import NewFile, Stop, Store
from ms_recover.stores.threads import in_threads

_log = logging.getLogger(__name__)
_OBJECT_MODE = 0o444


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """A file to copy: what is known of it, or its bytes where they lie nowhere yet."""

    path: str
    state: FileState | None = None
    digest: str | None = None
    read: bool = False
    """Whether that digest is of bytes that were read, and not what a manifest says."""
    data: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyOptions:
    """How a step is copied; the fields are the parameters of `ms_recover.api.copy`."""

    jobs: int = 1
    verify: bool | None = None
    dry_run: bool = False
    progress: Callable[[int], None] = lambda count: None


class BadSourcesError(VerificationError):
    """No source of some contents holds them any more; `notes` has each path and why."""

    def __init__(self, text: str, notes: Sequence[Note]) -> None:
        super().__init__(text)
        self.notes = tuple(notes)


def files_of_step(
    inventory: Inventory,
    step: Step,
    digests: Mapping[str, str],
    read: Callable[[str], bool],
    manifests: Mapping[str, bytes],
    states: Mapping[str, str],
) -> list[Given]:
    """Return the files of a step: slices with their digests, manifests and states, and the lists beside them.

    `read` says of which slices the bytes were read. `manifests` has those that are made for slices without one, by the
    path of the slice; `states` the digests of sound state files, by the same. The documents of MindFormers that name
    another step are left out.
    """
    taken: list[Given] = []
    for file in inventory.slices:
        if file.step == step and file.path in digests:
            known, seen = FileState(file.size, file.mtime_ns), read(file.path)
            taken.append(Given(path=file.path, state=known, digest=digests[file.path], read=seen))
            beside = file.path + MANIFEST_SUFFIX
            made = manifests.get(file.path)
            state = None if made is None else FileState(len(made), file.mtime_ns)
            taken.append(Given(path=beside, state=state, data=made))
            if file.path in states:
                taken.append(Given(path=file.path + STATE_SUFFIX, digest=states[file.path], read=True))
    others = [file.path for file in inventory.group_files if file.info is not None]
    others += [file.path for file in inventory.strategy_files]
    others += [meta.path for meta in inventory.meta_files if meta.step == step]
    for iteration in inventory.iterations:
        if iteration.step == step:
            others += [
                document.path for document in (iteration.metadata, iteration.common) if document.value is not None
            ]
    if inventory.tracker is not None and inventory.tracker.value == step.step and step.is_iteration:
        others.append(inventory.tracker.path)
    paths = {file.path for file in taken}
    return taken + [
        Given(path=path) for path in dict.fromkeys(others) if not path.startswith("/") and path not in paths
    ]


def copy_step(
    source: Store, target: Store, given: Sequence[Given], index: BackupIndex, options: CopyOptions
) -> BackupOutcome:
    """Copy the files of a step into a backup; `index` is that of the backup, still without files.

    The target is one of `open_target`. What a run that was killed has copied is not copied again. Without the index,
    which comes last, nothing counts. With `verify` every object is read back, without any; by default those that were
    sent, and those that no index of this step vouches for. With `dry_run` nothing is written, and sources that were not
    read yet are.

    Raises
    ------
    BadSourcesError
        When no source of some contents holds them; they may lie in the backup in part, and do not count.
    VerificationError
        When a file changes meanwhile, or the backup does not give back what was copied.
    StorageError, MissingInputError, PermissionDeniedError
        When reading or writing fails, or the target has too little room.
    KeyboardInterrupt
        When no thread writes any more.
    """
    jobs, verify, dry_run, stop = options.jobs, options.verify, options.dry_run, threading.Event()
    files = in_threads(jobs, lambda file: _look(source, file, stop.is_set), given, stop)
    whole = replace(index, files=tuple(sorted(files, key=lambda file: file.path)))
    where = index_path(whole)
    indexed = _is_index(target, where, whole)
    objects: dict[str, list[BackupFile]] = defaultdict(list)
    for file in files:
        objects[object_path(file.digest, file.size)].append(file)
    total = sum(equal[0].size for equal in objects.values())
    expect_bytes(options.progress, total)
    # What an earlier run sent is not sent again; its index vouches for it, otherwise each object is looked at.
    copy = _Copy(source, target, {file.path: file for file in given}, stop.is_set, options)
    look = verify or (verify is None and not indexed)
    present = in_threads(jobs, lambda named: copy.holds(named[0], named[1][0], look), objects.items(), stop)
    missing = [named for named, is_present in zip(objects.items(), present, strict=True) if not is_present]
    sent = sum(equal[0].size for _, equal in missing)
    check_room(target, sent)
    if not dry_run:
        mark(target)
    in_threads(jobs, lambda named: copy.put(*named), missing, stop)
    # The index comes last: without it nothing of this counts.
    if not (indexed or dry_run):
        write(target, where, encode_index(whole))
    kept = len(objects) - len(missing)
    return BackupOutcome(
        root=index.root,
        url=target.url,
        step=index.step,
        index=where,
        files=len(files),
        objects=len(objects),
        bytes=total,
        uploaded=len(missing),
        uploaded_bytes=sent,
        verified=verify is not False,
        read_back=(kept if look else 0) + (len(missing) if verify is not False and not dry_run else 0),
        passed_over=tuple(sorted(copy.passed_over, key=lambda note: note.path)),
        dry_run=dry_run,
    )


def _is_index(target: Store, path: str, expected: BackupIndex) -> bool:
    """Whether the index of a step lies in a backup: all that it names was read back when it was written."""
    try:
        found = decode_index(target.read_small(path, "the index of a backup", MOST_INDEX_BYTES), path)
    except (MissingInputError, FormatError):
        return False
    return found.files == expected.files


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


@dataclass(frozen=True)
class _Copy:
    """What the objects of one copy share; threads share it."""

    source: Store
    target: Store
    given: Mapping[str, Given]
    stop: Stop
    options: CopyOptions
    passed_over: list[Note] = field(default_factory=list)

    def holds(self, path: str, file: BackupFile, look: bool) -> bool:
        """Whether the backup has an object: by its size, or where asked to `look` by its bytes."""
        try:
            if self.target.stat(path).size != file.size:
                return False
            if look:
                with self.target.open(path) as opened:
                    if opened.digest(self.stop) != file.digest:
                        return False
        except (MissingInputError, FormatError):
            return False
        self.options.progress(file.size)
        return True

    def put(self, path: str, files: Sequence[BackupFile]) -> None:
        """Bring an object into the backup, from the first of some files that holds it; see it there."""
        if self.options.dry_run and any(self._was_read(file) for file in files):
            return
        bad: list[Note] = []
        sources = Sources([file.path for file in files])

        def send() -> BackupFile:
            number = sources.first(range(len(files)))
            self._send(path, files[number], number)
            return files[number]

        def pass_over(failure: BadSourceError) -> None:
            bad.append(Note(files[failure.number].path, str(failure)))
            _log.warning("%s %s", bad[-1].path, bad[-1].reason)

        try:
            file = sources.attempt(send, pass_over)
        except MsRecoverError as error:
            if len(bad) < len(files):
                raise
            raise BadSourcesError(f"{self.source.url}/{bad[0].path} {bad[0].reason}", bad) from error
        self.passed_over.extend(bad)
        if self.options.dry_run or self.options.verify is False:
            self.options.progress(file.size)
        elif not self.holds(path, file, True):
            raise VerificationError(
                f"{self.target.url}/{path} does not give back the bytes of {file.path} that were written there: "
                "check the store before you rely on it"
            )

    def _was_read(self, file: BackupFile) -> bool:
        given = self.given[file.path]
        return given.read or given.digest is None

    def _send(self, path: str, file: BackupFile, number: int) -> None:
        """Write an object, which gets its name only if its bytes have its digest; a BadSourceError otherwise."""
        digest, count = xxhash.xxh3_128(), 0
        with nullcontext() if self.options.dry_run else self.target.create(path) as new:
            sink = _Sink(new)

            def take(piece: memoryview) -> None:
                nonlocal count
                digest.update(piece)
                sink.write(piece)
                count += len(piece)

            self._read(file, number, take, sink)
            if count != file.size or name_digest(digest) != file.digest:
                other = VerificationError(
                    f"holds other bytes than it should ({count} bytes, {name_digest(digest)}; it should hold "
                    f"{file.size} bytes, {file.digest})"
                )
                raise BadSourceError(other, number)
            if new is not None:
                new.commit(FileForm(_OBJECT_MODE, file.mtime_ns))
        _log.info("%s copied to %s, %d bytes", file.path, path, file.size)

    def _read(self, file: BackupFile, number: int, take: Callable[[memoryview], None], sink: _Sink) -> None:
        data = self.given[file.path].data
        if data is not None:
            take(memoryview(data))
            return
        try:
            with self.source.open(file.path) as opened:
                opened.read_range(0, opened.size, take, self.stop)
        except MsRecoverError as error:
            if error is sink.error or self._is_lost(error):
                raise
            raise BadSourceError(VerificationError(f"cannot be read: {error}"), number) from error

    def _is_lost(self, error: MsRecoverError) -> bool:
        """Whether a distant source as a whole may be at fault."""
        denied = isinstance(error, PermissionDeniedError)
        return isinstance(error, StorageError) and not denied and not self.source.near


class _Sink:
    """A new file, None for nothing, and the error by which writing it ended."""

    def __init__(self, new: NewFile | None) -> None:
        self._new = new
        self.error: MsRecoverError | None = None

    def write(self, piece: memoryview) -> None:
        """Append bytes; errors as for `NewFile.write`."""
        try:
            if self._new is not None:
                self._new.write(piece)
        except MsRecoverError as error:
            self.error = error
            raise
