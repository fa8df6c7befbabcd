"""The tree that is written: in a directory of this host, or in a store behind a URL.

A new file is made where this host can read it back: in its own directory under a temporary name, or for a store in a
folder of this host. It is proven, and gets its name as a whole. A store is not locked, so that one recovery at a time
is up to the operator; a target that is not as the plan saw it is not replaced.
"""

from __future__ import annotations

import logging
import os
import shutil
import stat
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress

import xxhash

from ms_recover.errors import FormatError, MissingInputError, MsRecoverError, StorageError, VerificationError
from ms_recover.execution.context import ActionContext
from ms_recover.execution.journal import Journal
from ms_recover.execution.manifests import manifest_in, proves
from ms_recover.execution.set_aside import give_up, keep_outvoted
from ms_recover.execution.targets import check_place, check_refused, check_target, check_written
from ms_recover.execution.writable import check_writable
from ms_recover.file_names import MANIFEST_SUFFIX
from ms_recover.formats.manifest import encode_manifest
from ms_recover.model.actions import FileState
from ms_recover.model.manifest import Manifest
from ms_recover.model.places import Obstacle
from ms_recover.model.plan import Action, GivenUpSlice
from ms_recover.stores.atomic import AtomicFile, FileForm, leftovers, remove_unlocked, write_small
from ms_recover.stores.digest import digest_of, name_digest
from ms_recover.stores.directories import DirectorySyncs, make_directory
from ms_recover.stores.local_store import LocalStore
from ms_recover.stores.reading import read_through
from ms_recover.stores.store import Stop, Store, never
from ms_recover.system_errors import explained

_log = logging.getLogger(__name__)
_SPARE_BYTES = 64 << 20
"""Room beside the slices: manifests, and what others write meanwhile."""


class Destination(ABC):
    """Where files are written. A path is relative to the root; errors of a store are those of `Store`.

    Attributes
    ----------
    store : Store
        What is there.
    journal : Journal or None
        What an interrupted recovery finished.
    """

    journal: Journal | None = None

    def __init__(self, store: Store) -> None:
        self.store = store

    def path(self, path: str) -> str:
        """Return the absolute path of a file, or its URL."""
        return os.path.join(self.store.url, path)

    @abstractmethod
    def check_place(self, path: str, rank: int | None) -> None:
        """Check that a file of a rank, None for a document of all, can be written where it belongs.

        Errors are those of `ms_recover.execution.targets.check_place`; UsageError where the store is only read.
        """

    @abstractmethod
    def check_target(self, path: str, replaces: FileState | None) -> None:
        """Raise a VerificationError unless nothing lies under a name but the file that the plan saw."""

    def begin(self, action: Action) -> None:
        """Check that the target of an action can be written, before any source is read."""
        self.check_place(action.target, action.rank)

    @abstractmethod
    def foresee(self, path: str, size: int) -> None:
        """Raise the error by which writing a file would end, as far as it can be seen without writing."""

    def is_file(self, path: str) -> bool:
        """Whether a file lies under a name."""
        with suppress(MissingInputError, FormatError):
            self.store.stat(path)
            return True
        return False

    def lies(self, path: str) -> bool:
        """Whether anything lies under a name."""
        return self.is_file(path)

    def holds(self, path: str, size: int, digest: str | None, stop: Stop) -> str | None:
        """Return the digest of a file that holds the expected bytes, None where it does not, or cannot be read.

        One of another size in bytes is not read. Without an expected digest the size alone counts.
        """
        with suppress(MsRecoverError), self.store.open(path) as file:
            found = file.digest(stop) if file.size == size else None
            return found if digest in (None, found) else None
        return None

    def manifest(self, path: str) -> Manifest | None:
        """Return the manifest beside a slice, None without a readable one."""
        try:
            return manifest_in(self.store, path)
        except StorageError:
            if self.store.near:
                return None
            raise

    def kept_before(self, action: Action) -> str | None:
        """Return where the slice lies that an action has set aside, whose target was found there."""
        kept = action.set_aside
        return kept if kept is not None and self.lies(kept) else None

    @abstractmethod
    def new_file(self, path: str, size: int, like: str) -> AbstractContextManager[AtomicFile]:
        """Return the file that is to become a target; a missing directory is made like that of the slice `like`."""

    def check_written(self, file: AtomicFile, digest: str, stop: Stop) -> None:  # noqa: B027 (some prove it later)
        """Raise a VerificationError unless the device holds the bytes that were written."""

    def commit(self, file: AtomicFile, path: str, digest: str, *, set_aside: bool = False) -> str | None:
        """Give a durable file of a digest its final name; return where what lay there is kept, if it is `set_aside`."""
        kept = keep_outvoted(self.store, path) if set_aside else None
        self._commit(file, path, digest)
        return kept

    @abstractmethod
    def _commit(self, file: AtomicFile, path: str, digest: str) -> None: ...

    @abstractmethod
    def write_small(self, path: str, data: bytes, mode: int, *, of: str | None = None, at_once: bool = False) -> None:
        """Write a small file, whole or not at all; one that is there is replaced.

        Written by root it gets the owner of the slice `of`, by default of its directory. It is durable when all is
        synced, or `at_once`.
        """

    def write_manifest(self, path: str, manifest: Manifest) -> None:
        """Write the manifest of a slice that has its name."""
        self.write_small(path + MANIFEST_SUFFIX, encode_manifest(manifest), 0o644, of=path)

    def give_up(self, one: GivenUpSlice) -> str | None:
        """Rename a slice of a step that is given up; see `ms_recover.execution.set_aside.give_up`."""
        return give_up(self.store, one)

    def sync(self, jobs: int) -> list[MsRecoverError]:
        """Make the names durable that were given so far; return the errors."""
        return []


