import errno
import fcntl
import os
import resource

import pytest

from ms_recover.stores import system
from ms_recover.stores.system import allocate, clone, drop_cached, finish_writing, read_ahead, start_writing


@pytest.fixture
def file(tmp_path):
    descriptor = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT, 0o600)
    yield descriptor
    os.close(descriptor)


@pytest.fixture
def pipe():
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


def test_blocks_are_reserved_and_the_size_set(file):
    allocate(file, 1_000_000)
    status = os.fstat(file)
    if status.st_size:  # where the file system can
        assert status.st_size == 1_000_000
        assert status.st_blocks * 512 >= 1_000_000
    assert os.pread(file, 10, 0) in (b"", bytes(10))


def test_no_room_is_an_error(file):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            allocate(file, 2 << 20)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert os.fstat(file).st_size == 0


def test_what_cannot_be_reserved_or_synced_in_parts_is_passed_over(pipe):
    allocate(pipe[1], 1 << 20)
    allocate(pipe[1], 0)
    start_writing(pipe[1], 0, 1 << 20)
    finish_writing(pipe[1], 0, 1 << 20)
    drop_cached(pipe[0])
    read_ahead(pipe[0])


def test_a_library_without_the_calls_is_passed_over(file, monkeypatch):
    monkeypatch.setattr(system, "_function", lambda name: None)
    allocate(file, 1 << 20)
    start_writing(file, 0, 1 << 20)
    finish_writing(file, 0, 1 << 20)
    assert os.fstat(file).st_size == 0
    assert system._last_error().errno >= 0


def test_the_library_is_asked_by_name():
    assert system._function("no_such_function_anywhere") is None
    assert system._function("fallocate") is not None


@pytest.mark.parametrize("call", [start_writing, finish_writing])
def test_errors_of_the_device_are_told(file, monkeypatch, call):
    call(file, 0, 1 << 20)
    with pytest.raises(OSError, match="Bad file descriptor"):
        call(1 << 20, 0, 1 << 20)
    monkeypatch.setattr(system, "_function", lambda name: lambda *arguments: -1)
    monkeypatch.setattr(system.ctypes, "get_errno", lambda: errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        call(file, 0, 1 << 20)


def test_a_refused_clone_leaves_an_empty_file(tmp_path, file, pipe):
    (tmp_path / "source").write_bytes(b"x" * 5000)
    source = os.open(tmp_path / "source", os.O_RDONLY)
    try:
        assert not clone(pipe[0], file)
        assert os.fstat(file).st_size == 0
        if clone(source, file):
            assert os.pread(file, 6000, 0) == b"x" * 5000
        else:
            assert os.fstat(file).st_size == 0
    finally:
        os.close(source)


def test_a_clone_that_fails_half_way_leaves_an_empty_file(file, monkeypatch):
    def ioctl(target, request, source):
        assert request == system.FICLONE
        os.write(target, b"half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(fcntl, "ioctl", ioctl)
    assert not clone(0, file)
    assert os.fstat(file).st_size == 0
