import json
import os
from dataclasses import replace

import pytest

from ms_recover.execution.journal import JOURNAL_NAME, Journal
from ms_recover.model.actions import CopyAction, FileState, Replica
from ms_recover.stores.digest import digest_file

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
