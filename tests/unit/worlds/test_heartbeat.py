import json
import os
import socket
import time

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


def beat(key=KEY, kind=heartbeat.HEARTBEAT, epoch=3, sender=1, cause=0, accused=0):
    return heartbeat.pack(key, kind, cause, (WORLD, epoch), sender, accused)


def test_helper_and_wire_have_the_same_causes():
    assert heartbeat.CAUSES == wire.CAUSES


def test_a_beat_counts_once(watched):
    data = beat()
    assert watched.receive(data, 11.0) is None
    assert watched.last_received == {1: 11.0, 2: 10.0}
    watched.receive(data, 12.0)
    assert watched.last_received[1] == 11.0, "a datagram was replayed"
    watched.receive(beat(), 13.0)
    assert watched.last_received[1] == 13.0


@pytest.mark.parametrize("wrong", [{"key": b"x" * 32}, {"epoch": 2}, {"sender": 7}])
def test_forged_and_stray_beats_do_not_count(watched, wrong):
    watched.receive(beat(**wrong), 11.0)
    watched.receive(beat()[:-1], 11.0)
    watched.receive(b"", 11.0)
    assert watched.last_received == {1: 10.0, 2: 10.0}


def test_a_peer_that_left_is_forgotten_and_the_report_of_another_is_returned(watched):
    watched.receive(beat(kind=heartbeat.LEFT), 11.0)
    assert set(watched.last_received) == set(watched.peers) == {2}
    assert watched.receive(beat(kind=heartbeat.GONE, sender=2, cause=2, accused=1), 11.0) == (2, 2, 1)


@pytest.fixture
def silent():
    """A helper whose one peer is silent for longer than the limit; its control socket, and the peer's socket."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    own, peer = (socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2))
    with ours, theirs, own, peer:
        for sock in (own, peer):
            sock.bind(("127.0.0.1", 0))
        peer.settimeout(60)
        order = {"world": WORLD.hex(), "epoch": 3, "rank": 0, "key": KEY.hex(), "interval": 100, "limit": 1}
        world = heartbeat.Watched({**order, "peers": {"1": peer.getsockname()}}, own, time.monotonic() - 2)
        helper = heartbeat.Helper(theirs, os.getpid())
        helper._worlds[world.place] = world
        ours.setblocking(False)
        yield helper, world, ours, peer


def losses(control):
    found = []
    try:
        while True:
            words = json.loads(control.recv(heartbeat.MAX_PACKET))
            if "lost" in words:
                found.append((words["rank"], words["cause"], words["accused"]))
    except BlockingIOError:
        return found


def test_a_peer_accused_of_silence_still_receives_that_the_world_broke(silent):
    helper, world, control, peer = silent
    helper._check()
    assert losses(control) == [(1, "heartbeat", 1)]
    world.receive(beat(), 11.0)
    helper._check()
    assert losses(control) == []  # once is enough, also when it is heard again
    assert heartbeat.unpack(peer.recv(512))[0] == heartbeat.HEARTBEAT
    world.send(heartbeat.GONE, 2, 1)
    assert heartbeat.unpack(peer.recv(512))[0] == heartbeat.GONE
    world.forget(1)  # it left meanwhile
    helper._check()
    assert losses(control) == []


def test_a_loss_is_reported_again_when_the_process_did_not_read(silent, monkeypatch):
    helper, _, control, _ = silent
    with pytest.raises(BlockingIOError):
        while True:
            helper._control.send(b"{}", socket.MSG_DONTWAIT)
    helper._check()
    assert helper._wait() > 0
    assert losses(control) == []
    later = time.monotonic() + 0.4
    monkeypatch.setattr(time, "monotonic", lambda: later)
    helper._check()
    assert losses(control) == [(1, "heartbeat", 1)]


def test_a_heartbeat_that_is_too_short_is_refused():
    for wrong in (0.0, -1.0, float("nan")):
        with pytest.raises(UsageError):
            WatchDog(wrong, lambda *_: None)
