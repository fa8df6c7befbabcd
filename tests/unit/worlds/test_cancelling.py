"""Receives that are cancelled, at every moment: no message is lost, none comes twice or too early."""

import asyncio
import random

import numpy as np
import pytest

from ms_recover.errors import BrokenWorldError

pytestmark = pytest.mark.processes  # every world has a helper process
LARGE = 3_000_000


async def cancel_when_delivered(manager, *receives):
    """Cancel receives when a message is there and its task has not run yet."""
    world = manager._worlds["w"]
    tasks = [asyncio.ensure_future(receive) for receive in receives]
    loop, done = asyncio.get_running_loop(), asyncio.Event()

    def look():
        if len(world._operations) == len(tasks) and any(one.ended for one in world._operations.values()):
            for task in tasks:
                assert task.cancel()
            done.set()
        else:
            loop.call_soon(look)

    loop.call_soon(look)
    await done.wait()
    for task in tasks:
        with pytest.raises(asyncio.CancelledError):
            await task


@pytest.mark.parametrize("length", [1, LARGE])
@pytest.mark.parametrize("given", [True, False])
def test_a_receive_cancelled_as_its_message_comes_leaves_it_to_the_next(together, length, given):
    async def work(manager, rank):
        c = manager.communicator
        if rank:
            await c.barrier(world="w")
            for number in range(4):
                await c.send(np.full(length, number), 0, world="w")
            return None
        out = np.zeros(length, np.int64) if given else None
        cancelled = asyncio.ensure_future(cancel_when_delivered(manager, c.recv(1, world="w", out=out)))
        await asyncio.sleep(0)
        await c.barrier(world="w", tag=0)
        await cancelled
        if given:
            out[:] = -1  # the memory belongs to the caller again
        return [int((await c.recv(1, world="w"))[-1]) for _ in range(4)]

    # the barrier's own receives are operations as well: the messages come after it
    assert together(work)[0] == [0, 1, 2, 3]


def test_several_receives_cancelled_together_leave_their_messages_in_order(together):
    async def work(manager, rank):
        c = manager.communicator
        if rank:
            await c.barrier(world="w")
            for number in range(5):
                await c.send(np.array([number]), 0, world="w")
            return None
        receives = [c.recv(1, world="w") for _ in range(3)]
        cancelled = asyncio.ensure_future(cancel_when_delivered(manager, *receives))
        await asyncio.sleep(0)
        await c.barrier(world="w")  # no message comes before the receives are there
        await cancelled
        return [int((await c.recv(1, world="w"))[0]) for _ in range(5)]

    assert together(work)[0] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("given", [True, False])
def test_a_receive_cancelled_in_the_middle_of_its_message_leaves_it_to_the_next(together, given):
    async def work(manager, rank):
        c = manager.communicator
        sent = np.random.default_rng(0).standard_normal(LARGE)
        if rank:
            await c.send(sent, 0, world="w")
            await c.send(-sent, 0, world="w")
            return None
        out = np.zeros(LARGE) if given else None
        receiving = asyncio.ensure_future(c.recv(1, world="w", out=out))
        link = manager._worlds["w"]._links[1]
        while link._target is None or len(link._target) > 20_000_000:
            await asyncio.sleep(0)
        assert len(link._target) > 0
        receiving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await receiving
        if given:
            out[:] = 0
        assert np.array_equal(await c.recv(1, world="w"), sent)
        assert np.array_equal(await c.recv(1, world="w"), -sent)
        return not given or not out.any()

    assert together(work)[0]


@pytest.mark.parametrize("uvloop", [False, True])
def test_polling_with_short_time_limits_loses_nothing(together, uvloop):
    if uvloop:
        pytest.importorskip("uvloop").install()
    count, chance = 150, random.Random(1)
    lengths = [chance.choice([1, 1, 5000, 300_000]) for _ in range(count)]

    async def work(manager, rank):
        c = manager.communicator
        if rank:
            for number, length in enumerate(lengths):
                await c.send(np.full(length, number), 0, world="w")
                await asyncio.sleep(0.001 * (number % 3))
            await c.barrier(world="w")
            return None
        got, missed = [], 0
        while len(got) < count:
            try:
                got.append(await asyncio.wait_for(c.recv(1, world="w"), 0.0007))
            except asyncio.TimeoutError:
                missed += 1
        assert [(len(one), int(one[0]), int(one[-1])) for one in got] == [
            (length, number, number) for number, length in enumerate(lengths)
        ]
        await c.barrier(world="w")
        return missed

    try:
        assert together(work)[0] > 10
    finally:
        asyncio.set_event_loop_policy(None)


def test_a_send_that_is_done_as_it_is_cancelled_breaks_nothing(together):
    async def work(manager, rank):
        c = manager.communicator
        if rank:
            await asyncio.sleep(0.1)
            assert len(await c.recv(0, world="w")) == LARGE
            await c.barrier(world="w")
            return True
        world = manager._worlds["w"]
        sending = asyncio.ensure_future(c.send(np.zeros(LARGE), 1, world="w"))
        await asyncio.sleep(0)
        (outgoing,) = world._links[1]._queue
        sent = outgoing.sent
        outgoing.sent = lambda: (sent(), sending.cancel())
        with pytest.raises(asyncio.CancelledError):
            await sending
        await c.barrier(world="w")
        return not c.is_broken("w")

    assert together(work) == [True, True]


def test_a_send_cancelled_in_the_middle_breaks_the_world(together):
    async def work(manager, rank):
        c = manager.communicator
        if rank == 0:
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(c.send(np.zeros(30 * LARGE), 1, world="w"), 0.2)
            return c.is_broken("w")
        await asyncio.sleep(0.5)
        with pytest.raises(BrokenWorldError):
            await c.recv(0, world="w")
        return True

    assert together(work) == [True, True]


def test_a_receive_with_another_tag_neither_breaks_the_world_nor_holds_all_messages(together):
    count, length = 200, 1 << 20

    async def work(manager, rank):
        c = manager.communicator
        if rank:
            sent = 0

            async def flood():
                nonlocal sent
                for number in range(count):
                    await c.send(np.full(length, number, np.uint8), 0, world="w", tag=1)
                    sent += 1

            flooding = asyncio.ensure_future(flood())
            await asyncio.sleep(1.5)
            held = sent
            await flooding
            await c.send(np.zeros(1), 0, world="w", tag=2)
            return held
        waiting = asyncio.ensure_future(c.recv(1, world="w", tag=2))
        await asyncio.sleep(2)
        assert not waiting.done()
        for number in range(count):
            assert (await c.recv(1, world="w", tag=1) == number).all()
        return len(await waiting)

    done, held = together(work)
    assert done == 1
    assert held < 90  # 64 MiB, and the buffers of the kernel
