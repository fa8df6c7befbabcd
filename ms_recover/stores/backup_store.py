"""A backup as the tree that was copied: its files under their paths, each read from the object that holds its bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable

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


def read_indexes(store: Store) -> list[BackupIndex]:
    """Return the indexes of a backup, the one that was made last first; errors as for `Store.open`, and FormatError."""
    names = [entry.name for entry in store.list(INDEXES) if entry.kind == "file" and entry.name.endswith(".json")]
    paths = [f"{INDEXES}/{name}" for name in names if not name.startswith(".")]
    indexes = [
        decode_index(store.read_small(path, "the index of a backup", MOST_INDEX_BYTES), f"{store.url}/{path}")
        for path in paths
    ]
    order = sorted(zip(paths, indexes, strict=True), key=lambda one: (-one[1].made, one[0]))
    return [index for _, index in order]


def files_of(indexes: Iterable[BackupIndex]) -> dict[str, BackupFile]:
    """Return the files that the tree of some indexes has, by path; the first index comes first.

    Small files that several steps share, such as rank lists, are those of the first. An index that has another slice
    under a path that is taken, as one of another run does, is left out whole: a tree has one file under a path.
    """
    files: dict[str, BackupFile] = {}
    for index in indexes:
        slices = [one for one in index.files if is_slice(one.path)]
        if all(one.path not in files or files[one.path].digest == one.digest for one in slices):
            for one in index.files:
                files.setdefault(one.path, one)
    return files


def is_slice(path: str) -> bool:
    """Whether a path is that of a slice, by its name."""
    return bool(ending_of(path)) and path.rpartition("/")[2] != STRATEGY_NAME


class BackupStore(Store):
    """The tree that a backup holds; it is only read.

    Modification times are those of the tree that was copied, and digests are known without reading.
    """

    def __init__(self, store: Store) -> None:
        super().__init__(store.url)
        self.host, self.near = store.host, store.near
        self.plain = store
        try:
            indexes = read_indexes(store)
        except MissingInputError:
            indexes = []  # marked, and no step is whole yet
        self._files = files_of(indexes)
        self._folders: dict[str, dict[str, Entry]] = {"": {}}
        for path, file in self._files.items():
            folder, _, name = path.rpartition("/")
            self._folder(folder)[name] = Entry(name=name, kind="file", info=_info(file))

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
        self.near, self._opened, self._file = opened.near, opened, file
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
