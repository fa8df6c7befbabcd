import os

import pytest

from tests.support.distant import DistantStore


@pytest.fixture
def counted(tmp_path):
    data = os.urandom(1 << 20) * 20
    (tmp_path / "a.bin").write_bytes(data)
    store = DistantStore(tmp_path)
    return store, data


def test_reads_that_follow_each_other_take_few_and_ever_larger_requests(counted):
    store, data = counted
    with store.open("a.bin") as opened:
        assert b"".join(opened.read_at(start, 4096) for start in range(0, len(data), 4096)) == data
    assert len(store.of("read")) < 20
    assert store.bytes == len(data)


def test_reads_here_and_there_take_little(counted):
    store, data = counted
    with store.open("a.bin") as opened:
        for start in (15 << 20, 5 << 20, 10 << 20, 0, (20 << 20) - 10):
            assert opened.read_at(start, 100) == data[start : start + 100]
    assert store.bytes <= 5 * (64 << 10)


def test_a_read_over_the_edge_of_a_range_asks_for_the_rest_alone(counted):
    store, data = counted
    with store.open("a.bin") as opened:
        for start, length in ((0, 100), (60 << 10, 8 << 10), ((20 << 20) - 5, 100), (20 << 20, 5), (7, 0)):
            assert opened.read_at(start, length) == data[start : start + length]
    assert store.bytes < 300_000
