"""Long ranges over one connection and over several, from a real server."""

import time

import pytest

from ms_recover import api
from ms_recover.stores import http_store
from ms_recover.stores.http_access import Access
from ms_recover.stores.http_store import HttpStore
from ms_recover.stores.local import StoppedError
from ms_recover.stores.store import never
from ms_recover.testing.trees import make_tree, save_manifests
from tests.support.fault_proxy import FaultProxy
from tests.support.serving import Nginx, serving

DATA = bytes(range(256)) * (160 << 10) + b"end"


@pytest.fixture
def nginx(tmp_path):
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "data").write_bytes(DATA)
    with Nginx(tmp_path / "tree", tmp_path / "nginx") as server:
        yield server


@pytest.mark.parametrize("manifests", [True, False])
def test_a_scan_of_our_server_makes_one_request_for_each_slice(tmp_path, manifests):
    """Its lists have what is asked of each file; a manifest, or the header without one, comes with one request."""
    tree = make_tree(tmp_path / "tree", data_parallel=3, model_parallel=2)
    if manifests:
        save_manifests(tree)
    here = api.scan(tree)
    with serving(tree) as [server], FaultProxy(server.port, rewrite=lambda _, head: head) as proxy:
        found = api.scan(f"http://{proxy.address}")
    assert [file.path for file in found.slices] == [file.path for file in here.slices]
    assert [file.mtime_ns for file in found.slices] == [file.mtime_ns for file in here.slices]
    lists = [line for line in proxy.requests if line.split()[1].endswith("/")]
    files = [line for line in proxy.requests if ".ckpt" in line]
    assert len(lists) == 7
    assert len(files) == len(found.slices)
    assert all(line.startswith("GET") for line in proxy.requests)


@pytest.mark.parametrize("quick", [0, 10**15])
@pytest.mark.parametrize("breaks", [None, 5_000_000])
def test_every_byte_comes_once_and_in_order(nginx, monkeypatch, quick, breaks):
    monkeypatch.setattr(http_store, "QUICK", quick or 1)
    with FaultProxy(nginx.port, break_every=breaks) as proxy, HttpStore(f"http://{proxy.address}", Access()) as store:
        opened = store.open("data", store.stat("data").state)
        for start, end in ((0, len(DATA)), (1, len(DATA) - 1), (0, 2 * http_store.PIECE - 1)):
            found = bytearray()
            opened.read_range(start, end, found.extend, never)
            assert found == DATA[start:end]
        if breaks is None:
            assert (proxy.connections == 1) == (quick == 0)


def test_it_stops_in_pieces_as_well(nginx, monkeypatch):
    monkeypatch.setattr(http_store, "QUICK", 10**15)
    with FaultProxy(nginx.port, delay=0.05) as proxy, HttpStore(f"http://{proxy.address}", Access()) as store:
        opened, taken = store.open("data"), bytearray()
        began = time.monotonic()
        with pytest.raises(StoppedError):
            opened.read_range(0, len(DATA), taken.extend, lambda: len(taken) > 100_000 or time.monotonic() > began + 2)
        assert time.monotonic() - began < 10
