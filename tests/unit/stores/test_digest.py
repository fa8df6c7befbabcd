import os

import pytest

from ms_recover.stores.digest import digest_file, holds
from ms_recover.stores.local import StoppedError


def never():
    return False


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "slice"
    path.write_bytes(b"what it should hold")
    return str(path), 19, digest_file(path).file


def test_a_file_that_holds_what_it_should(file):
    path, size, digest = file
    assert holds(path, size, digest, never) == digest
    assert holds(path, size, None, never) == digest


def test_a_file_that_holds_something_else(file):
    path, size, digest = file
    assert holds(path, size, digest[:-1] + "x", never) is None


def test_a_file_of_another_size_is_not_read(file, monkeypatch):
    path, size, digest = file
    monkeypatch.setattr(os, "preadv", lambda *_: pytest.fail("it was read"))
    assert holds(path, size + 1, None, never) is None
    assert holds(path, size - 1, digest, never) is None


@pytest.mark.timeout(10)
def test_what_is_no_file_holds_nothing(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    assert holds(str(tmp_path / "pipe"), 0, None, never) is None
    assert holds(str(tmp_path), tmp_path.stat().st_size, None, never) is None


def test_what_is_not_there_is_told(tmp_path):
    with pytest.raises(FileNotFoundError):
        holds(str(tmp_path / "gone"), 1, None, never)


def test_reading_stops_and_no_descriptor_is_left(file):
    path, size, digest = file
    before = os.listdir("/proc/self/fd")
    with pytest.raises(StoppedError):
        holds(path, size, digest, lambda: True)
    assert os.listdir("/proc/self/fd") == before
