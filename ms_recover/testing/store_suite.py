"""The suites that every store passes, one of reading and one of writing; they need pytest.

Subclass them and give them a fixture ``store``. That of reading opens the files of a tree:

>>> class TestMyStore(StoreSuite):            # doctest: +SKIP
...     @pytest.fixture
...     def store(self, tree):
...         with MyStore(tree) as store:
...             yield store

A store that does not see changes below ``tree`` at once overrides `put` and `take_away` too.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

import pytest

from ms_recover.errors import FormatError, MissingInputError, MsRecoverError, VerificationError
from ms_recover.model.actions import FileState
from ms_recover.stores.atomic import FileForm
from ms_recover.stores.digest import digest_file
from ms_recover.stores.local import StoppedError
from ms_recover.stores.paths import join
from ms_recover.stores.store import OpenFile, Store, never
from ms_recover.testing.trees import make_tree, save_manifests

NAME = "test-1_8.ckpt"
PATH = f"ckpt_dir1/{NAME}"
EMPTY, NEW = "ckpt_dir3/test-1_4.ckpt", "ckpt_dir1/test-1_9.ckpt"
"""Files of names that slices have: an empty one, and one that is not there at first."""
OUTSIDE = ("../tree/x", "/etc/passwd", f"ckpt_dir1/../ckpt_dir1/{NAME}", f"./{PATH}", "ckpt_dir1//x", "ckpt_dir1/x\0y")
"""Paths that no store may follow."""


def fill(tree: Path) -> Path:
    """Make the tree of the suite: four ranks with manifests, and an empty slice."""
    make_tree(tree, data_parallel=2, model_parallel=2, parameters={"w": 300_000, "b": 7})
    save_manifests(tree)
    (tree / EMPTY).write_bytes(b"")
    return tree


class StoreSuite:
    """Tests of reading; a subclass overrides the fixture `store`.

    Attributes
    ----------
    keeps_times : bool
        Whether the store has the modification times of the tree, to the second at least.
    keeps_modes : bool
        Whether it has their permissions.
    """

    keeps_times: ClassVar[bool] = True
    keeps_modes: ClassVar[bool] = True

    @pytest.fixture
    def tree(self, tmp_path: Path) -> Path:
        """Return a tree of four ranks with manifests."""
        return fill(tmp_path / "tree")

    @pytest.fixture
    def store(self, tree: Path) -> Store:
        """Return the store of the tree."""
        raise NotImplementedError

    @pytest.fixture
    def data(self, tree: Path) -> bytes:
        """Return the bytes of one slice."""
        return (tree / PATH).read_bytes()

    def put(self, tree: Path, path: str, data: bytes) -> None:
        """Replace or make a file of the tree, of another modification time than before."""
        before = (tree / path).stat().st_mtime_ns if (tree / path).exists() else 0
        (tree / path).write_bytes(data)
        os.utime(tree / path, ns=(before + 5_000_000_000, before + 5_000_000_000))

    def take_away(self, tree: Path, path: str) -> None:
        """Remove a file of the tree."""
        (tree / path).unlink()

    @staticmethod
    def range_of(opened: OpenFile, start: int, end: int) -> bytes:
        """Return a range of an open file."""
        data = bytearray()
        opened.read_range(start, end, data.extend, never)
        return bytes(data)

    @staticmethod
    def use(opened: OpenFile) -> None:
        """Do what finds another file than expected at the latest."""
        opened.read_at(0, 100)
        opened.check_unchanged()

    def test_the_url_is_that_of_the_tree(self, store: Store) -> None:
        assert store.url
        assert not store.url.endswith("/")

    def test_a_folder_lists_its_names_in_order(self, store: Store, tree: Path) -> None:
        folders = [(f"ckpt_dir{rank}", "folder") for rank in range(4)]
        assert [(one.name, one.kind) for one in store.list("")] == folders
        assert [one.name for one in store.list("ckpt_dir1")] == sorted(os.listdir(tree / "ckpt_dir1"))
        assert {one.kind for one in store.list("ckpt_dir1")} == {"file"}

    def test_a_list_shows_the_states_that_stat_does(self, store: Store) -> None:
        for entry in store.list("ckpt_dir1"):
            if entry.info is not None:
                assert entry.info.state == store.stat(f"ckpt_dir1/{entry.name}").state

    def test_a_folder_that_is_not_there_holds_nothing(self, store: Store) -> None:
        try:
            assert store.list("ckpt_dir9") == []
        except MissingInputError as error:
            assert "ckpt_dir9" in str(error)  # noqa: PT017 (either is right)

    def test_stat_is_size_and_modification_time(self, store: Store, tree: Path, data: bytes) -> None:
        found, status = store.stat(PATH), (tree / PATH).stat()
        assert found.size == len(data)
        assert found.state == FileState(found.size, found.mtime_ns)
        assert store.stat(PATH) == found
        if self.keeps_times:
            assert found.mtime_ns // 10**9 == status.st_mtime_ns // 10**9
        assert found.digest in (None, digest_file(tree / PATH).file)

    def test_a_path_without_file_is_missing_input(self, store: Store) -> None:
        with pytest.raises(MissingInputError, match="ckpt_dir9"):
            store.stat(f"ckpt_dir9/{NAME}")
        with pytest.raises(MissingInputError, match="ckpt_dir9"), store.open(f"ckpt_dir9/{NAME}") as opened:
            opened.read_at(0, 1)
        with pytest.raises(MissingInputError, match=r"none\.json"):
            store.read_small("ckpt_dir1/none.json", "a manifest", 1000)

    def test_a_folder_is_no_file(self, store: Store) -> None:
        with pytest.raises((FormatError, MissingInputError)):
            store.stat("ckpt_dir1")
        with pytest.raises((FormatError, MissingInputError)), store.open("ckpt_dir1") as opened:
            opened.read_at(0, 1)

    @pytest.mark.parametrize("path", OUTSIDE)
    def test_paths_out_of_the_tree_are_refused(self, store: Store, path: str) -> None:
        for act in (store.list, store.stat, store.open):
            with pytest.raises(MsRecoverError):
                act(path)

    def test_a_small_file_is_read_whole(self, store: Store, tree: Path) -> None:
        manifest = (tree / f"{PATH}.manifest.json").read_bytes()
        assert store.read_small(f"{PATH}.manifest.json", "a manifest", len(manifest)) == manifest
        assert store.read_small(EMPTY, "a file", 5) == b""
        with pytest.raises(FormatError, match="a manifest never has more than 10"):
            store.read_small(f"{PATH}.manifest.json", "a manifest", 10)

    def test_any_range_gives_its_bytes_in_order(self, store: Store, data: bytes) -> None:
        size = len(data)
        with store.open(PATH, store.stat(PATH).state) as opened:
            assert opened.size == size
            assert opened.name.endswith(PATH)
            for start, end in ((0, size), (0, 1), (size - 1, size), (1000, 70_000), (5, 5), (size, size)):
                assert self.range_of(opened, start, end) == data[start:end]

    def test_reads_at_any_offset_give_the_bytes_there(self, store: Store, data: bytes) -> None:
        size = len(data)
        with store.open(PATH) as opened:
            for offset in (0, 100, 99, size // 2, size // 2 + 70_000, 7, size - 3):
                assert opened.read_at(offset, 1000) == data[offset : offset + 1000]
            assert opened.read_at(0, 2 * size) == data
            assert opened.read(size, memoryview(bytearray(9))) == 0

    def test_an_empty_file_has_no_bytes(self, store: Store, tree: Path) -> None:
        with store.open(EMPTY) as opened:
            assert opened.size == 0
            assert opened.read_at(0, 100) == b""
            assert opened.digest(never) == digest_file(tree / EMPTY).file

    def test_the_digest_is_that_of_the_whole_file(self, store: Store, tree: Path) -> None:
        with store.open(PATH, store.stat(PATH).state) as opened:
            assert opened.digest(never) == digest_file(tree / PATH).file

    def test_a_copy_holds_every_byte(self, store: Store, tree: Path, data: bytes, tmp_path: Path) -> None:
        counts: list[int] = []
        with (tmp_path / "copy").open("wb") as file, store.open(PATH, store.stat(PATH).state) as opened:
            copied = opened.copy_to(file.fileno(), never, counts.append)
        assert copied == (len(data), digest_file(tree / PATH).file)
        assert (tmp_path / "copy").read_bytes() == data
        assert sum(counts) == len(data)

    def test_copying_stops_when_asked(self, store: Store, tmp_path: Path) -> None:
        with (tmp_path / "copy").open("wb") as file, store.open(PATH) as opened, pytest.raises(StoppedError):
            opened.copy_to(file.fileno(), lambda: True, lambda count: None)

    def test_the_form_is_permissions_and_time(self, store: Store, tree: Path) -> None:
        (tree / PATH).chmod(0o440)
        found = store.stat(PATH)
        with store.open(PATH, found.state) as opened:
            form = opened.form()
        assert form.mtime_ns == found.mtime_ns
        assert 0 < form.mode <= 0o777
        if self.keeps_modes:
            assert form.mode == 0o440

    def test_a_file_that_is_not_as_expected_is_refused(self, store: Store) -> None:
        now = store.stat(PATH).state
        for other in (FileState(now.bytes, now.mtime_ns + 10**10), FileState(now.bytes - 1, now.mtime_ns)):
            with pytest.raises(VerificationError), store.open(PATH, other) as opened:
                self.use(opened)

    def test_a_file_that_changed_after_it_was_opened_is_refused(self, store: Store, tree: Path, data: bytes) -> None:
        with store.open(PATH) as opened:
            assert opened.read_at(0, 10) == data[:10]
            opened.check_unchanged()
            self.put(tree, PATH, bytes(len(data)))
            with pytest.raises(VerificationError):
                opened.check_unchanged()

    def test_a_changed_file_is_another_one(self, store: Store, tree: Path, data: bytes) -> None:
        before = store.stat(PATH)
        self.put(tree, PATH, data + b"more")
        after = store.stat(PATH)
        assert after.state != before.state
        with pytest.raises(VerificationError), store.open(PATH, before.state) as opened:
            self.use(opened)
        with store.open(PATH, after.state) as opened:
            assert opened.read_at(0, opened.size) == data + b"more"

    def test_a_new_file_is_listed(self, store: Store, tree: Path) -> None:
        folder, _, name = NEW.rpartition("/")
        assert name not in [one.name for one in store.list(folder)]
        self.put(tree, NEW, b"new")
        assert name in [one.name for one in store.list(folder)]

    def test_a_file_that_vanished_is_an_error(self, store: Store, tree: Path) -> None:
        state = store.stat(PATH).state
        self.take_away(tree, PATH)
        with pytest.raises(MsRecoverError), store.open(PATH, state) as opened:
            self.use(opened)

    def test_several_files_are_read_at_the_same_time(self, store: Store, tree: Path) -> None:
        def read(rank: int) -> bytes:
            path = f"ckpt_dir{rank}/{NAME}"
            with store.open(path, store.stat(path).state) as opened:
                return b"".join(opened.read_at(start, 100_000) for start in range(0, opened.size, 100_000))

        with ThreadPoolExecutor(4) as pool:
            assert list(pool.map(read, range(4))) == [
                (tree / f"ckpt_dir{rank}" / NAME).read_bytes() for rank in range(4)
            ]

    def test_nothing_is_left_open(self, store: Store) -> None:
        def read() -> int:
            for _ in range(3):
                with store.open(PATH) as opened:
                    opened.read_at(0, 10)
            return len(os.listdir("/proc/self/fd"))

        read()  # connections that are kept
        assert read() <= read()


class StoreWritingSuite:
    """Tests of writing; a subclass overrides the fixture `store` with that of an empty tree."""

    keeps_times: ClassVar[bool] = True
    large: ClassVar[int] = 20 << 20
    """Bytes of a file that the store writes in several parts."""

    @pytest.fixture
    def store(self, tmp_path: Path) -> Store:
        """Return the store of an empty tree that can be written."""
        raise NotImplementedError

    @staticmethod
    def write(store: Store, path: str, *pieces: bytes) -> None:
        """Write a file of some pieces."""
        with store.create(path) as file:
            for piece in pieces:
                file.write(piece)
            file.commit()

    @staticmethod
    def read(store: Store, path: str) -> bytes:
        """Return the bytes of a file."""
        with store.open(path) as opened:
            return opened.read_at(0, opened.size)

    @staticmethod
    def files(store: Store, folder: str = "") -> list[str]:
        """Return the paths of all files in and below a folder, sorted."""
        found: list[str] = []
        for one in store.list(folder):
            path = join(folder, one.name)
            found += StoreWritingSuite.files(store, path) if one.kind == "folder" else [path]
        return sorted(found)

    def test_a_file_has_the_bytes_that_were_written(self, store: Store) -> None:
        self.write(store, "a/b/slice.ckpt", b"one", b"", b"two")
        assert self.read(store, "a/b/slice.ckpt") == b"onetwo"
        assert store.stat("a/b/slice.ckpt").size == 6
        assert self.files(store) == ["a/b/slice.ckpt"]

    def test_an_empty_file_is_written(self, store: Store) -> None:
        self.write(store, "empty")
        assert self.read(store, "empty") == b""

    def test_a_large_file_is_written(self, store: Store) -> None:
        piece = bytes(range(256)) * 4096
        with store.create("large.bin") as file:
            for _ in range(self.large // len(piece)):
                file.write(memoryview(piece))
            file.write(b"end")
            file.commit()
        with store.open("large.bin") as opened:
            assert opened.size == self.large // len(piece) * len(piece) + 3
            assert opened.read_at(opened.size - 5, 5) == piece[-2:] + b"end"
            assert opened.read_at(len(piece) - 3, 7) == piece[-3:] + piece[:4]

    def test_memory_that_is_used_again_does_not_change_what_was_written(self, store: Store) -> None:
        buffer = bytearray(b"first")
        with store.create("a.bin") as file:
            file.write(memoryview(buffer))
            buffer[:] = b"other"
            file.write(memoryview(buffer))
            file.commit()
        assert self.read(store, "a.bin") == b"firstother"

    def test_nothing_has_the_name_before_the_commit(self, store: Store) -> None:
        with store.create("a.bin") as file:
            file.write(b"half")
            with pytest.raises(MissingInputError):
                store.stat("a.bin")
            file.commit()
        assert self.read(store, "a.bin") == b"half"

    def test_a_file_without_commit_leaves_nothing(self, store: Store) -> None:
        with store.create("a/a.bin") as file:
            file.write(b"half")
        with suppress(ZeroDivisionError), store.create("a/b.bin") as file:
            file.write(b"half")
            raise ZeroDivisionError
        self.write(store, "other", b"x")
        assert self.files(store) == ["other"]

    def test_a_file_is_replaced_by_the_commit_alone(self, store: Store) -> None:
        self.write(store, "a.bin", b"old")
        with store.create("a.bin") as file:
            file.write(b"half of the new")
            assert self.read(store, "a.bin") == b"old"
        assert self.read(store, "a.bin") == b"old"
        self.write(store, "a.bin", b"the new")
        assert self.read(store, "a.bin") == b"the new"
        assert self.files(store) == ["a.bin"]

    def test_a_file_is_removed_or_gets_other_names(self, store: Store) -> None:
        self.write(store, "a.bin", b"a")
        self.write(store, "b.bin", b"b")
        store.remove("a.bin")
        store.remove("a.bin")
        assert self.files(store) == ["b.bin"]
        store.link("b.bin", "c.bin")
        self.write(store, "b.bin", b"new")
        store.rename("b.bin", "d.bin")
        assert {path: self.read(store, path) for path in self.files(store)} == {"c.bin": b"b", "d.bin": b"new"}

    @pytest.mark.parametrize(
        "name", ["a b.bin", "ä ö.bin", "a#b?c&d=e.bin", "100%.bin", "a%2Fb.bin", "+.bin", "x[1]*.bin"]
    )
    def test_names_stay_as_they_are(self, store: Store, name: str) -> None:
        self.write(store, f"folder/{name}", name.encode())
        assert [one.name for one in store.list("folder")] == [name]
        assert self.read(store, f"folder/{name}") == name.encode()
        store.remove(f"folder/{name}")
        with pytest.raises(MissingInputError):
            store.stat(f"folder/{name}")

    @pytest.mark.parametrize("path", OUTSIDE)
    def test_nothing_is_written_out_of_the_tree(self, store: Store, path: str) -> None:
        with pytest.raises(MsRecoverError):
            self.write(store, path, b"x")
        with pytest.raises(MsRecoverError):
            store.remove(path)

    def test_several_files_are_written_at_the_same_time(self, store: Store) -> None:
        contents = {f"folder{number % 3}/{number}.bin": bytes([number]) * 100_000 for number in range(12)}
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda path: self.write(store, path, contents[path]), contents))
        assert {path: self.read(store, path) for path in self.files(store)} == contents

    def test_the_time_of_the_source_is_kept_where_it_can_be(self, store: Store) -> None:
        with store.create("a.bin") as file:
            file.write(b"x")
            file.commit(FileForm(0o640, 1_600_000_000_000_000_000))
        found = store.stat("a.bin").mtime_ns
        if self.keeps_times:
            assert found // 10**9 == 1_600_000_000
