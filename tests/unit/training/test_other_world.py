"""Slices of other ranks are set aside as a whole, and at every moment one whole tree is there."""

import os
import re
import shutil
import tempfile

import numpy as np
import pytest

from ms_recover import api
from ms_recover.errors import MissingInputError, StorageError
from ms_recover.model.options import ScanOptions
from ms_recover.training import other_world as module
from ms_recover.training.other_world import aside_roots, move_world, set_other_world_aside
from ms_recover.training.run import OtherWorld, Runs
from tests.support.cuts import CutTensor, cut_layout, make_cut_tree
from tests.support.ranks import on_all, thread_jobs

LAYOUT = cut_layout("weight", (2, 2), (0,))
TENSORS = {"weight": CutTensor("Float32", np.arange(8, dtype=np.float32), LAYOUT)}


@pytest.fixture
def tree(tmp_path):
    root = make_cut_tree(tmp_path / "tree", TENSORS, 4, manifests=True)
    (root / "ckpt_dir0" / "train.log0").write_text("stays")
    return root


def files(root):
    """Return the contents of everything but what the program itself keeps, by path."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in root.rglob("*")
        if path.is_file()
        and not path.name.startswith("train.log")
        and "resharded_from" not in path.relative_to(root).parts
    }


def other(root, **options):
    return OtherWorld(root=str(root), scanning=ScanOptions(), ranks=4, **options)


def scanned(root):
    return api.scan(root, ScanOptions(may_be_empty=True))


def test_all_goes_and_is_a_tree_like_before(tree):
    before, inode = files(tree), os.stat(tree / "ckpt_dir2" / "test-1_8.ckpt").st_ino
    made = move_world(scanned(tree))
    assert aside_roots(str(tree)) == [made] == [str(tree / "resharded_from" / "4_ranks_1_8")]
    assert files(tree) == {}
    assert files(type(tree)(made)) == before
    assert os.stat(f"{made}/ckpt_dir2/test-1_8.ckpt").st_ino == inode
    assert (tree / "ckpt_dir0" / "train.log0").read_text() == "stays"
    assert {check.status for check in api.verify(api.scan(made)).checks} == {"sound"}
    assert scanned(tree).slices == ()


@pytest.mark.parametrize("name", ["link", "rename", "unlink", "copy2"])
def test_killed_at_any_moment_one_tree_is_whole_and_the_next_start_ends_it(tree, monkeypatch, name):
    """Each call that changes the tree is the last one once."""
    owner = module.shutil if name == "copy2" else os
    real, whole = getattr(owner, name), files(tree)
    for moment in range(100):
        left = [moment]

        def killed(*arguments, left=left, **options):
            if not left[0]:
                raise KeyboardInterrupt
            left[0] -= 1
            return real(*arguments, **options)

        with monkeypatch.context() as patch:
            patch.setattr(owner, name, killed)
            try:
                move_world(scanned(tree))
            except KeyboardInterrupt:
                ended = False
            else:
                ended = True
        trees = [tree, *map(type(tree), aside_roots(str(tree)))]
        assert any(files(one) == whole for one in trees), moment
        module._act(other(tree))
        assert files(tree) == {}, moment
        assert [files(one) == whole for one in map(type(tree), aside_roots(str(tree)))].count(True) == 1
        assert not list(tree.rglob("*.tmp"))
        if ended:
            assert moment > 0
            return
        shutil.rmtree(tree)
        make_cut_tree(tree, TENSORS, 4, manifests=True)
        whole = files(tree)
    raise AssertionError("it never ended")


def elsewhere(tree, tmp_path):
    """Move a rank's directory to another file system, to which no hard link leads."""
    if not os.access("/dev/shm", os.W_OK) or os.stat("/dev/shm").st_dev == os.stat(tmp_path).st_dev:
        pytest.skip("there is one file system only")
    folder = tempfile.mkdtemp(dir="/dev/shm")
    shutil.move(tree / "ckpt_dir1", f"{folder}/ckpt_dir1")
    (tree / "ckpt_dir1").symlink_to(f"{folder}/ckpt_dir1")
    return folder


