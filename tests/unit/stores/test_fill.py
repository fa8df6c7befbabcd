"""Reading a file into memory that stays."""

import gc
import os
import random
import threading

import pytest

from ms_recover.errors import MsRecoverError, VerificationError
from ms_recover.stores import fill as module
from ms_recover.stores.fill import ARENA, fill, take_memory
from ms_recover.stores.local import StoppedError
from ms_recover.stores.local_store import LocalFile
from ms_recover.stores.store import OpenFile


@pytest.fixture(params=[1, 3], ids=["alone", "threads"])
def threads(request, monkeypatch):
    """Small blocks, read by so many threads."""
    monkeypatch.setattr(module, "BLOCK", 1000)
    monkeypatch.setattr(module, "_BYTES_WORTH_A_THREAD", 1)
    monkeypatch.setattr(module, "_MOST_THREADS", request.param)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(request.param)))


def parts_of(size, seed=0):
    source, left, parts = random.Random(seed), size, []
    while left:
        count = min(left, source.choice([0, 1, 3, 64, 999, 1000, 1001, 5000]))
        parts.append(memoryview(bytearray(count)))
        left -= count
    return parts


@pytest.fixture
def data(tmp_path):
    content = random.Random(1).randbytes(300_000)
    (tmp_path / "file").write_bytes(content)
    return tmp_path / "file", content


def test_each_byte_gets_to_its_place_and_is_seen_once_in_order(data, threads):
    path, content = data
    for seed in range(5):
        parts, seen = parts_of(len(content), seed), bytearray()
        with LocalFile(str(path)) as opened:
            fill(opened, parts, seen.extend)
        assert b"".join(parts) == content == seen


def test_more_parts_than_one_call_takes(tmp_path, threads):
    content = random.Random(2).randbytes(5000)
    (tmp_path / "file").write_bytes(content)
    parts, seen = [memoryview(bytearray(1)) for _ in content], bytearray()
    with LocalFile(str(tmp_path / "file")) as opened:
        fill(opened, parts, seen.extend)
    assert b"".join(parts) == content == seen


def test_a_file_of_no_bytes(tmp_path):
    (tmp_path / "file").touch()
    with LocalFile(str(tmp_path / "file")) as opened:
        fill(opened, [], pytest.fail)


def test_a_file_that_is_cut_meanwhile_is_an_error(data, threads):
    path, content = data
    with LocalFile(str(path)) as opened:
        os.truncate(path, len(content) // 2)
        with pytest.raises(VerificationError, match="file ends too early: it changes while it is read"):
            fill(opened, parts_of(len(content)), lambda part: None)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_error_ends_every_thread(data, threads, error):
    path, content = data
    seen = []

    def see(part):
        seen.append(len(part))
        if sum(seen) > len(content) // 3:
            raise error

    with LocalFile(str(path)) as opened, pytest.raises(error):
        fill(opened, parts_of(len(content)), see)
    assert not [one for one in threading.enumerate() if one.name.startswith("fill")]


def test_reading_stops_when_asked(data, threads):
    path, content = data
    with LocalFile(str(path)) as opened, pytest.raises(StoppedError):
        fill(opened, parts_of(len(content)), lambda part: None, lambda: True)


class Distant(OpenFile):
    """A file whose bytes arrive in pieces, in memory that is used again."""

    near = False

    def __init__(self, content, arrives):
        super().__init__("distant", len(content))
        self._content, self._arrives, self.calls = content, arrives, 0

    def read_range(self, start, end, take, stop):
        self.calls += 1
        buffer = bytearray(777)
        for at in range(start, min(end, self._arrives), 777):
            count = min(777, self._arrives - at)
            buffer[:count] = self._content[at : at + count]
            take(memoryview(buffer)[:count])

    def check_unchanged(self):
        pass

    def form(self):
        raise NotImplementedError


def test_a_distant_file_is_asked_for_once(data):
    _, content = data
    parts, seen = parts_of(len(content)), bytearray()
    opened = Distant(content, len(content))
    fill(opened, parts, seen.extend)
    assert b"".join(parts) == content == seen
    assert opened.calls == 1
    with pytest.raises(VerificationError, match="distant ends too early"):
        fill(Distant(content, 1000), parts, lambda part: None)


def test_an_unreadable_file_is_an_error_of_ours(data):
    path, content = data
    opened = LocalFile(str(path))
    opened.close()
    with pytest.raises(MsRecoverError, match=f"reading {path}"):
        fill(opened, parts_of(len(content)), lambda part: None)


@pytest.mark.parametrize("sizes", [[], [0], [1], [0, 5, 0], [63, 64, 65], [ARENA + 1, 3, ARENA, 7, 20 << 20]])
def test_memory_is_writable_and_nobody_elses(sizes):
    views = take_memory(sizes)
    assert [len(view) for view in views] == sizes
    for number, view in enumerate(views):
        view[:1] = bytes([number + 1])[: len(view)]
        view[-1:] = bytes([number + 1])[: len(view)]
    assert [view[0] for view in views if len(view)] == [n + 1 for n, size in enumerate(sizes) if size]


def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")


def test_memory_goes_with_the_last_that_uses_it():
    views = take_memory([1 << 20] * 256)
    for view in views:
        view[:] = bytes(1 << 20)
    full = resident()
    kept = views[0]
    del views, view
    gc.collect()
    assert full - resident() > 3 * ARENA - (16 << 20)
    assert kept[0] == 0
