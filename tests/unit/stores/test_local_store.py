import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from ms_recover.errors import StorageError, VerificationError
from ms_recover.execution.slice_source import LocalSource, OpenSlice, SliceSource
from ms_recover.model.actions import FileState
from ms_recover.stores.atomic import FileForm
from ms_recover.testing.slice_source_suite import SliceSourceSuite
from tests.support.faults import Faults


class TestLocalSource(SliceSourceSuite):
    @pytest.fixture
    def source(self, tree):
        return LocalSource(str(tree))


class LeastSlice(OpenSlice):
    """Only what the ABC asks for."""

    def __init__(self, source, path, expected):
        super().__init__(path, expected.bytes)
        self.source, self.path, self.expected = source, path, expected

    def read_range(self, start, end, take, stop):
        for offset in range(start, end, 1000):
            take(memoryview((self.source.tree / self.path).read_bytes()[offset : min(offset + 1000, end)]))

    def check_unchanged(self):
        if self.source.stat(self.path) != self.expected:
            raise VerificationError(f"{self.path} changed")

    def form(self):
        return FileForm((self.source.tree / self.path).stat().st_mode & 0o777, self.expected.mtime_ns)


class LeastSource(SliceSource):
    def __init__(self, tree):
        self.tree, self.local = tree, LocalSource(str(tree))

    def list_paths(self):
        return self.local.list_paths()

    def stat(self, path):
        return self.local.stat(path)

    def open(self, path, expected):
        self.stat(path)
        return LeastSlice(self, path, expected)

    def manifest(self, path):
        return self.local.manifest(path)


class TestASourceWithTheLeastMethods(SliceSourceSuite):
    @pytest.fixture
    def source(self, tree):
        return LeastSource(tree)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "a.ckpt"
    path.write_bytes(bytes(range(256)) * 20)
    return path, FileState(path.stat().st_size, path.stat().st_mtime_ns)


def test_a_replaced_file_is_read_as_it_was_opened(file, tmp_path):
    path, state = file
    with LocalSource(str(tmp_path)).open("a.ckpt", state) as opened:
        whole = path.read_bytes()
        path.unlink()
        path.write_bytes(b"other")
        assert opened.read_at(0, state.bytes) == whole


def test_a_pipe_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "a.ckpt")
    status = (tmp_path / "a.ckpt").stat()
    with pytest.raises(VerificationError, match="not what the plan saw"):
        LocalSource(str(tmp_path)).open("a.ckpt", FileState(0, status.st_mtime_ns))


def test_a_device_that_fails_is_named_with_the_path(file, tmp_path):
    path, state = file
    with LocalSource(str(tmp_path)).open("a.ckpt", state) as opened:
        faults = Faults(str(tmp_path), 1, "EIO", ("preadv",))
        with faults.installed(), pytest.raises(StorageError, match=f"reading {path}: Input/output error"):
            opened.read_at(0, 10)


def test_no_descriptor_is_left(file, tmp_path):
    before = len(os.listdir("/proc/self/fd"))
    source = LocalSource(str(tmp_path))
    for expected in (file[1], FileState(1, 1)):
        for _ in range(3):
            try:
                source.open("a.ckpt", expected).close()
            except VerificationError:
                continue
    assert len(os.listdir("/proc/self/fd")) == before


def test_threads_share_one_open_slice(file, tmp_path):
    path, state = file
    whole = path.read_bytes()
    with LocalSource(str(tmp_path)).open("a.ckpt", state) as opened, ThreadPoolExecutor(4) as pool:
        parts = pool.map(lambda start: opened.read_at(start, 100), range(0, len(whole), 100))
        assert b"".join(parts) == whole
