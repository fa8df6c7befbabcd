import errno
import os

import pytest
import xxhash

from ms_recover.stores import direct, reading, transfer
from ms_recover.stores.digest import digest_bytes
from ms_recover.stores.local import StoppedError
from ms_recover.stores.reading import CHUNK, WINDOW, read_through
from ms_recover.stores.transfer import WINDOWS_IN_FLIGHT, copy_bytes

MANY_WINDOWS = WINDOW * (WINDOWS_IN_FLIGHT + 3)
SIZES = [0, 1, 4095, CHUNK, CHUNK + 1, direct.BLOCK, direct.BLOCK + 1, 2 * direct.BLOCK + 4096, MANY_WINDOWS + 12_345]


def never():
    return False


def nothing(count):
    pass


@pytest.fixture
def pair(tmp_path):
    """Make a source of some size; give descriptors of it and of an empty target."""
    opened = []

    def make(size):
        data = os.urandom(size)
        (tmp_path / "source").write_bytes(data)
        source = os.open(tmp_path / "source", os.O_RDONLY)
        target = os.open(tmp_path / "target", os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        opened.extend((source, target))
        return data, source, target

    yield make
    for descriptor in opened:
        os.close(descriptor)


def digest_of(data):
    return f"xxh3_128:{xxhash.xxh3_128_hexdigest(data)}"


def descriptors():
    return set(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("size", SIZES)
def test_copy_digest_and_read_back_agree(pair, tmp_path, size):
    data, source, target = pair(size)
    seen = []
    copied, digest = copy_bytes(source, target, never, seen.append)
    os.fsync(target)
    assert (copied, digest) == (size, digest_of(data))
    assert sum(seen) == size
    assert (tmp_path / "target").read_bytes() == data
    assert digest_bytes(target, never, from_device=True) == digest == digest_bytes(target, never)


def test_blocks_are_shared_where_the_file_system_can(pair, tmp_path, monkeypatch):
    data, source, target = pair(3 * CHUNK)
    if not transfer.clone(source, target):
        pytest.skip("no reflinks in the file system of temporary files")
    monkeypatch.setattr(os, "write", lambda descriptor, data: pytest.fail("bytes were copied"))
    assert copy_bytes(source, target, never, nothing) == (len(data), digest_of(data))
    assert (tmp_path / "target").read_bytes() == data


def test_what_is_shared_is_not_written_but_digested(pair, tmp_path, monkeypatch):
    data, source, target = pair(3 * CHUNK)

    def clone(source, target):
        os.sendfile(target, source, 0, 3 * CHUNK)
        return True

    monkeypatch.setattr(transfer, "clone", clone)
    monkeypatch.setattr(os, "write", lambda descriptor, data: pytest.fail("bytes were copied"))
    assert copy_bytes(source, target, never, nothing) == (len(data), digest_of(data))
    assert (tmp_path / "target").read_bytes() == data


def test_bytes_are_copied_where_blocks_cannot_be_shared(pair, tmp_path, monkeypatch):
    data, source, target = pair(CHUNK + 5)
    monkeypatch.setattr(transfer, "clone", lambda source, target: False)
    assert copy_bytes(source, target, never, nothing) == (len(data), digest_of(data))
    assert (tmp_path / "target").read_bytes() == data


@pytest.fixture
def copied(monkeypatch):
    monkeypatch.setattr(transfer, "clone", lambda source, target: False)


@pytest.mark.usefixtures("copied")
def test_short_writes_are_continued(pair, tmp_path, monkeypatch):
    data, source, target = pair(300_000)
    real = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: real(descriptor, data[:77_777]))
    assert copy_bytes(source, target, never, nothing)[1] == digest_of(data)
    assert (tmp_path / "target").read_bytes() == data


@pytest.mark.usefixtures("copied")
@pytest.mark.parametrize("refusals", [0, 1, 2])
def test_direct_writes_that_are_refused_go_through_the_cache(pair, tmp_path, monkeypatch, refusals):
    data, source, target = pair(2 * direct.BLOCK + 4097)
    monkeypatch.setattr(direct, "huge_pages", lambda: True)
    real, directly = os.write, []

    def write(descriptor, data):
        if descriptor != target:
            directly.append(len(data))
            if len(directly) > refusals:
                raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return real(descriptor, data)

    monkeypatch.setattr(os, "write", write)
    assert copy_bytes(source, target, never, nothing) == (len(data), digest_of(data))
    assert (tmp_path / "target").read_bytes() == data
    assert directly in ([], [direct.BLOCK] * (refusals + 1), [direct.BLOCK, direct.BLOCK, 4096])


@pytest.mark.usefixtures("copied")
def test_a_device_that_fails_a_direct_write_ends_the_copy(pair, monkeypatch):
    _, source, target = pair(direct.BLOCK)
    before = descriptors()

    def fail(*arguments):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "write", fail)
    with pytest.raises(OSError, match="Input/output"):
        copy_bytes(source, target, never, nothing)
    assert descriptors() == before


