import json
import os
from dataclasses import replace

import pytest

from ms_recover import api
from ms_recover.execution.journal import JOURNAL_NAME, Journal
from ms_recover.model.actions import CopyAction, FileState, Replica
from ms_recover.stores.digest import digest_file
from ms_recover.testing.trees import make_tree, save_manifests

TARGET = "ckpt_dir0/test-1_8.ckpt"


@pytest.fixture
def action():
    replica = Replica(rank=2, path="ckpt_dir2/test-1_8.ckpt", state=FileState(5, 1))
    return CopyAction(rank=0, replica=replica, target=TARGET, replaces=None, reason="lost", group=(0, 2))


@pytest.fixture
def path(tmp_path):
    path = tmp_path / TARGET
    path.parent.mkdir()
    path.write_bytes(b"bytes")
    path.with_name(f"{path.name}.manifest.json").touch()
    return path


@pytest.fixture
def finished(tmp_path, path, action):
    """Return the digest of a target that the journal knows to be finished."""
    digest = digest_file(path).file
    Journal(str(tmp_path)).finished(action, digest)
    return digest


def proven(tmp_path, action):
    return Journal(str(tmp_path)).proven_digest(action, lambda: False)


def test_a_finished_target_that_holds_its_bytes_is_proven(tmp_path, action, finished):
    assert proven(tmp_path, action) == finished
    assert proven(tmp_path, replace(action, reason="in other words")) == finished


def test_other_bytes_of_the_same_size_inode_and_time_prove_nothing(tmp_path, path, action, finished):
    times = path.stat()
    with path.open("r+b") as file:
        file.write(b"B")
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert proven(tmp_path, action) is None


def test_another_action_for_the_same_target_is_not_finished(tmp_path, action, finished):
    other = replace(action, replica=replace(action.replica, path="ckpt_dir4/test-1_8.ckpt"))
    assert proven(tmp_path, other) is None


def test_a_target_without_its_manifest_is_not_finished(tmp_path, path, action, finished):
    path.with_name(f"{path.name}.manifest.json").unlink()
    assert proven(tmp_path, action) is None


@pytest.mark.parametrize("line", [b"{cut off", b"[]", b'{"target": 7}', bytes(range(200, 250)), b"\xff", b"[" * 5000])
def test_damaged_lines_are_passed_over(line, tmp_path, action, finished):
    journal = tmp_path / JOURNAL_NAME
    journal.write_bytes(line + b"\n" + journal.read_bytes())
    assert proven(tmp_path, action) == finished


def test_a_digest_of_another_type_proves_nothing(tmp_path, action, finished):
    journal = tmp_path / JOURNAL_NAME
    journal.write_text(json.dumps({**json.loads(journal.read_text()), "digest": ["x"]}))
    assert proven(tmp_path, action) is None


def test_a_link_in_the_journals_place_is_neither_read_nor_written(tmp_path, path, action, finished):
    elsewhere = tmp_path / "elsewhere"
    (tmp_path / JOURNAL_NAME).rename(elsewhere)
    (tmp_path / JOURNAL_NAME).symlink_to(elsewhere)
    before = elsewhere.read_bytes()
    assert proven(tmp_path, action) is None
    Journal(str(tmp_path)).finished(action, finished)
    assert elsewhere.read_bytes() == before


def test_a_pipe_in_the_journals_place_is_passed_over_at_once(tmp_path, path, action):
    os.mkfifo(tmp_path / JOURNAL_NAME)
    journal = Journal(str(tmp_path))
    journal.finished(action, "xxh3_128:0")
    assert journal.proven_digest(action, lambda: False) is None


def test_it_goes_when_everything_is_done(tmp_path, action, finished):
    Journal(str(tmp_path)).close(complete=False)
    assert (tmp_path / JOURNAL_NAME).exists()
    Journal(str(tmp_path)).close(complete=True)
    assert not (tmp_path / JOURNAL_NAME).exists()


@pytest.fixture
def half_done(tmp_path):
    """A tree of which a recovery was killed when one of two lost slices had its name, its manifest and its line."""
    tree = make_tree(tmp_path / "tree", data_parallel=2, model_parallel=2)
    save_manifests(tree)
    truth = {file.path: (tree / file.path).read_bytes() for file in api.scan(tree).slices}
    for rank in (0, 1):
        for path in (tree / f"ckpt_dir{rank}").glob("test-*"):
            path.unlink()
    plan = api.plan(api.scan(tree))
    first = plan.actions[0]
    api.apply(replace(plan, actions=(first,)))
    return tree, plan, truth


def test_what_a_killed_recovery_finished_needs_no_source(half_done):
    tree, plan, truth = half_done
    first, second = plan.actions
    Journal(str(tree)).finished(first, digest_file(tree / first.target).file)
    (tree / first.source).unlink()
    told = []
    outcome = api.apply(plan, progress=told.append)
    assert [(one.status, one.source_rank, one.source) for one in outcome.results] == [
        ("already there", first.source_rank, first.source),
        ("copied", second.source_rank, second.source),
    ]
    assert outcome.exit_code == 0
    assert sum(told) == first.bytes + second.bytes
    assert all((tree / one.target).read_bytes() == truth[one.target] for one in plan.actions)
    assert not (tree / JOURNAL_NAME).exists()


def test_a_line_about_other_bytes_than_those_of_the_plan_finishes_nothing(half_done):
    """Whoever wrote it: the plan knows what the slice must hold."""
    tree, plan, truth = half_done
    first, _ = plan.actions
    path = tree / first.target
    path.chmod(0o600)
    path.write_bytes(bytes(reversed(truth[first.target])))
    status = path.stat()
    first = replace(first, replaces=FileState(status.st_size, status.st_mtime_ns))
    plan = replace(plan, actions=(first, *plan.actions[1:]))
    Journal(str(tree)).finished(first, digest_file(path).file)
    outcome = api.apply(plan)
    assert [one.status for one in outcome.results] == ["copied", "copied"]
    assert path.read_bytes() == truth[first.target]
