"""Waiting for an answer on the connection itself: by looks where they help, by the kernel where they do not."""

import asyncio
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
        self.state, self.frames = self, 0

    def apply(self, nothing):
        pass

    def header_received(self, peer, header):
        self.frames += 1
        self.link.fill(memoryview(bytearray(header.length)))

    def payload_received(self, peer):
        pass


FRAME = link.wire.encode(link.Header(link.FrameKind.MESSAGE, "uint8", (1,), bytes(8), 0, 0, 0, 0, 1, 0)) + b"x"


@pytest.fixture
def linked():
    """Run `work(link, reads, the other end)` in an event loop."""

    def run(work):
        async def main():
            ours, theirs = socket.socketpair()
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
        for count in range(1, 4):
            other.sendall(FRAME)
            made.poll(lambda count=count: reads.frames == count)
            assert reads.frames == count
        assert made._looks.left_out == 0

    linked(work)


def test_looks_in_vain_are_left_out_more_and_more_until_one_helps(linked, monkeypatch):
    attempts, read_until, polls = {False: [], True: []}, Link._read_until, []

    def recorded(made, *args, wait):
        attempts[wait].append(len(polls))
        return read_until(made, *args, wait=wait)

    monkeypatch.setattr(Link, "_read_until", recorded)

    def work(made, reads, other):
        for poll in range(200):
            made.poll(lambda: False)
            polls.append(poll)
        assert attempts[False] == attempts[True] == [0, 2, 6, 14, 30, 62, 126, 190]
        assert made._looks.left_out > 0
        assert made._waits.left_out > 0
        made._looks.left_out = 0
        other.sendall(FRAME)
        made.poll(lambda: reads.frames == 1)
        assert made._looks.left_out == 0

    linked(work)


def test_the_kernel_waits_while_the_peer_works(linked, monkeypatch):
    """The wait ends as the answer comes, not later."""
    monkeypatch.setattr(link, "_WAIT_S", 30.0)

    def work(made, reads, other):
        answering = threading.Timer(0.1, other.sendall, [FRAME])
        answering.start()
        began, used = time.monotonic(), time.thread_time()
        made._looks.left_out = 1
        made.poll(lambda: reads.frames == 1)
        answering.join()
        assert reads.frames == 1
        assert time.monotonic() - began < 20
        assert time.thread_time() - used < 0.05

    linked(work)


def test_a_wait_ends_with_the_connection(linked, monkeypatch):
    monkeypatch.setattr(link, "_WAIT_S", 30.0)

    def work(made, reads, other):
        reads.lost = lambda peer, cause, words: made.close()
        other.close()
        made._looks.left_out = 1
        made.poll(lambda: False)
        assert made.closed

    linked(work)
