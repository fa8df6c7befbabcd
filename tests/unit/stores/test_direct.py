import ctypes
import errno
import os
import threading

import pytest

from ms_recover.stores import direct
from ms_recover.stores.digest import digest_bytes
from ms_recover.stores.direct import BLOCK, aligned_buffer, read_direct


@pytest.fixture
def file(tmp_path):
    """A file of one block and a bit; its contents and a descriptor of it."""
    data = os.urandom(BLOCK + 4097)
    (tmp_path / "file").write_bytes(data)
    descriptor = os.open(tmp_path / "file", os.O_RDWR)
    os.fsync(descriptor)
    yield data, descriptor
    os.close(descriptor)


def direct_reads(descriptor):
    try:
        os.close(os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY | os.O_DIRECT))
    except OSError:
        return False
    return True


def fail(code):
    raise OSError(code, os.strerror(code))


def test_all_of_a_file_is_read_or_nothing(file, monkeypatch):
    data, descriptor = file
    monkeypatch.setattr(direct, "huge_pages", lambda: True)
    os.lseek(descriptor, 5, os.SEEK_SET)
    read = b"".join(bytes(piece) for piece in read_direct(descriptor))
    assert read == (data if direct_reads(descriptor) else b"")
    assert os.lseek(descriptor, 0, os.SEEK_CUR) == 5


def test_nothing_is_read_where_it_would_be_slow(file, monkeypatch):
    monkeypatch.setattr(direct, "huge_pages", lambda: False)
    assert list(read_direct(file[1])) == []


def test_nothing_is_read_where_the_file_system_has_no_direct_reads(file, monkeypatch):
    real = os.open
    monkeypatch.setattr(direct, "huge_pages", lambda: True)
    monkeypatch.setattr(
        os, "open", lambda path, flags: fail(errno.EINVAL) if flags & os.O_DIRECT else real(path, flags)
    )
    assert list(read_direct(file[1])) == []


@pytest.mark.parametrize("blocks", [0, 1])
def test_reads_that_are_refused_are_left_to_others(file, monkeypatch, blocks):
    data, descriptor = file
    if not direct_reads(descriptor):
        pytest.skip("no direct reads in the file system of temporary files")
    real = os.preadv
    expected = digest_bytes(descriptor, lambda: False)

    def preadv(opened, buffers, offset):
        return (
            fail(errno.EINVAL) if opened != descriptor and offset == blocks * BLOCK else real(opened, buffers, offset)
        )

    monkeypatch.setattr(direct, "huge_pages", lambda: True)
    monkeypatch.setattr(os, "preadv", preadv)
    assert b"".join(bytes(piece) for piece in read_direct(descriptor)) == data[: blocks * BLOCK]
    assert digest_bytes(descriptor, lambda: False, from_device=True) == expected


def test_an_error_of_the_device_is_told(file, monkeypatch):
    _, descriptor = file
    if not direct_reads(descriptor):
        pytest.skip("no direct reads in the file system of temporary files")
    before = set(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(direct, "huge_pages", lambda: True)
    monkeypatch.setattr(os, "preadv", lambda *arguments: fail(errno.EIO))
    with pytest.raises(OSError, match="Input/output"):
        list(read_direct(descriptor))
    assert set(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("extra", [0, 1, BLOCK - 1])
@pytest.mark.parametrize("blocks", [1, 2, 3, 7])
def test_a_large_file_is_read_ahead(tmp_path, monkeypatch, blocks, extra):
    data = os.urandom(blocks * BLOCK + extra)
    (tmp_path / "large").write_bytes(data)
    monkeypatch.setattr(direct, "huge_pages", lambda: True)
    monkeypatch.setattr(direct, "LARGE", BLOCK)
    threads = threading.active_count()
    descriptor = os.open(tmp_path / "large", os.O_RDONLY)
    try:
        read = b"".join(bytes(piece) for piece in read_direct(descriptor))
        assert read == (data if direct_reads(descriptor) else b"")
    finally:
        os.close(descriptor)
    assert threading.active_count() == threads


def test_reading_ahead_ends_when_nobody_wants_more(tmp_path, monkeypatch):
    (tmp_path / "large").write_bytes(bytes(6 * BLOCK))
    monkeypatch.setattr(direct, "huge_pages", lambda: True)
    monkeypatch.setattr(direct, "LARGE", BLOCK)
    threads, before = threading.active_count(), set(os.listdir("/proc/self/fd"))
    descriptor = os.open(tmp_path / "large", os.O_RDONLY)
    pieces = read_direct(descriptor)
    next(pieces, None)
    pieces.close()
    os.close(descriptor)
    assert threading.active_count() == threads
    assert set(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("place", [0, 3])
def test_an_error_while_reading_ahead_is_told(tmp_path, monkeypatch, place):
    (tmp_path / "large").write_bytes(bytes(6 * BLOCK))
    descriptor = os.open(tmp_path / "large", os.O_RDONLY)
    real, threads = os.preadv, threading.active_count()

    def preadv(opened, buffers, offset):
        return fail(errno.EIO) if offset == place * BLOCK else real(opened, buffers, offset)

    monkeypatch.setattr(direct, "huge_pages", lambda: True)
    monkeypatch.setattr(direct, "LARGE", BLOCK)
    monkeypatch.setattr(os, "preadv", preadv)
    try:
        if not direct_reads(descriptor):
            pytest.skip("no direct reads in the file system of temporary files")
        with pytest.raises(OSError, match="Input/output"):
            list(read_direct(descriptor))
    finally:
        os.close(descriptor)
    assert threading.active_count() == threads


def test_memory_starts_at_a_huge_page():
    buffer = aligned_buffer(BLOCK)
    assert len(buffer) == BLOCK
    assert ctypes.addressof(ctypes.c_char.from_buffer(buffer)) % (2 << 20) == 0
    buffer[-1] = 1


@pytest.mark.parametrize(
    ("setting", "expected"),
    [("always [madvise] never\n", True), ("[always] madvise never\n", True), ("always madvise [never]\n", False)],
)
def test_the_kernel_says_whether_it_has_huge_pages(tmp_path, monkeypatch, setting, expected):
    (tmp_path / "enabled").write_text(setting)
    monkeypatch.setattr(direct, "_HUGE_PAGES_SETTING", str(tmp_path / "enabled"))
    assert direct.huge_pages.__wrapped__() is expected


def test_a_kernel_that_knows_none_has_none(tmp_path, monkeypatch):
    monkeypatch.setattr(direct, "_HUGE_PAGES_SETTING", str(tmp_path / "none"))
    assert direct.huge_pages.__wrapped__() is False
