"""Scanning a distant tree: the inventory of a local one, by few requests, and nothing that a server invents."""

import os
import shutil
from dataclasses import replace

import pytest

from ms_recover import api
from ms_recover.errors import MissingInputError, PermissionDeniedError, StorageError
from ms_recover.execution.manifests import make_manifest, write_manifest
from ms_recover.formats.shard_metadata import encode_metadata
from ms_recover.model.inventory import Inventory
from ms_recover.model.options import ScanOptions
from ms_recover.model.steps import Step
from ms_recover.scanning import tree as trees
from ms_recover.scanning.read import Reading, read_store
from ms_recover.scanning.scan import scan_store
from ms_recover.stores.store import Entry, FileInfo
from ms_recover.testing.store_suite import StoreSuite
from ms_recover.testing.trees import make_tree, save_manifests
from tests.support.distant import DistantStore
from tests.support.iterations import Job, write_job

NAME = "test-1_8.ckpt"


def comparable(inventory: Inventory) -> Inventory:
    """Return an inventory without what only local trees have, and metadata as text."""
    slices = tuple(replace(file, inode=None, crc=None) for file in inventory.slices)
    iterations = tuple(
        replace(one, metadata=replace(one.metadata, value=b"".join(encode_metadata(one.metadata.value))))
        for one in inventory.iterations
    )
    return replace(inventory, root="", slices=slices, iterations=iterations, crc_later=False)


class TestTheStoreOfTheseTests(StoreSuite):
    keeps_modes = False

    @pytest.fixture
    def store(self, tree):
        return DistantStore(tree)


@pytest.fixture
def tree(tmp_path):
    return make_tree(tmp_path / "tree", steps=[Step(1, 8), Step(2, 8)])


@pytest.mark.parametrize("infos", [True, False])
def test_a_distant_tree_gives_the_inventory_of_a_local_one(infos, fixture_tree):
    folder = fixture_tree("dp2_mp4")
    assert comparable(scan_store(DistantStore(folder, infos=infos))) == comparable(api.scan(folder))


def test_a_distant_tree_of_iterations_gives_the_inventory_of_a_local_one(tmp_path):
    folder = write_job(tmp_path / "job", Job(data_parallel=2, model_parallel=2), iterations=(100, 200))
    local = api.scan(folder)
    assert len(local.iterations) == 2
    assert local.tracker is not None
    assert comparable(scan_store(DistantStore(folder))) == comparable(local)


def test_by_pattern_too(tmp_path):
    folder = make_tree(tmp_path / "t", directory="n{rank}", name="own-{step}.ckpt")
    options = ScanOptions(pattern="n{rank}/{prefix}-{epoch}_{step}.ckpt")
    assert comparable(scan_store(DistantStore(folder), options)) == comparable(api.scan(folder, options))


def test_each_folder_is_listed_once_and_a_small_slice_is_one_read(tree):
    store = DistantStore(tree)
    found = scan_store(store)
    assert len(found.slices) == 8
    assert sorted(store.of("list")) == ["", "ckpt_dir0", "ckpt_dir1", "ckpt_dir2", "ckpt_dir3"]
    assert sorted(path for path in store.of("read") if path.endswith(".ckpt")) == sorted(
        file.path for file in found.slices
    )
    assert store.of("stat") == []
    assert not any(path.endswith(".manifest.json") for path in store.of("open"))


def test_a_manifest_takes_the_place_of_the_header(tree):
    save_manifests(tree)
    store = DistantStore(tree)
    found = scan_store(store)
    assert comparable(found) == comparable(api.scan(tree))
    assert not any(path.endswith(".ckpt") for path in store.of("open"))
    assert len({id(file.parameters) for file in found.slices}) == 1


def spoil(tree, how):
    """Make the manifest of a slice one that cannot take the place of its header, and return the slice's path."""
    path, beside = tree / "ckpt_dir1" / NAME, tree / "ckpt_dir1" / f"{NAME}.manifest.json"
    if how == "older":
        os.utime(beside, ns=(1, path.stat().st_mtime_ns - 10**9))
    elif how == "size":
        path.chmod(0o600)
        path.write_bytes(path.read_bytes()[:-1])
    elif how == "rank":
        beside.write_bytes((tree / "ckpt_dir0" / beside.name).read_bytes())
    else:
        beside.write_bytes(b"{")
    return f"ckpt_dir1/{NAME}"


@pytest.mark.parametrize("how", ["older", "size", "rank", "damaged"])
def test_a_manifest_that_does_not_fit_leaves_the_header_to_be_read(how, tree):
    save_manifests(tree)
    path = spoil(tree, how)
    store = DistantStore(tree)
    assert comparable(scan_store(store)) == comparable(api.scan(tree))
    assert [one for one in store.of("open") if one.endswith(".ckpt")] == [path]


