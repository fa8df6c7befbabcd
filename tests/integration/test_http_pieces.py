"""Long ranges over one connection and over several, from a real server."""

import time

import pytest

from ms_recover.stores import http_file
from ms_recover.stores.http_access import Access
from ms_recover.stores.http_store import HttpStore
from ms_recover.stores.local import StoppedError
from ms_recover.stores.store import never
from tests.support.fault_proxy import FaultProxy
from tests.support.serving import Nginx

DATA = bytes(range(256)) * (160 << 10) + b"end"


@pytest.fixture
def nginx(tmp_path):
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "data").write_bytes(DATA)
    with Nginx(tmp_path / "tree", tmp_path / "nginx") as server:
        yield server


@pytest.mark.parametrize("quick", [0, 10**15])
@pytest.mark.parametrize("breaks", [None, 5_000_000])
def test_every_byte_comes_once_and_in_order(nginx, monkeypatch, quick, breaks):
    monkeypatch.setattr(http_file, "QUICK", quick or 1)
    with FaultProxy(nginx.port, break_every=breaks) as proxy, HttpStore(f"http://{proxy.address}", Access()) as store:
        opened = store.open("data", store.stat("data").state)
        for start, end in ((0, len(DATA)), (1, len(DATA) - 1), (0, 2 * http_file.PIECE - 1)):
            found = bytearray()
            opened.read_range(start, end, found.extend, never)
            assert found == DATA[start:end]
        if breaks is None:
            assert (proxy.connections == 1) == (quick == 0)


def test_it_stops_in_pieces_as_well(nginx, monkeypatch):
    monkeypatch.setattr(http_file, "QUICK", 10**15)
    with FaultProxy(nginx.port, delay=0.05) as proxy, HttpStore(f"http://{proxy.address}", Access()) as store:
        opened, taken = store.open("data"), bytearray()
        began = time.monotonic()
        with pytest.raises(StoppedError):
            opened.read_range(0, len(DATA), taken.extend, lambda: len(taken) > 100_000 or time.monotonic() > began + 2)
        assert time.monotonic() - began < 10
