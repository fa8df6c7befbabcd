import errno
import os
import stat

import pytest

from ms_recover.errors import MissingInputError, StorageError
from ms_recover.storage.local import (
    claim_temporary,
    commit,
    explain,
    make_directory,
    read_text,
    settle,
    temporary_path,
    write_text,
)


def test_an_unfinished_temporary_file_is_removed(tmp_path):
    target = str(tmp_path / "a.ckpt")
    with pytest.raises(RuntimeError), claim_temporary(target) as temporary:
        os.write(temporary.descriptor, b"half")
        assert os.path.exists(temporary_path(target))
        raise RuntimeError
    assert os.listdir(tmp_path) == []


def test_a_committed_file_has_mode_and_times_of_its_source(tmp_path):
    source = tmp_path / "source"
    source.write_bytes(b"x" * 10)
    os.utime(source, ns=(1_000, 2_000_000_000))
    source.chmod(0o400)
    target = tmp_path / "target"
    target.write_bytes(b"old")
    target.chmod(0o400)
    with claim_temporary(str(target)) as temporary:
        os.write(temporary.descriptor, b"new")
        settle(temporary, source.stat())
        commit(temporary, str(target))
    assert target.read_bytes() == b"new"
    assert stat.S_IMODE(target.stat().st_mode) == 0o400
    assert target.stat().st_mtime_ns == 2_000_000_000
    assert sorted(os.listdir(tmp_path)) == ["source", "target"]


def test_what_a_killed_recovery_left_is_taken_over(tmp_path):
    target = str(tmp_path / "a.ckpt")
    with open(temporary_path(target), "wb") as file:
        file.write(b"left over, longer than what follows")
    os.chmod(temporary_path(target), 0o400)
    with claim_temporary(target) as temporary:
        os.write(temporary.descriptor, b"new")
        assert os.fstat(temporary.descriptor).st_size == 3


def test_two_recoveries_never_write_one_target(tmp_path):
    target = str(tmp_path / "a.ckpt")
    with claim_temporary(target), pytest.raises(StorageError, match="another recovery"), claim_temporary(target):
        pass
    assert os.listdir(tmp_path) == []


def test_directories_get_the_mode_of_their_model(tmp_path):
    like = tmp_path / "ckpt_dir1"
    like.mkdir(mode=0o750)
    like.chmod(0o750)
    make_directory(str(tmp_path / "ckpt_dir0"), str(like))
    assert stat.S_IMODE((tmp_path / "ckpt_dir0").stat().st_mode) == 0o750


@pytest.mark.parametrize(
    ("code", "advice"), [(errno.ENOSPC, "free some space"), (errno.EIO, "system log"), (errno.EROFS, "read-only")]
)
def test_system_errors_say_what_to_do(code, advice):
    with pytest.raises(StorageError, match=advice), explain("writing", "/x"):
        raise OSError(code, os.strerror(code))


def test_missing_is_missing_input():
    with pytest.raises(MissingInputError, match="/x"), explain("reading", "/x"):
        raise FileNotFoundError(errno.ENOENT, "No such file or directory")


def test_text_is_written_whole(tmp_path):
    path = str(tmp_path / "plan.json")
    write_text(path, "one")
    write_text(path, "two")
    assert read_text(path) == "two"
    assert os.listdir(tmp_path) == ["plan.json"]
    with pytest.raises(MissingInputError):
        read_text(str(tmp_path / "none"))
