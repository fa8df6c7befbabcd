"""The place of a backup is looked at and tried before anything of the tree is read."""

import pytest

from ms_recover import api
from ms_recover.file_names import BACKUP_MARK
from ms_recover.testing.trees import make_tree, save_manifests


@pytest.fixture
def tree(tmp_path):
    tree = make_tree(tmp_path / "tree")
    save_manifests(tree)
    return tree


def copy(tree, url, **options):
    return api.copy(api.scan(tree), str(url), **options)


def test_a_backup_in_the_tree_itself_is_refused(recover_ckpt, tree, tmp_path, monkeypatch):
    (tmp_path / "link").symlink_to(tree)
    monkeypatch.chdir(tmp_path)
    for root, url in [
        (tree, tree / "backup"),
        (tree, f"file://{tree}/of/backup"),
        ("tree", "tree/backup"),
        (tree, tmp_path / "link" / "backup"),
        (f"file://{tree}", tree / "ckpt_dir0" / "backup"),
    ]:
        done = recover_ckpt("copy", root, url)
        assert (done.code, done.out) == (2, "")
        assert f"lies in {tree}" in done.err
    assert sorted(path.name for path in tree.iterdir()) == [f"ckpt_dir{rank}" for rank in range(4)]
    assert recover_ckpt("copy", tree, tmp_path / "tree2").code == 0


def test_the_target_is_tried_before_the_tree_is_looked_at(recover_ckpt, tmp_path):
    (tmp_path / "file").write_text("")
    done = recover_ckpt("copy", tmp_path / "nothing", tmp_path / "file" / "backup")
    assert done.code == 1
    assert "file" in done.err
    assert "nothing" not in done.err


def test_a_store_that_is_only_read_is_refused(recover_ckpt, tree):
    done = recover_ckpt("copy", tree, "http://127.0.0.1:9/backup")
    assert done.code in (1, 2)
    assert "127.0.0.1:9" in done.err


def test_the_trial_leaves_nothing(tree, tmp_path):
    with api.open_target(str(tmp_path / "of" / "backups"), str(tree)):
        assert list((tmp_path / "of" / "backups").iterdir()) == []
    assert not (tmp_path / "of").exists()
    (tmp_path / "mine").mkdir()
    with api.open_target(str(tmp_path / "mine"), str(tree)):
        pass
    assert list((tmp_path / "mine").iterdir()) == []


def test_what_a_killed_trial_leaves_is_no_obstacle(tree, tmp_path):
    (tmp_path / "backup").mkdir()
    (tmp_path / "backup" / ".trial.0123abcd.ms_recover.tmp").write_text("")
    copy(tree, tmp_path / "backup")
    assert (tmp_path / "backup" / BACKUP_MARK).exists()
