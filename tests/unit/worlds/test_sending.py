"""Large frames are sent by a thread: nothing is lost or changed, and nobody waits for them who need not."""

import asyncio
import fcntl
import os
import random
import threading

import numpy as np
import pytest

from ms_recover.errors import BrokenWorldError
from ms_recover.worlds.link import _LARGE, Link

pytestmark = pytest.mark.processes  # every world has a helper process
LARGER = 100_000_000
"""Bytes that no connection takes while its peer does not read."""


def threads():
    return [one for one in threading.enumerate() if one.name == "large frames"]


@pytest.mark.parametrize("non_blocking", [False, True])
def test_large_and_small_messages_arrive_in_order_and_unchanged_both_ways(together, monkeypatch, non_blocking):
    """Also when the event loop makes sockets non-blocking, as uvloop does when it watches one."""
    start = Link.start

    def made_non_blocking(made):
        start(made)
        flags = fcntl.fcntl(made._descriptor, fcntl.F_GETFL)
        fcntl.fcntl(made._descriptor, fcntl.F_SETFL, flags | os.O_NONBLOCK)

    if non_blocking:
        monkeypatch.setattr(Link, "start", made_non_blocking)
    lengths = [1, _LARGE - 1, _LARGE, 5, _LARGE + 1, 4 * _LARGE, 0, 1_000_000, 1_000_000] * 2
    random.Random(1).shuffle(lengths)
    sent = [np.random.default_rng(number).bytes(length) for number, length in enumerate(lengths)]

    async def work(manager, rank):
        c = manager.communicator
        sending = asyncio.gather(*(c.send(one, 1 - rank, world="w") for one in sent))
        got = [bytes(await c.recv(1 - rank, world="w")) for _ in sent]
        await sending
        return got == sent

    assert together(work) == [True, True]
    assert not threads()


def test_small_messages_pass_while_large_ones_wait_for_their_receivers(together):
    """Members 1 and 2 receive the large messages only after all small ones have gone to and fro."""
    passed = asyncio.Event()

    async def work(manager, rank):
        c = manager.communicator
        if rank == 0:
            large = [asyncio.ensure_future(c.send(np.full(LARGER, rank, np.uint8), rank, world="w")) for rank in (1, 2)]
            for number in range(100):
                await c.send(np.array([number]), 3, world="w")
                assert (await c.recv(3, world="w"))[0] == number
            assert not any(one.done() for one in large)
            passed.set()
            return await asyncio.gather(*large)
        if rank == 3:
            for _ in range(100):
                await c.send(await c.recv(0, world="w"), 0, world="w")
            return None
        await passed.wait()
        return (await c.recv(0, world="w") == rank).all()

    assert together(work, 4)[1:] == [True, True, None]
    assert not threads()


def test_a_member_that_takes_the_last_byte_and_leaves_breaks_no_send(together, monkeypatch):
    """It may be gone before the event loop hears from the thread that the kernel has taken all."""
    monkeypatch.setattr(Link, "_large_ended", lambda made, views: None)

    async def work(manager, rank):
        c = manager.communicator
        if rank:
            return len(await c.recv(0, world="w"))
        await c.send(np.zeros(LARGER, np.uint8), 1, world="w")
        return c.is_broken("w")

    assert together(work) == [False, LARGER]


@pytest.mark.parametrize("how", ["cancel", "time limit", "peer leaves", "leave"])
def test_no_thread_is_left_of_a_send_that_waits(together, how):
    """However the send ends that waits for a receiver, its error comes soon and its memory is the caller's again."""
    waiting = asyncio.Event()

    async def work(manager, rank):
        c = manager.communicator
        if rank:
            await waiting.wait()
            while how in ("cancel", "time limit") and not c.is_broken("w"):
                await asyncio.sleep(0.01)
            return
        array = np.zeros(LARGER, np.uint8)
        sending = asyncio.ensure_future(c.send(array, 1, world="w", timeout=0.5 if how == "time limit" else None))
        await asyncio.sleep(0.1)
        assert len(threads()) == 1
        waiting.set()
        if how == "cancel":
            sending.cancel()
        if how == "leave":
            leaving = asyncio.ensure_future(manager.remove_world("w"))
        with pytest.raises((BrokenWorldError, asyncio.CancelledError)):
            await sending
        if how == "leave":
            await leaving
        assert not threads()

    together(work, limit=60)