@pytest.mark.usefixtures("copied")
def test_a_source_that_got_shorter_leaves_no_reserved_bytes(pair, tmp_path, monkeypatch):
    data, source, target = pair(2 * CHUNK)
    real = transfer.allocate

    def allocate(descriptor, size):
        real(descriptor, size)
        os.truncate(tmp_path / "source", CHUNK + 1)

    monkeypatch.setattr(transfer, "allocate", allocate)
    assert copy_bytes(source, target, never, nothing) == (CHUNK + 1, digest_of(data[: CHUNK + 1]))
    assert (tmp_path / "target").read_bytes() == data[: CHUNK + 1]


@pytest.mark.usefixtures("copied")
def test_the_device_is_kept_busy_and_never_told_of_bytes_not_written(pair, monkeypatch):
    size = MANY_WINDOWS + 5
    monkeypatch.setattr(transfer, "LARGE", size)
    _, source, target = pair(size)
    started, finished, dropped, written = [], [], [], []
    monkeypatch.setattr(transfer, "start_writing", lambda *range_: (started.append(range_), written.append(position())))
    monkeypatch.setattr(transfer, "finish_writing", lambda *range_: finished.append(range_))
    monkeypatch.setattr(transfer, "drop_cached", lambda *range_: dropped.append(range_))

    def position():
        return os.lseek(target, 0, os.SEEK_CUR)

    copy_bytes(source, target, never, nothing)
    assert [offset for _, offset, _ in started] == list(range(0, MANY_WINDOWS, WINDOW))
    assert all(offset + length == end for (_, offset, length), end in zip(started, written, strict=True))
    assert finished == dropped == [(target, n * WINDOW, WINDOW) for n in range(3)]


@pytest.mark.usefixtures("copied")
def test_an_error_of_the_device_ends_the_copy(pair, monkeypatch):
    monkeypatch.setattr(transfer, "LARGE", MANY_WINDOWS)
    _, source, target = pair(MANY_WINDOWS)

    def fail(*arguments):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(transfer, "finish_writing", fail)
    with pytest.raises(OSError, match="Input/output"):
        copy_bytes(source, target, never, nothing)


@pytest.mark.usefixtures("copied")
def test_a_full_disk_is_known_before_the_first_byte(pair, monkeypatch):
    _, source, target = pair(CHUNK)

    def fail(descriptor, size):
        assert (descriptor, size) == (target, CHUNK)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(transfer, "allocate", fail)
    monkeypatch.setattr(os, "write", lambda descriptor, data: pytest.fail("a byte was written"))
    with pytest.raises(OSError, match="No space"):
        copy_bytes(source, target, never, nothing)


@pytest.mark.parametrize("from_device", [False, True])
def test_reading_stops_when_asked_and_closes_what_it_opened(pair, from_device):
    _, source, target = pair(10)
    before = descriptors()
    with pytest.raises(StoppedError) as caught:
        digest_bytes(source, lambda: True, from_device=from_device)
    assert descriptors() == before  # though the traceback still holds the frames
    del caught
    with pytest.raises(StoppedError):
        copy_bytes(source, target, lambda: True, nothing)


def test_cached_pages_are_dropped_before_reading_from_the_device(pair, monkeypatch):
    _, source, _ = pair(10)
    real, calls = os.preadv, []
    monkeypatch.setattr(reading, "drop_cached", lambda *range_: calls.append(("drop", *range_)))
    monkeypatch.setattr(os, "preadv", lambda *arguments: (calls.append(("read",)), real(*arguments))[1])
    digest_bytes(source, never, from_device=True)
    assert calls[:2] == [("drop", source), ("read",)]


def test_without_direct_reads_the_cache_is_emptied_behind_the_reading(pair, monkeypatch):
    data, source, _ = pair(2 * WINDOW + 3)
    dropped = []
    monkeypatch.setattr(reading, "read_direct", lambda descriptor: (piece for piece in ()))
    monkeypatch.setattr(reading, "drop_cached", lambda *range_: dropped.append(range_))
    assert digest_bytes(source, never, from_device=True) == digest_of(data)
    assert dropped == [(source,), (source, 0, WINDOW), (source, WINDOW, WINDOW), (source, 2 * WINDOW)]


def test_what_cannot_be_read_directly_is_read_through_the_cache(pair, monkeypatch):
    data, source, _ = pair(3 * CHUNK + 7)
    monkeypatch.setattr(reading, "read_direct", lambda descriptor: (piece for piece in [memoryview(data)[:CHUNK]]))
    pieces = [bytes(piece) for piece in read_through(source, never, from_device=True)]
    assert b"".join(pieces) == data