class LocalDestination(Destination):
    """A tree in a directory of this host.

    Parameters
    ----------
    follow : sequence of str
        Real directories out of the root that links may lead to.
    refused : mapping of str to Obstacle
        Targets that are not written because of what is in the way, by path.
    syncs : DirectorySyncs, optional
        Directories that are synced when everything is done; None to sync them at once.
    """

    def __init__(
        self,
        root: str,
        *,
        follow: Sequence[str] = (),
        refused: Mapping[str, Obstacle] | None = None,
        syncs: DirectorySyncs | None = None,
        journal: Journal | None = None,
    ) -> None:
        super().__init__(LocalStore(root))
        self._follow, self._refused, self.journal = follow, refused or {}, journal
        self._syncs = syncs

    def check_place(self, path: str, rank: int | None) -> None:
        """Check a place; a link under the name of a document is not replaced."""
        if rank is not None:
            check_refused(path, self._refused)
        check_place(self.store.url, path, rank, self._follow, plain=rank is None)

    def check_target(self, path: str, replaces: FileState | None) -> None:
        """Check what lies there; see `ms_recover.execution.targets.check_target`."""
        check_target(self.path(path), replaces)

    def foresee(self, path: str, size: int) -> None:
        """Raise what can be seen; see `ms_recover.execution.writable.check_writable`."""
        check_writable(self.path(path), size)

    def lies(self, path: str) -> bool:
        """Whether anything lies under a name, a link included."""
        return os.path.lexists(self.path(path))

    @contextmanager
    def new_file(self, path: str, size: int, like: str) -> Iterator[AtomicFile]:
        """Make the directory, and the file under its temporary name there."""
        root, target, folder = self.store.url, self.path(path), os.path.dirname(self.path(like))
        with explained("making the directory of", target):
            make_directory(os.path.dirname(target), folder if os.path.isdir(folder) else root, root, self._syncs)
        with AtomicFile(target) as file:
            yield file

    def check_written(self, file: AtomicFile, digest: str, stop: Stop) -> None:
        """Read a file back from the device."""
        check_written(file, digest, stop)

    def _commit(self, file: AtomicFile, path: str, digest: str) -> None:
        with explained("committing", file.target):
            file.commit(self._syncs)

    def write_small(self, path: str, data: bytes, mode: int, *, of: str | None = None, at_once: bool = False) -> None:
        """Write a small file; see `Destination.write_small`."""
        owner, syncs = self.path(os.path.dirname(path) if of is None else of), None if at_once else self._syncs
        write_small(self.path(path), data, mode=mode, owner_of=owner, syncs=syncs)

    def give_up(self, one: GivenUpSlice) -> str | None:
        """Rename a slice where no link leads elsewhere."""
        check_place(self.store.url, one.path, one.rank, self._follow)
        return super().give_up(one)

    def sync(self, jobs: int) -> list[MsRecoverError]:
        """Sync the directories in which names were given."""
        return [] if self._syncs is None else self._syncs.sync_all(jobs)


