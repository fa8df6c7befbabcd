"""Leaving in good order: what was sent before arrives, whatever the other side has sent or tries to send."""

import asyncio
import time

import numpy as np
import pytest

from ms_recover.errors import BrokenWorldError
from ms_recover.worlds import manager

pytestmark = pytest.mark.processes  # every world has a helper process
COUNT = 20


async def receive_all(c, src, lengths, **options):
    for number, length in enumerate(lengths):
        got = await c.recv(src, world="w", **options)
        assert (len(got), got[0], got[-1]) == (length, number, number)
    with pytest.raises(BrokenWorldError) as caught:
        await c.recv(src, world="w", **options)
    assert (caught.value.rank, caught.value.cause in ("closed", "peer_reported")) == (src, True)


@pytest.mark.parametrize("end", [True, False], ids=["end", "remove"])
@pytest.mark.parametrize("length", [1, 30_000])
@pytest.mark.parametrize("first", ["send", "receive"])
def test_what_was_sent_arrives_although_the_one_who_left_has_unread_data(together, end, length, first):
    """The other side learns of the departure by a send that fails, or by its receives."""

    async def work(made, rank):
        c = made.communicator
        if rank:
            await c.barrier(world="w")
            for number in range(3):
                await c.send(np.full(length, number), 0, world="w", tag=1)
            if not end:
                await made.remove_world("w")
            return
        for _ in range(COUNT):
            await c.send(np.zeros(1000), 1, world="w", tag=2)  # nobody receives them
        await c.barrier(world="w")
        await asyncio.sleep(0.2)
        if first == "send" and length == 1:
            with pytest.raises(BrokenWorldError) as caught:
                await c.send(np.zeros(10_000), 1, world="w", tag=2)
            assert (caught.value.rank, caught.value.cause) == (1, "closed")
        elif first == "send":  # the announcement comes behind messages that are not read yet
            await c.send(np.zeros(10_000), 1, world="w", tag=2)
        await receive_all(c, 1, [length] * 3, tag=1)
        assert c.is_broken("w")

    together(work, limit=20)


def test_what_was_sent_arrives_although_a_receive_with_another_tag_waits(together):
    async def work(made, rank):
        c = made.communicator
        if rank:
            for number in range(3):
                await c.send(np.full(50_000, number), 0, world="w")
            return
        with pytest.raises(BrokenWorldError, match="rank 1 has left"):
            await c.recv(1, world="w", tag=5)
        await receive_all(c, 1, [50_000] * 3)

    together(work, limit=20)


@pytest.mark.parametrize("length", [10, 100_000])
def test_what_was_sent_arrives_although_a_third_member_breaks_the_world_first(together, length):
    async def work(made, rank):
        c = made.communicator
        if rank == 0:
            await c.send(np.zeros(length), 2, world="w")
            return
        await asyncio.sleep(0.2)
        if rank == 1:
            with pytest.raises(BrokenWorldError):
                await c.send(np.zeros(1), 0, world="w")
        else:
            while not c.is_broken("w"):
                await asyncio.sleep(0.01)
            await receive_all(c, 0, [length])

    together(work, 3, limit=20)


@pytest.mark.parametrize("begun", [True, False])
def test_a_send_that_waits_when_its_member_leaves_fails_and_no_changed_byte_arrives(together, begun, monkeypatch):
    """Its memory belongs to the caller again, who writes into it; the message that had begun may arrive as it was."""
    monkeypatch.setattr(manager, "_LINGER_S", 60.0)

    async def work(made, rank):
        c = made.communicator
        if rank == 0:
            await c.send(np.zeros(1), 1, world="w")
            big = np.full(2_000_000 if begun else 1000, 7.0)
            if not begun:  # the connection is full of another message
                other = asyncio.ensure_future(c.send(np.full(2_000_000, 7.0), 1, world="w"))
                await asyncio.sleep(0.1)
            sending = asyncio.ensure_future(c.send(big, 1, world="w"))
            await asyncio.sleep(0.1)
            leaving = asyncio.ensure_future(made.remove_world("w"))
            with pytest.raises(BrokenWorldError):
                await sending
            big[:] = -1
            if not begun:
                with pytest.raises(BrokenWorldError):
                    await other
            await leaving
            return None
        await asyncio.sleep(0.5)
        assert (await c.recv(0, world="w")).tolist() == [0]
        got = await c.recv(0, world="w")
        assert (got == 7).all()
        with pytest.raises(BrokenWorldError, match="rank 0 has left"):
            await c.recv(0, world="w")
        return len(got)

    assert together(work, limit=20)[1] == 2_000_000


def test_leaving_does_not_wait_for_a_member_that_receives_nothing(together):
    async def work(made, rank):
        c = made.communicator
        if rank:
            await asyncio.sleep(1)
            assert len(await c.recv(0, world="w")) == 10_000
            return 0.0
        await c.send(np.zeros(10_000), 1, world="w")
        began = time.monotonic()
        await made.remove_world("w")
        return time.monotonic() - began

    assert together(work, limit=20)[0] < 0.9
