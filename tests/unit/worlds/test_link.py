"""Waiting for an answer on the connection itself: by looks where they help, by the kernel where they do not."""

import asyncio
import os
import select
import socket
import threading
import time

import pytest

from ms_recover.worlds import link
from ms_recover.worlds.link import Link


class Reads:
    """State and shell in one: the frames that a link has read."""

    def __init__(self):
        self.state, self.frames, self.wanted = self, 0, 0

    @property
    def ended(self):
        return self.frames == self.wanted

    def apply(self, nothing):
        pass

    def header_received(self, peer, header, whole):
        self.frames += 1
        self.link.fill(memoryview(bytearray(header.length)))

    def payload_received(self, peer):
        pass


FRAME = link.wire.encode(link.Header(link.FrameKind.MESSAGE, "uint8", (1,), bytes(8), 0, 0, 0, 0, 1, 0)) + b"x"


@pytest.fixture
def linked():
    """Run `work(link, reads, the other end)` in an event loop."""

    def run(work, given=None):
        async def main():
            ours, theirs = socket.socketpair()
            if given is not None:
                ours.close()
                ours = given
            ours.setblocking(False)
            with theirs:
                reads = Reads()
                reads.link = Link(ours, 1, reads)
                try:
                    return work(reads.link, reads, theirs)
                finally:
                    reads.link.close()

        return asyncio.run(main())

    return run


def test_an_answer_that_is_there_is_read_without_a_wait(linked, monkeypatch):
    monkeypatch.setattr(select, "select", None)

    def work(made, reads, other):
        for reads.wanted in range(1, 4):
            other.sendall(FRAME)
            assert made.poll(reads)
            assert reads.frames == reads.wanted
        assert made._looks.left_out == 0

    linked(work)


@pytest.fixture
def connection():
    """Two ends of a connection over TCP; the first is no longer needed when a link has it."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = socket.create_connection(server.getsockname())
        theirs, _ = server.accept()
    with ours, theirs:
        yield ours, theirs


def fill(sock):
    """Send to a peer that does not read until nothing goes."""
    with pytest.raises(BlockingIOError):
        while True:
            sock.send(bytes(link._BUFFER))


@pytest.mark.parametrize(("heartbeat", "idle"), [(0.2, 1), (3.0, 1), (60.0, 20), (4e6, 32767)])
def test_a_link_is_kept_alive_and_a_peer_that_does_not_read_is_no_cut(linked, connection, heartbeat, idle):
    ours, _ = connection

    def work(made, reads, other):
        assert made.look(heartbeat, 1000.0, 0) == ""
        fill(ours)
        for at in range(1001, 1010):
            assert made.look(heartbeat, float(at), 0) == ""
        assert ours.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert ours.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == idle
        assert made._ends().startswith(" between 127.0.0.1 port ")

    linked(work, ours)


def test_bytes_that_do_not_come_are_missed(linked, connection):
    """The peer says that it has passed one more than came."""

    def work(made, reads, other):
        said = [made.look(1.0, 1000 + 0.2 * number, 1) for number in range(60)]
        assert not any(said[:14])
        assert said[-1] == ""  # the kernel knows that it has not waited for so long
        time.sleep(3)
        assert "have not come" in made.look(1.0, 1020.0, 1)

    linked(work, connection[0])


def test_a_connection_that_the_kernel_gives_up_is_cut(linked, connection):
    """Linux gives up here because the peer does not read: it is told to wait for 100 ms."""
    ours, _ = connection
    causes = []

    def work(made, reads, other):
        reads.lost = lambda peer, cause, words: causes.append((cause, words))
        ours.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 100)
        fill(ours)
        assert select.select([ours], [], [], 60)[0]
        made._read_once()

    linked(work, ours)
    assert causes[0][0] == "cut"
    assert "firewall" in causes[0][1]


def recorded(monkeypatch):
    """Return the attempts that links make from now on: the seconds of looks, and "wait"."""
    attempts, look, wait = [], Link._look, Link._wait
    monkeypatch.setattr(Link, "_look", lambda made, *args: attempts.append(args[-1]) or look(made, *args))
    monkeypatch.setattr(Link, "_wait", lambda made, *args: attempts.append("wait") or wait(made, *args))
    return attempts


def test_looks_in_vain_are_left_out_more_and_more_until_one_helps(linked, monkeypatch):
    attempts, looked, waited = recorded(monkeypatch), [], []

    def work(made, reads, other):
        reads.wanted = 1
        for poll in range(200):
            assert not made.poll(reads)
            looked.extend([poll] * (link._LOOK_S in attempts))
            waited.extend([poll] * ("wait" in attempts))
            attempts.clear()
        assert looked == waited == [0, 2, 6, 14, 30, 62, 126, 190]
        assert made._looks.left_out > 0
        assert made._waits.left_out > 0
        made._looks.left_out = 0
        other.sendall(FRAME)
        assert made.poll(reads)
        assert made._looks.left_out == 0

    linked(work)


def test_a_peer_on_this_core_is_waited_for_without_a_look(linked, monkeypatch):
    attempts = recorded(monkeypatch)

    def work(made, reads, other):
        reads.wanted = 1
        monkeypatch.setattr(made, "_is_apart", lambda: False)
        assert not made.poll(reads)
        assert attempts == [0.0, "wait"]  # only whether the answer is there already
        monkeypatch.setattr(made, "_is_apart", lambda: True)
        looked = 0
        while link._LOOK_S not in attempts:
            made.poll(reads)
            looked += 1
        assert looked == link._TOGETHER + 1

    linked(work)


@pytest.mark.skipif(link._own_core is None, reason="the C library does not know on which core a process runs")
def test_a_link_knows_whether_bytes_come_from_another_core(linked):
    cores = os.sched_getaffinity(0)
    with socket.create_server(("127.0.0.1", 0)) as server:
        theirs = socket.create_connection(server.getsockname())
        ours, _ = server.accept()

    def work(made, reads, other):
        for here in cores:
            os.sched_setaffinity(0, {here})
            theirs.sendall(FRAME)
            assert select.select([ours], [], [], 30)[0]
            ours.recv(len(FRAME))
            for there in cores:
                os.sched_setaffinity(0, {there})
                assert made._is_apart() == (here != there)

    try:
        with theirs:
            linked(work, ours)
    finally:
        os.sched_setaffinity(0, cores)


def test_the_kernel_waits_while_the_peer_works(linked, monkeypatch):
    """The wait ends as the answer comes, not later."""
    monkeypatch.setattr(link, "_WAIT_S", 30.0)

    def work(made, reads, other):
        reads.wanted = 1
        answering = threading.Timer(0.1, other.sendall, [FRAME])
        answering.start()
        began, used = time.monotonic(), time.thread_time()
        made._looks.left_out = 1
        assert made.poll(reads)
        answering.join()
        assert time.monotonic() - began < 20
        assert time.thread_time() - used < 0.05

    linked(work)


def test_a_wait_ends_with_the_connection(linked, monkeypatch):
    monkeypatch.setattr(link, "_WAIT_S", 30.0)

    def work(made, reads, other):
        reads.wanted = 1
        reads.lost = lambda peer, cause, words: made.close()
        other.close()
        made._looks.left_out = 1
        assert not made.poll(reads)
        assert made.closed

    linked(work)
