"""One training at a time in a directory."""

import errno
import fcntl
import multiprocessing
import os
import stat
import subprocess
import sys

import pytest

from ms_recover.errors import MissingInputError, StorageError
from ms_recover.execution.directory_lock import lock_directory
from ms_recover.execution.lock import lock_tree
from ms_recover.file_names import LOCK_NAME

HOLD = """
import sys
from ms_recover.execution.directory_lock import lock_directory
lock_directory(sys.argv[1])
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path):
    """Another process that has the lock until its input ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.communicate()


@pytest.mark.processes
def test_another_process_is_refused_by_name(tmp_path, holder):
    with pytest.raises(StorageError, match=rf"another training saves to {tmp_path} \(process {holder.pid}\): stop it"):
        lock_directory(str(tmp_path), grace=0)


@pytest.mark.processes
def test_one_that_ends_is_waited_for(tmp_path, holder):
    waits = []

    def sleep(seconds):
        waits.append(seconds)
        holder.kill()
        holder.wait()

    lock_directory(str(tmp_path), sleep=sleep).release()
    assert len(waits) == 1


@pytest.mark.processes
def test_a_process_that_was_killed_holds_nothing(tmp_path, holder):
    holder.kill()
    holder.wait()
    lock_directory(str(tmp_path), grace=0).release()
    assert os.listdir(tmp_path) == []


def test_the_parts_of_a_process_share_it_and_the_last_gives_it_back(tmp_path):
    (tmp_path / "dir").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "dir")
    first, second = lock_directory(str(tmp_path / "dir")), lock_directory(str(tmp_path / "link"))
    assert first is second
    first.release()
    assert not is_free(tmp_path / "dir")
    second.release()
    assert is_free(tmp_path / "dir")
    lock_directory(str(tmp_path / "dir")).release()


def is_free(place):
    descriptor = os.open(place, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True


def test_a_child_process_does_not_keep_it(tmp_path):
    lock = lock_directory(str(tmp_path))
    context = multiprocessing.get_context("fork")
    begun, end = context.Event(), context.Event()
    child = context.Process(target=lambda: (begun.set(), end.wait(30)))
    child.start()
    try:
        assert begun.wait(30)
        assert not is_free(tmp_path)
        lock.release()
        assert is_free(tmp_path)
    finally:
        end.set()
        child.join()


@pytest.fixture
def files_only(monkeypatch):
    """A file system on which directories cannot be locked."""
    real = fcntl.flock

    def flock(descriptor, kind):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EBADF, "not open for writing")
        real(descriptor, kind)

    monkeypatch.setattr(fcntl, "flock", flock)


def test_where_only_files_can_be_locked_one_lies_there_meanwhile(tmp_path, files_only):
    lock = lock_directory(str(tmp_path))
    assert os.listdir(tmp_path) == [LOCK_NAME]
    assert not is_free(tmp_path / LOCK_NAME)
    lock.release()
    assert os.listdir(tmp_path) == []


def test_a_lock_file_that_was_removed_meanwhile_is_made_again(tmp_path, monkeypatch, files_only):
    monkeypatch.setattr("ms_recover.execution.directory_lock._held", {})
    first = lock_directory(str(tmp_path))
    below = fcntl.flock
    removed = []

    def flock(descriptor, kind):
        if stat.S_ISREG(os.fstat(descriptor).st_mode) and not removed:  # given back between opening and locking
            removed.append(os.unlink(tmp_path / LOCK_NAME))
            first.close()
        below(descriptor, kind)

    monkeypatch.setattr(fcntl, "flock", flock)
    monkeypatch.setattr("ms_recover.execution.directory_lock._held", {})
    lock = lock_directory(str(tmp_path), grace=0)
    assert not is_free(tmp_path / LOCK_NAME)
    lock.release()


def test_a_recovery_in_the_same_process_goes_on_in_a_directory_that_it_has(tmp_path):
    lock = lock_directory(str(tmp_path))
    with lock_tree(str(tmp_path)):
        assert not is_free(tmp_path)
    assert not is_free(tmp_path)
    lock.release()
    with lock_tree(str(tmp_path)):
        assert not is_free(tmp_path)
    assert is_free(tmp_path)


def test_a_file_system_without_locks_is_warned_of(tmp_path, monkeypatch, caplog):
    def refuse(descriptor, kind):
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr(fcntl, "flock", refuse)
    lock_directory(str(tmp_path)).release()
    assert "no locks on this file system: a second training there would not be noticed" in caplog.text


def test_a_directory_that_is_gone_is_named(tmp_path):
    with pytest.raises(MissingInputError, match="gone"):
        lock_directory(str(tmp_path / "gone"))


def test_a_link_in_the_place_of_the_file_is_not_followed(tmp_path, files_only):
    (tmp_path / LOCK_NAME).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StorageError, match=LOCK_NAME):
        lock_directory(str(tmp_path))