def test_a_digest_that_the_store_knows_must_be_that_of_the_manifest(tree):
    save_manifests(tree)

    class Knowing(DistantStore):
        @staticmethod
        def _without_inode(info):
            return FileInfo(size=info.size, mtime_ns=info.mtime_ns, digest=f"xxh3_128:{'0' * 32}")

    store = Knowing(tree)
    scan_store(store)
    assert len([path for path in store.of("open") if path.endswith(".ckpt")]) == 8


def test_headers_of_large_slices_take_little_of_them(tmp_path):
    tree = make_tree(
        tmp_path / "t", data_parallel=1, model_parallel=1, parameters={f"l{n}": 1_000_000 for n in range(5)}
    )
    store = DistantStore(tree)
    total = sum(file.size for file in scan_store(store).slices)
    assert total > 20_000_000
    assert store.bytes < total / 50
    assert len(store.of("read")) < 20


def test_crcs_are_checked_when_slices_are_read(tmp_path):
    tree = make_tree(tmp_path / "t", crc=True)
    bad = tree / "ckpt_dir1" / NAME
    bad.chmod(0o600)
    data = bytearray(bad.read_bytes())
    data[200] ^= 1
    bad.write_bytes(data)
    store = DistantStore(tree)
    found = scan_store(store)
    assert found.crc_later
    assert [file.problem for file in found.slices] == [None] * 4
    assert [(note.path, note.reason) for note in found.notes] == [
        (
            f"ckpt_dir0/{NAME}",
            "and 3 more have CRCs, which are checked when slices are read whole, not by a scan of a distant tree",
        )
    ]
    contents = read_store(store, found.slices, Reading(crc=found.crc_later))
    assert list(contents.problems) == [f"ckpt_dir1/{NAME}"]
    assert contents.problems[f"ckpt_dir1/{NAME}"] == api.scan(tree).slices[1].problem
    assert not scan_store(store, ScanOptions(crc=False)).crc_later


def test_contents_are_those_of_a_local_tree(tree):
    files = api.scan(tree).slices
    assert read_store(DistantStore(tree), files) == read_store(DistantStore(tree).local, files)


def test_a_store_that_digests_where_the_bytes_are_is_asked(tree):
    class Digesting(DistantStore):
        def digests(self, files, progress):
            return read_store(self.local, files, Reading(progress=progress))

    store, files, counts = Digesting(tree), api.scan(tree).slices, []
    assert read_store(store, files, Reading(progress=counts.append)) == read_store(store.local, files)
    assert sum(counts) == sum(file.size for file in files)
    assert store.requests == []


def test_a_slice_that_changes_while_it_is_read_is_a_problem(tree):
    files = api.scan(tree).slices
    os.utime(tree / "ckpt_dir0" / NAME, ns=(5, 5))
    found = read_store(DistantStore(tree), files)
    assert "changes while it is read" in found.problems[f"ckpt_dir0/{NAME}"]
    assert len(found.digests) == 7


# --- servers that fail or lie ---------------------------------------------------------------------------------------


def test_a_root_where_nothing_lies_is_missing(tmp_path):
    with pytest.raises(MissingInputError, match="distant://tree: nothing lies there; check the URL"):
        scan_store(DistantStore(tmp_path / "none"))


@pytest.mark.parametrize("path", ["", "ckpt_dir1", f"ckpt_dir1/{NAME}", "ckpt_dir1/group_info.pb"])
def test_a_store_that_fails_ends_the_scan(path, tree):
    with pytest.raises(StorageError, match="no answer"):
        scan_store(DistantStore(tree, fails={path: StorageError(f"distant://tree/{path}: no answer")}))


def test_a_store_that_fails_ends_the_reading(tree):
    files = api.scan(tree).slices
    fails = {f"ckpt_dir1/{NAME}": StorageError("distant://tree: no answer")}
    with pytest.raises(StorageError, match="no answer"):
        read_store(DistantStore(tree, fails=fails), files)


def test_what_this_user_may_not_read_is_named(tree):
    fails = {
        f"ckpt_dir1/{NAME}": PermissionDeniedError("403"),
        "ckpt_dir2": PermissionDeniedError("403"),
    }
    found = scan_store(DistantStore(tree, fails=fails))
    denied = {file.path for file in found.slices if file.denied}
    assert denied == {f"ckpt_dir1/{NAME}"}
    assert [rank for rank, _ in found.denied] == [2]


def test_a_root_that_this_user_may_not_list_is_an_error(tree):
    with pytest.raises(PermissionDeniedError, match="403"):
        scan_store(DistantStore(tree, fails={"": PermissionDeniedError("distant://tree: 403")}))


def file(name):
    return Entry(name, "file", FileInfo(size=5, mtime_ns=5))