class StoreDestination(Destination):
    """A tree in a store: a file is made in the folder `scratch`, by default that for temporary files, and then sent.

    With `verify` what was sent is read back.
    """

    def __init__(self, store: Store, scratch: str | None = None, *, verify: bool = True) -> None:
        super().__init__(store)
        self._scratch, self._verify = scratch, verify

    def check_place(self, path: str, rank: int | None) -> None:
        """Refuse a store that is only read; nothing is written before a new file is entered."""
        self.store.create(path)

    def check_target(self, path: str, replaces: FileState | None) -> None:
        """Compare the state of the file that lies there."""
        with suppress(MissingInputError):
            if self.store.stat(path).state != replaces:
                raise VerificationError(
                    f"{self.path(path)} appeared or changed after the plan was made; nothing was replaced: plan again"
                )

    def begin(self, action: Action) -> None:
        """Look at what lies there as well, before a slice is made and sent for nothing."""
        super().begin(action)
        self.check_target(action.target, action.replaces)

    def foresee(self, path: str, size: int) -> None:
        """Look for room in the scratch folder, see `jobs_with_room`, and whether the store is only read."""
        self.check_place(path, None)
        jobs_with_room([size], 1, self._scratch)

    @contextmanager
    def new_file(self, path: str, size: int, like: str) -> Iterator[AtomicFile]:
        """Make the file in a folder of its own, where there is room for it."""
        self.foresee(path, size)
        where = self._scratch or tempfile.gettempdir()
        with explained("making a folder in", where, "name another folder with --scratch"):
            folder = tempfile.TemporaryDirectory(prefix="ms_recover.", dir=self._scratch)
        with folder as made, AtomicFile(os.path.join(os.path.realpath(made), os.path.basename(path))) as file:
            yield file

    def _commit(self, file: AtomicFile, path: str, digest: str) -> None:
        """Send a file, which gets its name only if its bytes still have their digest."""
        sent = xxhash.xxh3_128()
        with self.store.create(path) as new:
            with explained("reading", file.path):
                for piece in read_through(file.descriptor, never):
                    sent.update(piece)
                    new.write(piece)
                status = os.fstat(file.descriptor)
            if name_digest(sent) != digest:
                raise VerificationError(
                    f"{file.path} reads back as {name_digest(sent)}, written was {digest}: the device or its memory "
                    "alters data; check the system log"
                )
            new.commit(FileForm(stat.S_IMODE(status.st_mode), status.st_mtime_ns))
        self._prove(path, digest)

    def write_small(self, path: str, data: bytes, mode: int, *, of: str | None = None, at_once: bool = False) -> None:
        """Send a small file."""
        with self.store.create(path) as new:
            new.write(data)
            new.commit(FileForm(mode, time.time_ns()))
        self._prove(path, digest_of(data))

    def _prove(self, path: str, digest: str) -> None:
        if not self._verify:
            return
        with self.store.open(path) as written:
            if written.digest(never) != digest:
                raise VerificationError(
                    f"{self.path(path)} does not give back what was written there: check the store, then plan again"
                )


def own_manifest(action: Action, destination: Destination, context: ActionContext) -> Manifest | None:
    """Return the manifest that a lost or damaged slice left, where it proves the bytes that an action must give."""
    if action.rank in context.lost:
        return None
    own = destination.manifest(action.target)
    return own if proves(own, action.rank, context.step, context.run_id) else None


def jobs_with_room(sizes: Sequence[int], jobs: int, scratch: str | None) -> int:
    """Return how many of these files can be made at a time in the scratch folder, at most `jobs`.

    Raises
    ------
    StorageError
        When there is no room for the largest, or no such folder.
    """
    folder = scratch or tempfile.gettempdir()
    with explained("looking at", folder, "name another folder with --scratch"):
        free = shutil.disk_usage(folder).free - _SPARE_BYTES
    largest = sorted(sizes, reverse=True)
    fitting = max((count for count in range(1, jobs + 1) if sum(largest[:count]) <= free), default=0)
    if largest and not fitting:
        raise StorageError(
            f"{folder} has {max(free, 0):,} bytes of room, and a slice of {largest[0]:,} bytes is made there before it "
            "is sent: name another folder with --scratch or TMPDIR"
        )
    return max(1, fitting)


def remove_leftovers(folder: str) -> None:
    """Remove temporary files that killed processes left in a directory; those that cannot be removed stay."""
    with suppress(OSError):
        for path in leftovers(folder):
            with suppress(OSError):
                remove_unlocked(path)
                _log.info("%s, which a killed process left, is removed", path)
