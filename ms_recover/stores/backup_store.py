"""A backup as the tree that was copied: its files under their paths, each read from the object that holds its bytes."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping

from ms_recover.errors import FormatError, MissingInputError, PermissionDeniedError, VerificationError
from ms_recover.file_names import BACKUP_MARK, STRATEGY_NAME, ending_of
from ms_recover.model.actions import FileState
from ms_recover.model.backup import BackupFile, BackupIndex
from ms_recover.stores.atomic import FileForm
from ms_recover.stores.backup_index import INDEXES, MOST_INDEX_BYTES, check_mark, decode_index, object_path
from ms_recover.stores.digest import digest_of
from ms_recover.stores.paths import check_path
from ms_recover.stores.store import Entry, FileInfo, OpenFile, Stop, Store

_MOST_MARK_BYTES = 4096


def is_backup(store: Store) -> bool:
    """Whether a store is a backup, by its mark; a FormatError when the mark is damaged or of another version."""
    try:
        data = store.read_small(BACKUP_MARK, "the mark of a backup", _MOST_MARK_BYTES)
    except (MissingInputError, PermissionDeniedError):
        return False
    check_mark(data, f"{store.url}/{BACKUP_MARK}")
    return True


def read_indexes(store: Store) -> dict[str, BackupIndex]:
    """Return the indexes of a backup by their paths, the one that was made last first.

    Raises
    ------
    FormatError
        When one is malformed.
    MsRecoverError
        As for `Store.open`.
    """
    names = [entry.name for entry in store.list(INDEXES) if entry.kind == "file" and entry.name.endswith(".json")]
    paths = [f"{INDEXES}/{name}" for name in names if not name.startswith(".")]
    indexes = {
        path: decode_index(store.read_small(path, "the index of a backup", MOST_INDEX_BYTES), f"{store.url}/{path}")
        for path in paths
    }
    return dict(sorted(indexes.items(), key=lambda one: (-one[1].made, one[0])))


def in_order(indexes: Mapping[str, BackupIndex], first: str | None) -> dict[str, BackupIndex]:
    """Return indexes by their paths, that which is to be the `first` before the others of its run, these before all."""
    if first is None:
        return dict(indexes)
    run = indexes[first].run_id
    return dict(sorted(indexes.items(), key=lambda one: (one[0] != first, not run or one[1].run_id != run)))


def files_of(indexes: Mapping[str, BackupIndex]) -> tuple[dict[str, BackupFile], tuple[str, ...]]:
    """Return the files that the tree of some indexes has, by path, and the indexes that are left out.

    The first index comes first. Small files that several steps share, such as rank lists, are those of the first. An
    index that has another slice under a path that is taken, as one of another run does, is left out whole: a tree has
    one file under a path.
    """
    files: dict[str, BackupFile] = {}
    left_out = []
    for path, index in indexes.items():
        slices = [one for one in index.files if is_slice(one.path)]
        if all(one.path not in files or files[one.path].digest == one.digest for one in slices):
            for one in index.files:
                files.setdefault(one.path, one)
        else:
            left_out.append(path)
    return files, tuple(left_out)


def is_slice(path: str) -> bool:
    """Whether a path is that of a slice, by its name."""
    return bool(ending_of(path)) and path.rpartition("/")[2] != STRATEGY_NAME


class BackupStore(Store):
    """The tree that a backup holds; it is only read.

    Modification times are those of the tree that was copied, and digests are known without reading. Where several runs
    saved one step under the same paths, the tree is that of the one that was copied last, or with `first` that of one
    index, by its path in the backup; the URL then names it.

    Attributes
    ----------
    left_out : dict of str to BackupIndex
        The indexes of steps that lie under the paths of others, by their paths in the backup.

    Raises
    ------
    MissingInputError
        When there is no such index.
    FormatError
        When one is malformed.
    """

    def __init__(self, store: Store, first: str | None = None) -> None:
        super().__init__(store.url if first is None else f"{store.url}/{first}")
        self.host, self.near = store.host, store.near
        self.plain = store
        try:
            indexes = read_indexes(store)
        except MissingInputError:
            indexes = {}  # marked, and no step is whole yet
        if first is not None and first not in indexes:
            raise MissingInputError(f"{self.url}: there is no such step in this backup; it has {', '.join(indexes)}")
        self._files, left_out = files_of(in_order(indexes, first))
        self.left_out = {path: indexes[path] for path in left_out}
        self._folders: dict[str, dict[str, Entry]] = {"": {}}
        for path, file in self._files.items():
            folder, _, name = path.rpartition("/")
            self._folder(folder)[name] = Entry(name=name, kind="file", info=_info(file))

    def root_of(self, run_id: str) -> str:
        """Return the root of the tree that shows a run: another one than this where a step of it is left out."""
        newest = next((path for path, index in self.left_out.items() if index.run_id == run_id), None)
        return self.url if newest is None else f"{self.plain.url}/{newest}"

    def notes(self) -> list[tuple[str, str]]:
        """Return the steps of other runs that are left out, by the paths of their indexes, and how each is shown."""
        found = []
        for path, index in self.left_out.items():
            root, run = [f"{self.plain.url}/{path}"], f"another run, from {index.root},"
            if index.run_id:
                root, run = [self.plain.url, "--run", index.run_id], f"run {index.run_id}"
            command = shlex.join(["recover-ckpt", "plan", *root])
            found.append((path, f"step {index.step} of {run} lies in this backup under the same paths: {command}"))
        return found

    def _folder(self, folder: str) -> dict[str, Entry]:
        if folder not in self._folders:
            above, _, name = folder.rpartition("/")
            self._folder(above)[name] = Entry(name=name, kind="folder")
            self._folders[folder] = {}
        return self._folders[folder]

    def close(self) -> None:
        """Close the store of the backup."""
        self.plain.close()

    def list(self, folder: str) -> list[Entry]:
        """List a folder of the tree."""
        names = self._folders.get(check_path(folder))
        if names is None:
            raise MissingInputError(f"{self.url}/{folder}: no such folder in this backup")
        return [names[name] for name in sorted(names)]

    def stat(self, path: str) -> FileInfo:
        """Return the state of a file of the tree."""
        return _info(self._file(path))

    def _file(self, path: str) -> BackupFile:
        file = self._files.get(check_path(path))
        if file is None:
            if path in self._folders:
                raise FormatError(f"{self.url}/{path}: this is a folder; name the file itself")
            raise MissingInputError(f"{self.url}/{path}: no such file in this backup")
        return file

    def open(self, path: str, expected: FileState | None = None) -> OpenFile:
        """Open the object of a file."""
        file = self._file(path)
        if expected is not None and expected != _info(file).state:
            raise VerificationError(f"{self.url}/{path} is not what the plan saw: plan again")
        return BackupOpenFile(self.plain.open(object_path(file.digest, file.size)), f"{self.url}/{path}", file)

    def read_small(self, path: str, what: str, limit: int) -> bytes:
        """Return the bytes of a small file, which must have the digest in the index."""
        data = super().read_small(path, what, limit)
        if digest_of(data) != self._file(path).digest:
            raise VerificationError(f"{self.url}/{path}: the backup holds other bytes than were copied: copy it again")
        return data


class BackupOpenFile(OpenFile):
    """A file of a backup, read from its object."""

    def __init__(self, opened: OpenFile, name: str, file: BackupFile) -> None:
        super().__init__(name, file.size)
        self.near, self.path = opened.near, opened.path
        self._opened, self._file = opened, file
        if opened.size != file.size:
            opened.close()
            raise VerificationError(
                f"{name}: its object has {opened.size} bytes instead of {file.size}; copy the step again"
            )

    def close(self) -> None:
        """Close the object."""
        self._opened.close()

    def read_range(self, start: int, end: int, take: Callable[[memoryview], None], stop: Stop) -> None:
        """Read a range of the object."""
        self._opened.read_range(start, end, take, stop)

    def read(self, offset: int, into: memoryview) -> int:
        """Read some bytes of the object."""
        return self._opened.read(offset, into)

    def check_unchanged(self) -> None:
        """Check the object."""
        self._opened.check_unchanged()

    def form(self) -> FileForm:
        """Return permissions and time of the file that was copied."""
        return FileForm(self._file.mode, self._file.mtime_ns)

    def digest(self, stop: Stop) -> str:
        """Return the digest of the object."""
        return self._opened.digest(stop)

    def copy_to(self, descriptor: int, stop: Stop, progress: Callable[[int], None]) -> tuple[int, str]:
        """Copy the object."""
        return self._opened.copy_to(descriptor, stop, progress)


def _info(file: BackupFile) -> FileInfo:
    return FileInfo(size=file.size, mtime_ns=file.mtime_ns, version=file.digest, digest=file.digest)
