"""The store of a local tree: on the disk, in memory, and with the least that the ABC asks for."""

import os
import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ms_recover.errors import FormatError, MissingInputError, PermissionDeniedError, StorageError, VerificationError
from ms_recover.model.actions import FileState
from ms_recover.stores.atomic import FileForm
from ms_recover.stores.local_store import LocalStore
from ms_recover.stores.store import Entry, OpenFile, Store
from ms_recover.testing.store_suite import StoreSuite, StoreWritingSuite
from tests.support.faults import Faults


@pytest.fixture
def in_memory():
    if not os.path.isdir("/dev/shm"):
        pytest.skip("no tmpfs at /dev/shm")
    folder = tempfile.mkdtemp(prefix="ms_recover-test-", dir="/dev/shm")
    yield Path(folder)
    shutil.rmtree(folder)


class TestLocalStore(StoreSuite):
    @pytest.fixture
    def store(self, tree):
        return LocalStore(str(tree))


class TestLocalStoreInMemory(StoreSuite):
    @pytest.fixture
    def tmp_path(self, in_memory):
        return in_memory

    @pytest.fixture
    def store(self, tree):
        return LocalStore(str(tree))


class TestWritingLocally(StoreWritingSuite):
    @pytest.fixture
    def store(self, tmp_path):
        return LocalStore(str(tmp_path))


class TestWritingInMemory(StoreWritingSuite):
    @pytest.fixture
    def store(self, in_memory):
        return LocalStore(str(in_memory))


class LeastFile(OpenFile):
    """Only what the ABC asks for."""

    near = False

    def __init__(self, store, path, expected):
        found = store.stat(path)
        super().__init__(f"least:/{path}", found.size)
        self.store, self.path, self.expected = store, path, expected or found.state
        self.check_unchanged()

    def read_range(self, start, end, take, stop):
        with self.store.local.open(self.path) as opened:
            for offset in range(start, end, 10_000):
                take(memoryview(opened.read_at(offset, min(10_000, end - offset))))

    def check_unchanged(self):
        if self.store.stat(self.path).state != self.expected:
            raise VerificationError(f"{self.path} changed")

    def form(self):
        return FileForm(0o644, self.expected.mtime_ns)


class LeastStore(Store):
    def __init__(self, tree):
        super().__init__("least://tree")
        self.local = LocalStore(str(tree))

    def list(self, folder):
        return self.local.list(folder)

    def stat(self, path):
        return self.local.stat(path)

    def open(self, path, expected=None):
        return LeastFile(self, path, expected)


class TestAStoreWithTheLeastMethods(StoreSuite):
    keeps_modes = False

    @pytest.fixture
    def store(self, tree):
        return LeastStore(tree)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "a.ckpt"
    path.write_bytes(bytes(range(256)) * 20)
    return path, FileState(path.stat().st_size, path.stat().st_mtime_ns)


def test_a_replaced_file_is_read_as_it_was_opened(file, tmp_path):
    path, state = file
    with LocalStore(str(tmp_path)).open("a.ckpt", state) as opened:
        whole = path.read_bytes()
        path.unlink()
        path.write_bytes(b"other")
        assert opened.read_at(0, state.bytes) == whole


def test_a_pipe_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "a.ckpt")
    with pytest.raises(FormatError, match=f"{tmp_path}/a.ckpt: this is no regular file"):
        LocalStore(str(tmp_path)).open("a.ckpt")
    with pytest.raises(FormatError, match="no regular file"):
        LocalStore(str(tmp_path)).stat("a.ckpt")
    assert LocalStore(str(tmp_path)).list("") == [Entry(name="a.ckpt", kind="other")]


def test_links_are_named_and_followed(file, tmp_path):
    store = LocalStore(str(tmp_path))
    (tmp_path / "folder").mkdir()
    (tmp_path / "link.ckpt").symlink_to(file[0])
    (tmp_path / "to_folder").symlink_to("folder")
    (tmp_path / "nowhere").symlink_to("gone")
    kinds = {one.name: one.kind for one in store.list("")}
    assert kinds == {"a.ckpt": "file", "folder": "folder", "link.ckpt": "link", "nowhere": "link", "to_folder": "link"}
    assert store.stat("link.ckpt") == store.stat("a.ckpt")
    assert store.folder_inode("to_folder") == store.folder_inode("folder")
    assert store.list("to_folder") == []
    with pytest.raises(MissingInputError):
        store.stat("nowhere")


def test_a_file_is_no_folder(file, tmp_path):
    for act in (LocalStore(str(tmp_path)).list, LocalStore(str(tmp_path)).folder_inode):
        with pytest.raises(MissingInputError, match=r"a\.ckpt"):
            act("a.ckpt")


def test_a_device_that_fails_is_named_with_the_path(file, tmp_path):
    path, state = file
    with LocalStore(str(tmp_path)).open("a.ckpt", state) as opened:
        with (
            Faults(str(tmp_path), 1, "EIO", ("preadv",)).installed(),
            pytest.raises(StorageError, match=f"reading {path}: Input/output error"),
        ):
            opened.read(0, memoryview(bytearray(10)))
        with (
            Faults(str(tmp_path), 1, "EIO", ("pread",)).installed(),
            pytest.raises(StorageError, match=f"reading {path}: Input/output error"),
        ):
            opened.read_at(0, 10)


def test_a_folder_that_may_not_be_read_says_so(tmp_path):
    with (
        Faults(str(tmp_path), 1, "EACCES", ("scandir",)).installed(),
        pytest.raises(PermissionDeniedError, match="permission denied for user"),
    ):
        LocalStore(str(tmp_path)).list("ckpt_dir0")


def test_no_descriptor_is_left(file, tmp_path):
    before = len(os.listdir("/proc/self/fd"))
    store = LocalStore(str(tmp_path))
    for expected in (file[1], FileState(1, 1)):
        for _ in range(3):
            try:
                store.open("a.ckpt", expected).close()
            except VerificationError:
                continue
    assert len(os.listdir("/proc/self/fd")) == before


def test_threads_share_one_open_file(file, tmp_path):
    path, state = file
    whole = path.read_bytes()
    with LocalStore(str(tmp_path)).open("a.ckpt", state) as opened, ThreadPoolExecutor(4) as pool:
        parts = pool.map(lambda start: opened.read_at(start, 100), range(0, len(whole), 100))
        assert b"".join(parts) == whole


def test_a_store_that_is_only_read_says_so(tmp_path):
    with pytest.raises(ValueError, match="least://tree is only read"):
        LeastStore(tmp_path).create("a")
    with pytest.raises(ValueError, match="nothing was removed"):
        LeastStore(tmp_path).remove("a")
