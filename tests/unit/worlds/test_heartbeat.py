import contextlib
import itertools
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
    return heartbeat.pack(key, heartbeat.Datagram(kind, cause, WORLD, epoch, sender, accused))


def passed_beat(world, passed, key=KEY):
    return heartbeat.pack(key, heartbeat.Datagram(heartbeat.HEARTBEAT, 0, *world.place, 1, passed=passed))


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
    return [(words["rank"], words["cause"], words["accused"]) for words in reports(control, "lost")]


def reports(control, name):
    """Return what a helper has reported under this name so far."""
    found = []
    with contextlib.suppress(BlockingIOError):
        while True:
            words = json.loads(control.recv(heartbeat.MAX_PACKET))
            found += [words] if name in words else []
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


def test_bytes_that_were_passed_go_out_with_heartbeats_and_are_reported_when_they_change(silent, monkeypatch):
    helper, world, control, peer = silent
    control.send(json.dumps({"do": "passed", "world": WORLD.hex(), "epoch": 3, "bytes": {"1": 1 << 33}}).encode())
    helper._handle_order()
    world.send(heartbeat.HEARTBEAT)
    assert heartbeat.unpack(peer.recv(512)).passed == 1 << 33
    for number in (7, 7, 8):
        world.receive(
            passed_beat(world, number),
            time.monotonic(),
        )
        helper._next_alive = 0.0
        helper._check()
        world.receive(
            passed_beat(world, 9, b"x" * 32),
            time.monotonic(),
        )
    report = {"passed": WORLD.hex(), "epoch": 3}
    assert reports(control, "passed") == [report | {"bytes": {"1": 7}}, report | {"bytes": {"1": 8}}]


class Recorded(heartbeat.Watched):
    def send(self, kind, *_, **__):
        self.sent.append((time.monotonic(), kind))


def test_the_heartbeats_of_all_worlds_go_out_in_one_wake_up(monkeypatch):
    """Worlds are made at different moments; from then on their heartbeats are due together, none more than once."""
    clock = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        theirs.setblocking(False)
        helper = heartbeat.Helper(theirs, os.getpid())
        moments = set()
        for step in range(5000):  # 10 s in steps of 2 ms
            clock[0] = 1000 + 0.002 * step
            if step % 13 == 0 and len(helper._worlds) < 64:
                order = {"world": wire.world_id(str(step)).hex(), "epoch": 0, "rank": 0, "key": KEY.hex()}
                order |= {"interval": 0.3, "limit": 3.0, "peers": {"1": ["127.0.0.1", 9]}}
                world = Recorded(order, sock, clock[0])
                world.sent, helper._worlds[world.place], helper._next_heartbeat = [], world, 0.0
            for world in helper._worlds.values():
                world.last_received[1] = clock[0]
            if helper._wait() == 0:
                helper._check()
                ours.recv(512) if step % 125 == 0 else None
        for world in helper._worlds.values():
            times = [at for at, kind in world.sent]
            gaps = [after - before for before, after in itertools.pairwise(times)]
            assert max(gaps) < 0.46
            assert all(0.29 < gap < 0.31 for gap in gaps[1:])
            moments |= {round(at, 3) for at in times if at > 1003}
        assert len(helper._worlds) == 64
        assert len(moments) <= 7 / 0.3 + 1


def test_a_silent_peer_is_found_at_its_limit_among_others_that_are_heard(monkeypatch):
    clock = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        helper = heartbeat.Helper(theirs, os.getpid())
        for number in range(3):
            order = {"world": wire.world_id(str(number)).hex(), "epoch": 0, "rank": 0, "key": KEY.hex()}
            order |= {"interval": 0.1, "limit": 1.0, "peers": {"1": ["127.0.0.1", 9]}}
            world = Recorded(order, sock, clock[0])
            world.sent, helper._worlds[world.place] = [], world
        silent = list(helper._worlds.values())[1]
        ours.setblocking(False)
        found, heard = [], 0.0
        while not found:
            for world in helper._worlds.values():
                if world is not silent or clock[0] < 1002:
                    world.last_received[1] = clock[0]
                    heard = clock[0] if world is silent else heard
            wait = helper._wait()
            assert wait <= 0.25
            clock[0] += wait + 1e-4
            helper._check()
            found = losses(ours)
        assert found == [(1, "heartbeat", 1)]
        assert 1.0 <= clock[0] - heard < 1.01
