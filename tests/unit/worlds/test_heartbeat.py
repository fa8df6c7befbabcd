import socket

import pytest

from ms_recover.errors import UsageError
from ms_recover.worlds import WatchDog, heartbeat, wire

KEY = b"k" * 32
WORLD = wire.world_id("w")


@pytest.fixture
def watched():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("127.0.0.1", 0))
        order = {"world": WORLD.hex(), "epoch": 3, "rank": 0, "key": KEY.hex(), "interval": 0.1, "limit": 1}
        yield heartbeat.Watched({**order, "peers": {"1": ["127.0.0.1", 9], "2": ["127.0.0.1", 9]}}, sock, 10.0)


def beat(key=KEY, kind=heartbeat.BEAT, epoch=3, sender=1, cause=0, accused=0):
    return heartbeat.pack(key, kind, cause, (WORLD, epoch), sender, accused)


def test_helper_and_wire_know_the_same_causes():
    assert heartbeat.CAUSES == wire.CAUSES


def test_a_beat_counts_once(watched):
    data = beat()
    assert watched.hear(data, 11.0) is None
    assert watched.heard == {1: 11.0, 2: 10.0}
    watched.hear(data, 12.0)
    assert watched.heard[1] == 11.0, "a datagram was replayed"
    watched.hear(beat(), 13.0)
    assert watched.heard[1] == 13.0


@pytest.mark.parametrize("wrong", [{"key": b"x" * 32}, {"epoch": 2}, {"sender": 7}])
def test_forged_and_stray_beats_do_not_count(watched, wrong):
    watched.hear(beat(**wrong), 11.0)
    watched.hear(beat()[:-1], 11.0)
    watched.hear(b"", 11.0)
    assert watched.heard == {1: 10.0, 2: 10.0}


def test_a_peer_that_left_is_watched_no_longer_and_one_that_reports_is_believed(watched):
    watched.hear(beat(kind=heartbeat.LEFT), 11.0)
    assert set(watched.heard) == set(watched.peers) == {2}
    assert watched.hear(beat(kind=heartbeat.GONE, sender=2, cause=2, accused=1), 11.0) == (2, 2, 1)


def test_heartbeat_that_is_too_short():
    for wrong in (0.0, -1.0, float("nan")):
        with pytest.raises(UsageError):
            WatchDog(wrong, lambda *_: None)