def test_doubles_with_manifests_are_found_without_reading_them(tree):
    shutil.copy2(tree / "ckpt_dir0" / NAME, tree / "ckpt_dir0" / "test_1-1_8.ckpt")
    other = bytearray((tree / "ckpt_dir1" / NAME).read_bytes())
    other[-1] ^= 1
    (tree / "ckpt_dir1" / "test_1-1_8.ckpt").write_bytes(other)
    shutil.copytree(tree, tree.parent / "bare")
    for file in api.scan(tree.parent / "bare").slices:
        path = str(tree / file.path)
        write_manifest(path, make_manifest(path, file.rank, file.step, 4, (file.rank,), "run-1"))
    write_manifest(
        str(tree / "ckpt_dir0" / "test_1-1_8.ckpt"),
        make_manifest(str(tree / "ckpt_dir0" / "test_1-1_8.ckpt"), 0, Step(1, 8), 4, (0,), "run-1"),
    )
    store = DistantStore(tree)
    found = scan_store(store)
    assert len(found.slices) == 9
    assert comparable(found) == comparable(api.scan(tree))
    assert not any(path.endswith(".ckpt") for path in store.of("open"))
    assert comparable(scan_store(DistantStore(tree.parent / "bare"))) == comparable(api.scan(tree.parent / "bare"))


@pytest.mark.parametrize("name", ["..", ".", "", "a/b", "/etc/passwd", "../ckpt_dir0", "a\0b"])
@pytest.mark.parametrize("folder", ["", "ckpt_dir1"])
def test_names_that_are_none_are_refused(name, folder, tree):
    store = DistantStore(tree, lists={folder: [*DistantStore(tree).list(folder), file(name)]})
    with pytest.raises(StorageError, match="is no name of a file"):
        scan_store(store)


def test_a_name_that_is_listed_twice_is_refused(tree):
    store = DistantStore(tree, lists={"ckpt_dir1": [file(NAME), file("x"), file(NAME)]})
    with pytest.raises(StorageError, match=f"distant://tree/ckpt_dir1 lists '{NAME}' twice"):
        scan_store(store)


def test_lists_without_end_are_refused(tree, monkeypatch):
    monkeypatch.setattr(trees, "MOST_NAMES", 1000)
    store = DistantStore(tree, lists={"ckpt_dir1": [file(f"{number}.ckpt") for number in range(1001)]})
    with pytest.raises(StorageError, match="more than 1,000 names"):
        scan_store(store)


def test_folders_in_folders_without_end_are_not_followed():
    class Endless(DistantStore):
        def list(self, folder):
            self.asked("list", folder)
            return [Entry("ckpt_dir0", "folder"), Entry("checkpoint", "folder"), Entry("output", "folder")]

    store = Endless("/nowhere")
    with pytest.raises(StorageError, match="in more than 32 folders"):
        scan_store(store)
    assert len(store.requests) < 1000


def test_links_are_followed_only_where_nothing_else_is_found(tree):
    own = DistantStore(tree).list("")
    store = DistantStore(tree, lists={"": [Entry("checkpoint", "link"), *own]})
    found = scan_store(store)
    assert len(found.slices) == 8
    assert "a link, which is not followed beside other slices" in {n.path: n.reason for n in found.notes}["checkpoint"]
    os.rename(tree, tree.parent / "checkpoint")
    store = DistantStore(tree.parent, lists={"": [Entry("checkpoint", "link")]})
    assert len(scan_store(store).slices) == 8


def test_a_name_that_only_looks_like_a_rank_is_not_listed(tree):
    (tree / "ckpt_dir9").write_bytes(b"")
    store = DistantStore(tree)
    found = scan_store(store)
    assert "ckpt_dir9" not in store.of("list")
    assert any(note.path == "ckpt_dir9" and "it is none" in note.reason for note in found.notes)


def test_a_slice_that_vanishes_between_list_and_read_is_none(tree):
    gone = [*DistantStore(tree).list("ckpt_dir1"), file("test-3_8.ckpt")]
    found = scan_store(DistantStore(tree, lists={"ckpt_dir1": gone}))
    assert len(found.slices) == 8


def test_files_named_by_options_are_local_or_below_the_root(tree, tmp_path, monkeypatch):
    (tree / "lists").mkdir()
    data = (tree / "ckpt_dir0" / "group_info.pb").read_bytes()
    (tree / "lists" / "group_info_0.pb").write_bytes(data)
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "g0.pb").write_bytes(data)
    monkeypatch.chdir(tmp_path / "here")
    options = ScanOptions(group_info=("lists/group_info_{rank}.pb", "g{rank}.pb", str(tmp_path / "here" / "g0.pb")))
    found = scan_store(DistantStore(tree), options)
    paths = [one.path for one in found.group_files if one.place is None]
    assert paths == sorted([f"{tmp_path}/here/g0.pb", f"{tmp_path}/here/g0.pb", "lists/group_info_0.pb"])
    with pytest.raises(MissingInputError, match="no such file"):
        scan_store(DistantStore(tree), ScanOptions(group_info=("none_{rank}.pb",)))