def test_where_no_hard_link_can_be_made_slices_are_copied(tree, tmp_path, caplog):
    before, folder = files(tree), elsewhere(tree, tmp_path)
    try:
        old = os.stat(tree / "ckpt_dir1" / "test-1_8.ckpt")
        made = move_world(scanned(tree))
        assert files(type(tree)(made)) == before
        assert not list(type(tree)(folder).rglob("test-*"))
        new = os.stat(f"{made}/ckpt_dir1/test-1_8.ckpt")
        assert (new.st_mode, new.st_mtime_ns, new.st_uid) == (old.st_mode, old.st_mtime_ns, old.st_uid)
        assert {check.status for check in api.verify(api.scan(made)).checks} == {"sound"}
        assert "makes no hard link (Invalid cross-device link): up to" in caplog.text
    finally:
        shutil.rmtree(folder)


def test_killed_between_copies_and_removal_the_next_start_makes_no_others(tree, tmp_path, monkeypatch):
    """The slice in place and its copy are two files with the same bytes."""

    def killed(path):
        raise KeyboardInterrupt

    before, folder = files(tree), elsewhere(tree, tmp_path)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(os, "unlink", killed)
            with pytest.raises(KeyboardInterrupt):
                move_world(scanned(tree))
        assert move_world(scanned(tree)) is None
        [made] = aside_roots(str(tree))
        assert files(type(tree)(made)) == before
        assert scanned(tree).slices == ()
    finally:
        shutil.rmtree(folder)


def test_without_room_for_copies_it_is_said_and_nothing_changes(tree, tmp_path):
    """The slice that no link can be made of is larger than any disk, and a hole but for its header."""
    folder = elsewhere(tree, tmp_path)
    try:
        path = tree / "ckpt_dir1" / "test-1_8.ckpt"
        path.chmod(0o600)
        os.truncate(path, 1 << 43)
        inventory, before = scanned(tree), sorted(tree.rglob("*"))
        with pytest.raises(StorageError, match=r"no hard link .* copies take.* save to another directory"):
            move_world(inventory)
        assert sorted(path for path in tree.rglob("*") if path.name != "resharded_from") == before
        assert aside_roots(str(tree)) == []
    finally:
        shutil.rmtree(folder)


@pytest.mark.parametrize("shared", [True, False])
def test_ranks_do_it_together_whether_they_share_a_file_system_or_not(tree, tmp_path, shared):
    roots = [tree, tree] if shared else [tree, shutil.copytree(tree, tmp_path / "other" / "tree")]
    compiled = {str(tree / "ckpt_dir0" / "strategy.ckpt"): b"compiled"}
    jobs = thread_jobs(2)

    def work(rank):
        runs = Runs(other_world=other(roots[rank], files=compiled if rank == 0 else {}))
        set_other_world_aside(jobs[rank], f"{roots[rank]}/ckpt_dir{rank}", runs)
        return runs.other_world

    assert on_all(2, work) == [None, None]
    for root in roots:
        assert len(aside_roots(str(root))) == 1
        assert scanned(root).slices == ()
    assert (tree / "ckpt_dir0" / "strategy.ckpt").read_bytes() == b"compiled"


def test_a_training_that_saves_elsewhere_leaves_the_tree(tree, tmp_path, caplog):
    before = files(tree)
    runs, jobs = Runs(other_world=other(tree)), thread_jobs(1)
    set_other_world_aside(jobs[0], str(tmp_path / "elsewhere" / "ckpt_dir0"), runs)
    assert files(tree) == before
    assert "name where they are saved when this training is resumed" in caplog.text


def test_what_is_left_in_place_names_the_tree_that_was_set_aside(tree):
    made = move_world(scanned(tree))
    (tree / "ckpt_dir0" / "group_info.pb").write_bytes(b"\x12\x02\x08\x00\n\x00")
    inventory = api.scan(tree)
    assert [note.path for note in inventory.notes if "other ranks" in note.reason] == ["resharded_from/4_ranks_1_8"]
    with pytest.raises(MissingInputError, match=re.escape(f"a tree of its own: recover-ckpt plan {made}")):
        api.plan(inventory)
