"""Connections that pass nothing any more, without an end, while heartbeats pass: noticed in time, and nothing else is.

The program of the members is that of `test_worlds_network`.
"""

import contextlib
import itertools
import signal
import subprocess
import sys
import time

import pytest

from tests.integration.test_worlds_network import LARGE, SHORT, Member, cable, start
from tests.support.cable import TCP, UDP
from tests.support.examples import SAME_EVERY_TIME
from tests.support.fault_proxy import FaultProxy
from tests.support.ports import free_port

__all__ = ["cable", "start"]
LONGEST = 60
"""Seconds without an end: a member that does not read until the world breaks."""
UNREAD = 12 if SAME_EVERY_TIME else 60
LOADED = 8 if SAME_EVERY_TIME else 35
LENIENT = 4.0
"""A heartbeat that stops do not exceed."""
SPINNING = 6 if SAME_EVERY_TIME else 25


def noticed(members, since, heartbeat):
    """Wait until both members say that their world is broken, and one why; return what they say.

    Where one way is open, the other's close may come before its report.
    """
    heard = [member.hear(broken="w") for member in members]
    took = time.monotonic() - since
    print(f"noticed after {took:.2f} s:", *heard)
    assert "cut" in {words["cause"] for words in heard} <= {"cut", "peer_reported", "eof", "reset"}, heard
    for rank, words in enumerate(heard):
        assert words["rank"] == (rank if words["cause"] == "peer_reported" else 1 - rank), heard
    assert took < 3 * max(3 * heartbeat, 4), "loose: others may keep the processors busy"
    return heard


def quiet(member, *keys, **values):
    """Wait until it says so; its world must not have broken."""
    words = member.hear(*keys, **values)
    assert not [said for said in member.said if "broken" in said], member.said
    return words


BOTH, THERE, BACK = ([TCP], [TCP]), ([TCP], []), ([], [TCP])


@pytest.mark.parametrize(
    ("what", "way"),
    [
        *itertools.product(["stream", "wait", "unread", "both unread"], [BOTH]),
        *itertools.product(["stream", "wait"], [THERE, BACK]),
    ],
)
def test_cut_tcp_is_noticed_while_udp_passes(cable, start, what, way):
    members = start(what, heartbeat=SHORT, seconds=LONGEST)
    if what == "stream":
        members[0].hear("count")
    else:
        time.sleep(2)  # until buffers are full, and the connection is idle
    since = time.monotonic()
    cable.set(refuses=way)
    for words in noticed(members, since, SHORT):
        named = words["cause"] in ("cut", "peer_reported")
        assert not named or what == "stream" or "firewall" in words["words"], words


def test_cut_udp_is_noticed_while_tcp_passes(cable, start):
    members = start("stream", heartbeat=SHORT)
    members[0].hear("count")
    cable.set(refuses=([UDP], [UDP]))
    assert "heartbeat" in {member.hear(broken="w")["cause"] for member in members}


@pytest.fixture
def proxied():
    """A proxy, and members whose connection goes through it."""
    with contextlib.ExitStack() as ends:
        at = free_port()
        proxy = ends.enter_context(FaultProxy(at))

        def go(what, **options):
            options |= {"what": what, "size": 2, "times": 1, "heartbeat": SHORT, "addr": "127.0.0.1"}
            members = [Member((), rank=rank, port=number, **options) for rank, number in enumerate((at, proxy.port))]
            for member in members:
                ends.callback(member.close)
            for member in members:
                member.hear(made=0)
            return proxy, members

        yield go


@pytest.mark.parametrize("hold", ["takes", "deaf"])
def test_proxy_that_holds_the_connection_is_noticed(proxied, hold):
    """It confirms what it gets, at first at least, and passes nothing on: both kernels see a healthy connection."""
    proxy, members = proxied("stream")
    members[0].hear("count")
    since, proxy.hold = time.monotonic(), hold
    noticed(members, since, SHORT)


def test_proxy_that_stops_in_the_middle_of_a_message_is_noticed(proxied):
    proxy, members = proxied("unread", seconds=1.0)
    since, proxy.hold = time.monotonic(), "deaf"
    noticed(members, since, SHORT)


@pytest.mark.parametrize("what", ["unread", "small unread"])
def test_member_that_does_not_read_is_no_cut(cable, start, what):
    first, second = start(what, seconds=UNREAD)
    assert quiet(first, "same")["same"]
    assert not [words for words in second.said if "broken" in words]


def test_member_that_is_stopped_again_and_again_is_no_cut(cable, start):
    """Each time for less than its heartbeat; it does not read for longer than a connection may be silent."""
    first, _ = start("unread", heartbeat=LENIENT, seconds=3 * LENIENT)
    until = time.monotonic() + 3 * LENIENT
    while time.monotonic() < until:
        first.kill(signal.SIGSTOP)
        time.sleep(LENIENT / 3)
        first.kill(signal.SIGCONT)
        time.sleep(LENIENT / 4)
    assert quiet(first, "swapped") == {"swapped": LARGE, "same": True}


def test_members_that_do_not_read_each_other_through_a_proxy_are_no_cut(proxied):
    _, members = proxied("both unread", seconds=UNREAD)
    for member in members:
        assert quiet(member, "swapped") == {"swapped": LARGE, "same": True}


@pytest.fixture
def busy():
    """Keep the processors busy."""
    with contextlib.ExitStack() as ends:

        def go(count):
            for _ in range(count):
                spinning = subprocess.Popen([sys.executable, "-c", "while True: pass"])
                ends.callback(spinning.wait)
                ends.callback(spinning.kill)

        yield go


def test_members_under_load_are_not_cut(cable, start, busy):
    first, _ = start("stream")
    busy(SPINNING)
    until = time.monotonic() + LOADED
    while time.monotonic() < until:
        quiet(first, "count")


def test_member_that_does_not_read_under_load_is_no_cut(cable, start, busy):
    busy(SPINNING)
    first, _ = start("unread", seconds=LOADED)
    assert quiet(first, "swapped") == {"swapped": LARGE, "same": True}
