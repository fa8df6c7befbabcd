import errno
import fcntl
import os
import stat

import pytest

from ms_recover.errors import MissingInputError, StorageError
from ms_recover.stores.atomic import (
    AtomicFile,
    FileForm,
    remove_unlocked,
    temporary_path,
    write_small,
)
from tests.support.faults import Faults


def test_an_unfinished_temporary_file_is_removed(tmp_path):
    target = str(tmp_path / "a.ckpt")
    with pytest.raises(RuntimeError), AtomicFile(target) as file:
        os.write(file.descriptor, b"half")
        assert os.path.exists(temporary_path(target))
        raise RuntimeError
    assert os.listdir(tmp_path) == []


def test_a_committed_file_has_the_mode_and_time_of_its_form(tmp_path):
    target = tmp_path / "target"
    target.write_bytes(b"old")
    target.chmod(0o400)
    with AtomicFile(str(target)) as file:
        os.write(file.descriptor, b"new")
        file.settle(FileForm(0o400, 2_000_000_000))
        file.commit()
    assert target.read_bytes() == b"new"
    assert stat.S_IMODE(target.stat().st_mode) == 0o400
    assert target.stat().st_mtime_ns == 2_000_000_000
    assert sorted(os.listdir(tmp_path)) == ["target"]


def test_what_a_killed_recovery_left_is_taken_over(tmp_path):
    target = str(tmp_path / "a.ckpt")
    with open(temporary_path(target), "wb") as stale:
        stale.write(b"left over, longer than what follows")
    os.chmod(temporary_path(target), 0o400)
    with AtomicFile(target) as file:
        os.write(file.descriptor, b"new")
        assert os.fstat(file.descriptor).st_size == 3


def test_two_recoveries_never_write_one_target(tmp_path):
    target = str(tmp_path / "a.ckpt")
    with AtomicFile(target), pytest.raises(StorageError, match="another recovery"), AtomicFile(target):
        pass
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: os.symlink("elsewhere", path), os.mkdir])
def test_a_temporary_name_that_is_no_regular_file_is_neither_opened_nor_followed(make, tmp_path):
    target = str(tmp_path / "a.ckpt")
    make(temporary_path(target))
    with pytest.raises(StorageError, match=r"a\.ckpt"), AtomicFile(target):
        pass
    assert os.listdir(tmp_path) == [".a.ckpt.ms_recover.tmp"]


def test_a_name_that_is_too_long_is_one_error_with_the_path(tmp_path):
    with pytest.raises(StorageError, match="File name too long; the file system takes no name as long as this"):
        write_small(tmp_path / ("n" * 250), b"x")


def test_small_files_are_written_whole_with_their_mode(tmp_path):
    path = tmp_path / "plan.json"
    write_small(path, b"one")
    write_small(path, b"two", mode=0o600)
    assert path.read_bytes() == b"two"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == ["plan.json"]
    with pytest.raises(MissingInputError, match="No such file or directory"):
        write_small(tmp_path / "none" / "plan.json", b"x")


@pytest.mark.parametrize("call", ["write", "fchmod", "fsync", "rename"])
def test_a_small_file_that_cannot_be_written_leaves_the_old_one_and_nothing_else(call, tmp_path):
    path = tmp_path / "plan.json"
    path.write_bytes(b"old")
    faults = Faults(str(tmp_path), 1, "ENOSPC", (call,))
    with faults.installed(), pytest.raises(StorageError, match="No space left on device; free some space"):
        write_small(path, b"new")
    assert faults.count
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["plan.json"]


def test_only_temporary_files_without_a_writer_are_removed(tmp_path):
    path = tmp_path / ".a.ms_recover.tmp"
    path.write_bytes(b"half")
    with path.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        remove_unlocked(str(path))
        assert path.exists()
    remove_unlocked(str(path))
    assert not path.exists()
    remove_unlocked(str(path))
    os.mkfifo(path)
    remove_unlocked(str(path))
    assert path.exists()


def test_on_nfs_too_only_temporary_files_without_a_writer_are_removed(tmp_path, monkeypatch):
    flock = fcntl.flock

    def of_nfs(descriptor, kind):
        """An exclusive lock needs a file that is open for writing: it becomes a range lock (flock(2), NFS details)."""
        number = descriptor if isinstance(descriptor, int) else descriptor.fileno()
        if kind & fcntl.LOCK_EX and fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        flock(descriptor, kind)

    monkeypatch.setattr(fcntl, "flock", of_nfs)
    path = tmp_path / ".a.ms_recover.tmp"
    path.write_bytes(b"half")
    with path.open("r+b") as writer:
        fcntl.flock(writer, fcntl.LOCK_EX)
        remove_unlocked(str(path))
        assert path.exists()
    remove_unlocked(str(path))
    assert not path.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to others")
def test_a_file_that_root_writes_belongs_to_whom_it_should(tmp_path):
    like = tmp_path / "like"
    like.touch()
    os.chown(like, 1234, 1235)
    write_small(tmp_path / "small", b"x", owner_of=str(like))
    write_small(tmp_path / "own", b"x")
    os.chown(tmp_path, 1236, 1237)
    for name, owner in (("given", (1238, 1239)), ("of_its_folder", None)):
        with AtomicFile(str(tmp_path / name)) as file:
            file.settle(FileForm(0o640, 7, owner))
            file.commit()
    owners = {path.name: (path.stat().st_uid, path.stat().st_gid) for path in tmp_path.iterdir()}
    like, own = (1234, 1235), (0, 0)
    assert owners == {"like": like, "small": like, "own": own, "given": (1238, 1239), "of_its_folder": (1236, 1237)}
