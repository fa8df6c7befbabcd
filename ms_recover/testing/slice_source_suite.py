"""The suite that every `SliceSource` passes; it needs pytest.

Subclass it and give it a fixture ``source``, which makes the source of a tree:

>>> class TestMySource(SliceSourceSuite):     # doctest: +SKIP
...     @pytest.fixture
...     def source(self, tree):
...         return MySource(tree)
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ms_recover.errors import MissingInputError, MsRecoverError, VerificationError
from ms_recover.execution.slice_source import OpenSlice, SliceSource
from ms_recover.model.actions import FileState
from ms_recover.stores.digest import digest_file
from ms_recover.stores.local import StoppedError
from ms_recover.testing.trees import make_tree, save_manifests

NAME = "test-1_8.ckpt"
PATH = f"ckpt_dir1/{NAME}"


class SliceSourceSuite:
    """Tests of a source; a subclass overrides the fixture `source`."""

    @pytest.fixture
    def tree(self, tmp_path: Path) -> Path:
        """Return a tree of four ranks with manifests; tests change its files."""
        tree = make_tree(tmp_path / "tree", data_parallel=2, model_parallel=2, parameters={"w": 300_000, "b": 7})
        save_manifests(tree)
        return tree

    @pytest.fixture
    def source(self, tree: Path) -> SliceSource:
        """Return the source of the tree."""
        raise NotImplementedError

    @pytest.fixture
    def data(self, tree: Path) -> bytes:
        """Return the bytes of one slice."""
        return (tree / PATH).read_bytes()

    @staticmethod
    def state(tree: Path, path: str = PATH) -> FileState:
        """Return the state of a slice of the tree."""
        status = (tree / path).stat()
        return FileState(status.st_size, status.st_mtime_ns)

    @staticmethod
    def range_of(opened: OpenSlice, start: int, end: int) -> bytes:
        """Return a range of an open slice."""
        data = bytearray()
        opened.read_range(start, end, data.extend, lambda: False)
        return bytes(data)

    def test_every_slice_is_listed(self, source: SliceSource) -> None:
        assert {f"ckpt_dir{rank}/{NAME}" for rank in range(4)} <= set(source.list_paths())
        assert source.list_paths() == sorted(source.list_paths())

    def test_stat_is_size_and_modification_time(self, source: SliceSource, tree: Path) -> None:
        assert source.stat(PATH) == self.state(tree)

    def test_a_path_without_slice_is_missing_input(self, source: SliceSource) -> None:
        with pytest.raises(MissingInputError):
            source.stat("ckpt_dir9/test-1_8.ckpt")
        with pytest.raises(MissingInputError):
            source.open("ckpt_dir9/test-1_8.ckpt", FileState(5, 5))

    def test_a_manifest_is_the_one_beside_the_slice(self, source: SliceSource, data: bytes) -> None:
        manifest = source.manifest(PATH)
        assert manifest is not None
        assert (manifest.rank, manifest.file, manifest.size) == (1, NAME, len(data))

    def test_any_range_gives_its_bytes_in_order(self, source: SliceSource, tree: Path, data: bytes) -> None:
        size = len(data)
        with source.open(PATH, self.state(tree)) as opened:
            assert opened.size == size
            for start, end in ((0, size), (0, 1), (size - 1, size), (1000, 70_000), (5, 5), (size, size)):
                assert self.range_of(opened, start, end) == data[start:end]

    def test_reads_at_any_offset_give_the_bytes_there(self, source: SliceSource, tree: Path, data: bytes) -> None:
        size = len(data)
        with source.open(PATH, self.state(tree)) as opened:
            for offset in (0, 100, 99, size // 2, size // 2 + 70_000, 7, size - 3):
                assert opened.read_at(offset, 1000) == data[offset : offset + 1000]
            assert opened.read_at(0, 2 * size) == data
            assert opened.read(size, memoryview(bytearray(9))) == 0

    def test_the_digest_is_that_of_the_whole_file(self, source: SliceSource, tree: Path) -> None:
        with source.open(PATH, self.state(tree)) as opened:
            assert opened.digest(lambda: False) == digest_file(tree / PATH).file

    def test_a_copy_holds_every_byte(self, source: SliceSource, tree: Path, data: bytes, tmp_path: Path) -> None:
        counts: list[int] = []
        with (tmp_path / "copy").open("wb") as file, source.open(PATH, self.state(tree)) as opened:
            copied = opened.copy_to(file.fileno(), lambda: False, counts.append)
        assert copied == (len(data), digest_file(tree / PATH).file)
        assert (tmp_path / "copy").read_bytes() == data
        assert sum(counts) == len(data)

    def test_copying_stops_when_asked(self, source: SliceSource, tree: Path, tmp_path: Path) -> None:
        with (
            (tmp_path / "copy").open("wb") as file,
            source.open(PATH, self.state(tree)) as opened,
            pytest.raises(StoppedError),
        ):
            opened.copy_to(file.fileno(), lambda: True, lambda count: None)

    def test_the_form_is_permissions_and_time(self, source: SliceSource, tree: Path) -> None:
        (tree / PATH).chmod(0o440)
        with source.open(PATH, self.state(tree)) as opened:
            form = opened.form()
        assert (form.mode, form.mtime_ns) == (0o440, (tree / PATH).stat().st_mtime_ns)

    def test_a_slice_that_is_not_as_expected_is_refused(self, source: SliceSource, tree: Path) -> None:
        now = self.state(tree)
        for other in (FileState(now.bytes, now.mtime_ns + 1), FileState(now.bytes - 1, now.mtime_ns)):
            with pytest.raises(VerificationError), source.open(PATH, other) as opened:
                opened.check_unchanged()

    def test_a_slice_that_changed_after_it_was_opened_is_refused(self, source: SliceSource, tree: Path) -> None:
        with source.open(PATH, self.state(tree)) as opened:
            opened.check_unchanged()
            os.utime(tree / PATH, ns=(5, 5))
            with pytest.raises(VerificationError):
                opened.check_unchanged()

    def test_a_slice_that_vanished_is_an_error(self, source: SliceSource, tree: Path) -> None:
        state = self.state(tree)
        (tree / PATH).unlink()
        with pytest.raises(MsRecoverError), source.open(PATH, state) as opened:
            opened.check_unchanged()

    def test_several_slices_are_read_at_the_same_time(self, source: SliceSource, tree: Path) -> None:
        def read(rank: int) -> bytes:
            path = f"ckpt_dir{rank}/{NAME}"
            with source.open(path, self.state(tree, path)) as opened:
                return b"".join(opened.read_at(start, 100_000) for start in range(0, opened.size, 100_000))

        with ThreadPoolExecutor(4) as pool:
            assert list(pool.map(read, range(4))) == [
                (tree / f"ckpt_dir{rank}" / NAME).read_bytes() for rank in range(4)
            ]
