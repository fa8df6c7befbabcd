"""Slices of a real server over loopback."""

from types import SimpleNamespace

import pytest

from ms_recover.remote.client import Peers
from ms_recover.remote.peer import Address
from ms_recover.remote.slice_source import RemoteSlice, RemoteSource
from ms_recover.testing.store_suite import PATH, StoreSuite
from tests.support.serving import serving

pytestmark = pytest.mark.processes


class TestRemoteSource(StoreSuite):
    @pytest.fixture
    def store(self, tree):
        with serving(tree) as [server], Peers([Address.parse(server.address)]) as peers:
            yield RemoteSource(peers.peers[0], peers.served[0], peers)

    test_a_folder_lists_its_names_in_order = None  # it lists slices and manifests only, as they were at first
    test_a_new_file_is_listed = None
    test_an_empty_file_has_no_bytes = None
    test_a_changed_file_is_another_one = None
    test_a_file_that_changed_after_it_was_opened_is_refused = None

    def test_a_small_file_is_read_whole(self, store, tree):
        manifest = (tree / f"{PATH}.manifest.json").read_bytes()
        assert store.read_small(f"{PATH}.manifest.json", "a manifest", len(manifest)) == manifest

    def test_it_names_its_host(self, store):
        assert store.host.startswith("127.0.0.1:")


class Counted(RemoteSlice):
    """A slice that is not asked for over a network; requests are counted."""

    def __init__(self, data):
        file = SimpleNamespace(path="a.ckpt")
        super().__init__(SimpleNamespace(name="host:1"), None, file, SimpleNamespace(bytes=len(data), mtime_ns=1))
        self.data, self.asked = data, []

    def read_range(self, start, end, take, stop):
        self.asked.append(end - start)
        take(memoryview(self.data[start:end]))


def test_reads_that_follow_each_other_take_few_and_ever_larger_requests():
    data = bytes(range(256)) * (1 << 16)
    opened = Counted(data)
    assert b"".join(opened.read_at(start, 1 << 12) for start in range(0, len(data), 1 << 12)) == data
    assert len(opened.asked) < 12
    assert max(opened.asked) == 4 << 20
    assert sum(opened.asked) == len(data)


def test_reads_here_and_there_take_little_more_than_they_need():
    opened = Counted(bytes(64 << 20))
    for start in (60 << 20, 5 << 20, 40 << 20, 0):
        opened.read_at(start, 100)
    assert opened.asked == [64 << 10] * 4
