"""MultiWorld's names, order of arguments and in-place results, as its examples use them."""

import asyncio

import numpy as np
import pytest

from ms_recover.errors import BrokenWorldError, UsageError
from ms_recover.worlds.multiworld import BrokenWorldException, ReduceOp, WorldManager

pytestmark = pytest.mark.processes  # every world has a helper process


@pytest.fixture
def members(port):
    """Run ``work(manager, rank)`` on all members of a world "world1", in one event loop."""

    def run(work, size=2):
        async def main():
            at = port()

            async def member(rank):
                manager = WorldManager()
                try:
                    await manager.initialize_world("world1", rank, size, backend="gloo", addr="127.0.0.1", port=at)
                    return await work(manager, rank)
                finally:
                    await manager.cleanup()

            done = await asyncio.wait_for(asyncio.gather(*map(member, range(size))), 120)
            assert len(asyncio.all_tasks()) == 1
            return done

        return asyncio.run(main())

    return run


def test_collectives_fill_the_tensors_they_are_given_as_in_multiworld(members):
    async def work(manager, rank):
        c, size = manager.communicator, 3
        one = np.full(3, rank + 1.0)
        assert await c.all_reduce(one, ReduceOp.SUM, "world1") is None
        assert one.tolist() == [6.0] * 3
        one = np.full(3, rank + 1.0)
        await c.reduce(one, 1, ReduceOp.PRODUCT, "world1")
        assert one.tolist() == ([6.0] * 3 if rank == 1 else [rank + 1.0] * 3)
        one = np.full(3, float(rank))
        await c.broadcast(one, 2, "world1")
        assert one.tolist() == [2.0] * 3
        own, outs = np.full(3, float(rank)), [np.empty(3) for _ in range(size)]
        await c.all_gather(outs, own, "world1")
        assert [out.tolist() for out in outs] == [[float(r)] * 3 for r in range(size)]
        outs = [np.empty(3) for _ in range(size)]
        await c.gather(own, outs if rank == 1 else None, 1, "world1")
        assert rank != 1 or [out.tolist() for out in outs] == [[float(r)] * 3 for r in range(size)]
        given, out = [np.full(2, r * 10.0) for r in range(size)], np.empty(2)
        await c.scatter(out, given if rank == 0 else None, 0, "world1")
        assert out.tolist() == [rank * 10.0] * 2
        assert c.is_broken("world2")
        assert not c.is_broken("world1")

    members(work, 3)


def test_send_and_receive_take_the_rank_and_then_the_world(members):
    async def work(manager, rank):
        c, got = manager.communicator, np.zeros(1)
        if rank == 1:
            await c.send(np.ones(1), 0, "world1")
            await c.send(np.ones(1), dst=0)
        else:
            await c.recv(got, 1, "world1")
            await c.recv(got, src=1)
        return got.tolist()

    assert members(work)[0] == [1.0]


def test_tensors_that_do_not_fit_are_refused(members):
    async def work(manager, rank):
        c = manager.communicator
        with pytest.raises(UsageError, match="1 tensors to fill for 2 members of world 'world1'"):
            await c.all_gather([np.zeros(1)], np.zeros(1), "world1")
        with pytest.raises(UsageError, match="0 tensors to fill"):
            await c.gather(np.zeros(1), None, rank, "world1")
        with pytest.raises(UsageError, match=r"float64 \(1,\) came for a tensor of float64 \(2,\)"):
            await c.all_gather([np.zeros(2)] * 2, np.zeros(1), "world1")
        with pytest.raises(UsageError, match="there is no world 'world2'"):
            await c.all_reduce(np.zeros(1), ReduceOp.SUM, "world2")
        assert not c.is_broken("world1")

    members(work)


def test_a_world_is_removed_without_waiting_and_its_name_used_again_at_once(members, port):
    again = port()

    async def work(manager, rank):
        if rank == 0:
            manager.remove_world("world1")
            with pytest.raises(ValueError, match="there is no world 'world1'"):
                manager.remove_world("world1")
        else:
            with pytest.raises(BrokenWorldException, match="world 'world1'"):
                await manager.communicator.recv(np.zeros(1), 0, "world1")
            assert BrokenWorldException is BrokenWorldError
        await manager.initialize_world("world1", rank, 2, "gloo", "127.0.0.1", again, 60)
        one = np.ones(1)
        await manager.communicator.all_reduce(one)
        return one.tolist()

    assert members(work) == [[2.0]] * 2


def test_a_backend_of_device_links_and_a_missing_watchdog_are_answered_once(caplog, port):
    async def main():
        manager = WorldManager(enable_monitor=False)
        for name in ("a", "b"):
            await manager.initialize_world(name, 0, 1, backend="nccl", port=port())
        with pytest.raises(UsageError, match=r"in 2 worlds \('a', 'b'\): name the one that is meant"):
            await manager.communicator.send(np.zeros(1), 0)
        with pytest.raises(ValueError, match="world 'a' exists already"):
            await manager.initialize_world("a", 0, 1, port=port())
        with pytest.raises(UsageError, match="invalid port -1"):
            await manager.initialize_world("c", 0, 2)
        await manager.cleanup()

    asyncio.run(main())
    words = [record.getMessage() for record in caplog.records]
    assert len(words) == 2
    assert "always watched" in words[0]
    assert "backend nccl is not used: worlds carry host memory over TCP" in words[1]
