"""A backup that holds one step of two runs: both are named, and each is shown and brought back."""

import json
import shutil

import pytest

from ms_recover.testing.trees import make_tree, save_manifests

COUNTS = {"run-a": 300, "run-b": 301}
"""Elements of a parameter, so that the runs differ."""


@pytest.fixture
def backup(tmp_path, recover_ckpt):
    """Copy step 1_8 of one run, then of another one that was started in the same folder; the second one's is newer."""
    for made, (run, count) in enumerate(COUNTS.items()):
        saved(tmp_path, run, count, manifests=True)
        copied(recover_ckpt, tmp_path, made)
    return tmp_path / "backup"


def saved(tmp_path, run, count, *, manifests):
    root = tmp_path / run
    make_tree(root, parameters={"w": count})
    if manifests:
        save_manifests(root, run)
    shutil.rmtree(tmp_path / "tree", ignore_errors=True)
    shutil.copytree(root, tmp_path / "tree")


def copied(recover_ckpt, tmp_path, made):
    """Copy the tree, and give its index a time of its own."""
    done = recover_ckpt("copy", tmp_path / "tree", tmp_path / "backup", "--json")
    assert done.code == 0, done.err
    path = tmp_path / "backup" / done.json["index"]
    path.write_text(json.dumps({**json.loads(path.read_text()), "made": 1_000 + made}))
    return path


def slices(root):
    return {path.name + path.parent.name: path.read_bytes() for path in root.glob("ckpt_dir*/*.ckpt")}


@pytest.mark.parametrize("command", ["scan", "plan"])
def test_both_runs_are_named(recover_ckpt, backup, command):
    done = recover_ckpt(command, backup)
    assert done.code == 0, done.err
    assert "step 1_8 of run run-a lies in this backup under the same paths" in done.out
    assert f"recover-ckpt plan {backup} --run run-a" in done.out
    assert "step 1_8 of run run-b lies" not in done.out


@pytest.mark.parametrize("run", COUNTS)
def test_each_run_is_planned_by_its_name(recover_ckpt, backup, run):
    done = recover_ckpt("plan", backup, "--run", run, "--json")
    assert done.code == 0, done.err
    assert (done.json["run_id"], {one["verdict"] for one in done.json["ranks"]}) == (run, {"keep"})
    other = next(one for one in COUNTS if one != run)
    (note,) = [one["reason"] for one in done.json["notes"] if "in this backup" in one["reason"]]
    assert f"--run {other}" in note


@pytest.mark.parametrize("run", COUNTS)
def test_each_run_is_brought_back(recover_ckpt, backup, tmp_path, run):
    (tmp_path / "new").mkdir()
    done = recover_ckpt("apply", tmp_path / "new", "--from", backup, "--run", run)
    assert done.code == 0, done.err
    assert slices(tmp_path / "new") == slices(tmp_path / run)


def test_the_history_is_that_of_the_named_run(recover_ckpt, backup):
    for run in COUNTS:
        done = recover_ckpt("history", backup, "--run", run)
        assert (done.code, run in done.out) == (0, True), done.out + done.err


def test_a_run_without_a_name_is_shown_by_the_path_of_its_index(recover_ckpt, tmp_path):
    """Two runs that no manifest names, under the same paths."""
    paths = []
    for made, (run, count) in enumerate(COUNTS.items()):
        saved(tmp_path, run, count, manifests=False)
        paths.append(copied(recover_ckpt, tmp_path, made))
    done = recover_ckpt("plan", tmp_path / "backup")
    assert f"recover-ckpt plan {paths[0]}" in done.out
    for path, run in zip(paths, COUNTS, strict=True):
        assert recover_ckpt("verify", path).code == 0
        assert recover_ckpt("plan", path).code == 0
        target = tmp_path / f"new-{run}"
        target.mkdir()
        assert recover_ckpt("apply", target, "--from", path).code == 0
        assert slices(target) == slices(tmp_path / run)


def test_an_index_that_is_not_there_is_named(recover_ckpt, backup):
    done = recover_ckpt("plan", backup / "steps" / "1_9-0123.json")
    assert done.code == 3
    assert "no such step in this backup; it has steps/1_8-" in done.err


def test_a_file_that_is_named_like_an_index_is_no_backup(recover_ckpt, tmp_path):
    make_tree(tmp_path / "steps" / "x.json")
    assert recover_ckpt("scan", tmp_path / "steps" / "x.json").code == 0


def test_steps_that_do_not_conflict_are_all_shown(recover_ckpt, backup, tmp_path):
    make_tree(tmp_path / "tree", parameters={"w": 5}, name="other-{step}.ckpt")
    for path in (tmp_path / "tree").rglob("test-*"):
        path.unlink()
    assert recover_ckpt("copy", tmp_path / "tree", backup).code == 0
    shown = recover_ckpt("scan", backup, "--json").json
    assert {one["path"].rpartition("/")[2] for one in shown["slices"]} == {"test-1_8.ckpt", "other-1_8.ckpt"}
