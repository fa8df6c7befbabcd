"""What recoveries leave behind for metrics."""

import json
import os
import threading

import pytest

from ms_recover import api
from ms_recover.errors import StorageError
from ms_recover.execution import recovery_log
from ms_recover.execution.recovery_log import log_path, note_phase, noted, read_recovery_log
from ms_recover.file_names import RECOVERY_LOG_NAME
from ms_recover.model.metrics import RecoveryLog
from ms_recover.model.options import PlanOptions
from ms_recover.model.steps import Step
from ms_recover.testing.trees import make_tree, save_manifests


@pytest.fixture
def tree(tmp_path):
    make_tree(tmp_path / "tree", steps=(Step(1, 8), Step(2, 8)))
    save_manifests(tmp_path / "tree")
    return tmp_path / "tree"


def lose(tree, rank=1, step="2_8"):
    for path in (tree / f"ckpt_dir{rank}").glob(f"*{step}*"):
        path.unlink()


def recovered(tree, **options):
    lose(tree)
    return api.apply(api.plan(api.scan(tree)), **options)


def test_a_recovery_is_counted_with_its_time(tree):
    assert read_recovery_log(str(tree)) == RecoveryLog()
    recovered(tree)
    note_phase(str(tree), "plan", 1.5)
    log = read_recovery_log(str(tree))
    assert dict(log.recoveries) == {"ok": 1, "failed": 0, "partial": 0, "interrupted": 0}
    assert dict(log.durations)["plan"] == 1.5
    assert dict(log.durations)["apply"] >= 0
    assert log.verified is None
    assert not (tree / RECOVERY_LOG_NAME).exists()


def test_a_file_in_the_root_is_the_log_of_all_users(tree, monkeypatch):
    (tree / RECOVERY_LOG_NAME).touch()
    recovered(tree)
    assert b'"ok"' in (tree / RECOVERY_LOG_NAME).read_bytes()
    monkeypatch.setenv("XDG_STATE_HOME", str(tree.parent / "other user"))
    assert dict(read_recovery_log(str(tree)).recoveries)["ok"] == 1
    assert not (tree.parent / "other user").exists()


def test_another_tree_at_the_same_path_begins_anew(tree):
    recovered(tree)
    tree.rename(tree.with_name("before"))
    make_tree(tree)
    assert read_recovery_log(str(tree)) == RecoveryLog()


def test_a_user_without_a_home_notes_nothing(tree, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", "states")
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    recovered(tree)
    assert read_recovery_log(str(tree)) == RecoveryLog()


def test_a_plan_without_actions_is_no_recovery(tree):
    api.apply(api.plan(api.scan(tree)))
    assert not os.path.exists(log_path(str(tree)))


def interrupt(tree, times=1):
    """Let recoveries begin and be interrupted."""
    lose(tree)
    plan = api.plan(api.scan(tree))
    for _ in range(times):
        with pytest.raises(KeyboardInterrupt), noted(plan):
            raise KeyboardInterrupt


def test_a_recovery_that_is_interrupted_is_counted(tree):
    interrupt(tree)
    assert dict(read_recovery_log(str(tree)).recoveries)["interrupted"] == 1


def test_one_that_is_refused_leaves_nothing(tree):
    lose(tree)
    with pytest.raises(StorageError), noted(api.plan(api.scan(tree))):
        raise StorageError("another recovery is at work")
    assert not os.path.exists(log_path(str(tree)))


def test_a_verification_is_noted_where_the_newest_step_was_found_sound(tree):
    api.verify(api.scan(tree), PlanOptions(step=Step(1, 8)))
    assert read_recovery_log(str(tree)).verified is None
    api.verify(api.scan(tree), PlanOptions(step=Step(2, 8)))
    first = read_recovery_log(str(tree)).verified
    api.verify(api.scan(tree))
    assert read_recovery_log(str(tree)).verified >= first > 1e9


def test_a_verification_that_finds_damage_is_not_noted(tree):
    path = tree / "ckpt_dir1" / "test-2_8.ckpt"
    path.chmod(0o600)
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)
    assert not api.verify(api.scan(tree)).ok
    assert read_recovery_log(str(tree)).verified is None


def test_the_log_stays_small_and_keeps_its_sums(tree, monkeypatch):
    monkeypatch.setattr(recovery_log, "_MOST_BYTES", 1000)
    interrupt(tree, 50)
    api.verify(api.scan(tree))
    log = read_recovery_log(str(tree))
    assert dict(log.recoveries)["interrupted"] == 50
    assert os.path.getsize(log_path(str(tree))) <= 1000
    assert not list(tree.glob(".*.tmp"))


def test_threads_lose_no_line_while_the_log_is_folded(tree, monkeypatch):
    monkeypatch.setattr(recovery_log, "_MOST_BYTES", 1500)
    lose(tree)
    plan = api.plan(api.scan(tree))

    def many():
        for _ in range(20):
            with pytest.raises(KeyboardInterrupt), noted(plan):
                raise KeyboardInterrupt

    threads = [threading.Thread(target=many) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert dict(read_recovery_log(str(tree)).recoveries)["interrupted"] == 80


@pytest.mark.parametrize("damage", [b"\xff\x00{", b"[]\n7\nnull\n", b'{"event": "sums", "recoveries": {"ok": "x"}}\n'])
def test_a_damaged_line_says_nothing(tree, damage):
    (tree / RECOVERY_LOG_NAME).write_bytes(damage + b"\n" + json.dumps({"event": "recovery", "result": "ok"}).encode())
    assert dict(read_recovery_log(str(tree)).recoveries)["ok"] == 1


@pytest.mark.parametrize("kind", ["link", "fifo", "folder"])
def test_what_is_no_file_is_left_alone(tree, tmp_path, kind):
    path = tree / RECOVERY_LOG_NAME
    if kind == "link":
        (tmp_path / "other").write_bytes(b"")
        path.symlink_to(tmp_path / "other")
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        path.mkdir()
    assert recovered(tree).exit_code == 0
    assert read_recovery_log(str(tree)) == RecoveryLog()
    if kind == "link":
        assert (tmp_path / "other").read_bytes() == b""
