import asyncio

import numpy as np
import pytest

from ms_recover.errors import BrokenWorldError, UsageError
from ms_recover.worlds import SyncWorldManager, WorldManager
from ms_recover.worlds.link import Link

pytestmark = pytest.mark.processes  # every world has a helper process

SIZES = (1, 2, 3, 5)


def test_messages_keep_their_order_type_and_shape(together):
    sent = [np.arange(6, dtype=np.int16).reshape(2, 3), np.float64(2.5), np.zeros((0, 4)), np.ones(100_000)]

    async def work(manager, rank):
        c = manager.communicator
        if rank == 0:
            for array in sent:
                await c.send(array, 1, world="w")
            return None
        return [await c.recv(0, world="w") for _ in sent]

    for array, came in zip(sent, together(work)[1], strict=True):
        assert (came.dtype, came.shape) == (array.dtype, array.shape)
        assert np.array_equal(came, array)


@pytest.mark.parametrize("length", [10, 1_000_000])
def test_tags_are_streams_of_their_own(together, length):
    async def work(manager, rank):
        c = manager.communicator
        if rank == 0:
            for tag in (3, 1, 2, 1):
                await c.send(np.full(length, tag), 1, world="w", tag=tag)
            return None
        return [int((await c.recv(0, world="w", tag=tag))[-1]) for tag in (1, 1, 2, 3)]

    assert together(work)[1] == [1, 1, 2, 3]


def test_receive_fills_the_given_array(together):
    async def work(manager, rank):
        c = manager.communicator
        if rank == 0:
            await c.send(np.arange(1e6), 1, world="w")
            await c.send(np.arange(3.0), 1, world="w")
            return None
        out, small = np.empty(1_000_000), np.empty(3)
        assert await c.recv(0, world="w", out=out) is out
        await asyncio.sleep(0.05)  # the small one is kept meanwhile
        assert await c.recv(0, world="w", out=small) is small
        return out[-1], small.tolist()

    assert together(work)[1] == (999_999, [0, 1, 2])


def test_the_order_of_arguments_of_torch_and_mint_distributed_works(together):
    async def work(manager, rank):
        c, got = manager.communicator, []
        if rank == 0:
            for number in range(6):
                await c.send(np.array([number]), 1, "w", 5 if number == 4 else 0)
            await c.broadcast(np.array([6]), 0, "w")
            return None
        out = np.zeros(1, int)
        for receive in (
            lambda: c.recv(out, 0, "w"),
            lambda: c.recv(out, src=0),
            lambda: c.recv(tensor=out, src=0, world="w"),
            lambda: c.recv(src=0, world="w", out=out),
            lambda: c.recv(out, 0, None, 5),
            lambda: c.recv(np.int64(0)),
            lambda: c.broadcast(out, 0, "w"),
        ):
            got.append(int((await receive())[0]))
        for wrong in (
            lambda: c.recv(out),
            lambda: c.recv(0, "w"),
            lambda: c.recv(0, out),
            lambda: c.recv(out, 0, "w", out=out),
            lambda: c.recv(1.5, 0),
            lambda: c.recv(True),
            lambda: c.recv(out, False),
        ):
            with pytest.raises(UsageError):
                await wrong()
        return got

    assert together(work)[1] == [0, 1, 2, 3, 4, 5, 6]


def test_out_of_another_shape_breaks_the_world_on_both_sides(together):
    async def work(manager, rank):
        c = manager.communicator
        with pytest.raises(BrokenWorldError) as caught:
            if rank == 0:
                await c.send(np.zeros(4), 1, world="w")
                await c.recv(1, world="w")
            await c.recv(0, world="w", out=np.zeros(5))
        assert c.is_broken("w")
        return caught.value.cause

    assert together(work) == ["peer_reported", "protocol"]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("elements", [0, 1, 7, 700_000])
def test_collectives_give_the_right_results_on_worlds_of_every_size(together, size, elements):
    async def work(manager, rank):
        c = manager.communicator
        mine = np.arange(elements, dtype=np.float64) + rank
        before = mine.copy()
        base, ranks = np.arange(elements, dtype=np.float64), np.arange(size)
        for op, function in (("sum", np.sum), ("prod", np.prod), ("max", np.max), ("min", np.min)):
            want = function(base[None] + ranks[:, None], axis=0)
            assert np.allclose(await c.all_reduce(mine, op, world="w"), want)
            root = (size - 1) // 2
            reduced = await c.reduce(mine, root, op, world="w")
            assert (reduced is None) == (rank != root)
            assert rank != root or np.allclose(reduced, want)
        assert np.array_equal(mine, before)
        for root in {0, size - 1}:
            got = await c.broadcast(mine if rank == root else None, root, world="w")
            assert np.array_equal(got, base + root)
            given = mine.copy() if rank == root else np.empty(elements)
            assert await c.broadcast(given, root, world="w") is given
            assert np.array_equal(given, base + root)
            gathered = await c.gather(mine, root, world="w")
            assert rank != root or all(np.array_equal(one, base + r) for r, one in enumerate(gathered))
            parts = [np.full(3, r) for r in range(size)] if rank == root else None
            assert (await c.scatter(parts, root, world="w")).tolist() == [rank] * 3
        assert [len(one) for one in await c.all_gather(np.zeros(rank), world="w")] == list(range(size))
        came = await c.all_to_all([np.array([rank, r]) for r in range(size)], world="w")
        assert [one.tolist() for one in came] == [[r, rank] for r in range(size)]
        assert await c.all_reduce(mine, world="w", out=mine) is mine
        assert np.allclose(mine, base * size + sum(ranks))
        await c.barrier(world="w")

    together(work, size)


def test_all_members_get_the_same_bits(together):
    async def work(manager, rank):
        mine = np.random.default_rng(rank).standard_normal(10_001).astype(np.float32)
        return (await manager.communicator.all_reduce(mine, world="w")).tobytes()

    assert len(set(together(work, 3))) == 1


def test_different_collectives_break_the_world(together):
    async def work(manager, rank):
        c = manager.communicator
        with pytest.raises(BrokenWorldError) as caught:
            if rank == 0:
                await c.all_reduce(np.zeros(8), world="w")
            else:
                await c.all_reduce(np.zeros(8), "max", world="w")
        return caught.value.cause

    assert "protocol" in together(work)


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("call", ["broadcast", "reduce", "gather", "scatter"])
@pytest.mark.parametrize("elements", [1, 200_000])
def test_different_roots_end_in_an_error_on_all_members(together, size, call, elements):
    async def work(manager, rank):
        c, mine = manager.communicator, np.zeros(elements)
        root = 1 if rank == 0 else 0
        given = [mine] * size if call == "scatter" and root == rank else mine
        if call == "scatter" and root != rank:
            given = None
        with pytest.raises(BrokenWorldError) as caught:
            await getattr(c, call)(given, root, world="w")
        return caught.value.cause

    causes = together(work, size, limit=20)
    assert "protocol" in causes
    assert set(causes) <= {"protocol", "peer_reported", "eof", "reset"}


def test_collectives_with_different_tags_run_at_once(together):
    async def work(manager, rank):
        async def one(tag):
            for _ in range(20):
                got = await manager.communicator.all_reduce(np.full(1000, rank + tag), world="w", tag=tag)
                assert (got == 3 * tag + 3).all()

        await asyncio.gather(*map(one, range(5)))

    together(work, 3)


def test_a_timeout_breaks_the_world_for_all_members(together):
    async def work(manager, rank):
        c = manager.communicator
        with pytest.raises(BrokenWorldError) as caught:
            await c.recv(1 - rank, world="w", timeout=0.1 if rank == 0 else None)
        with pytest.raises(BrokenWorldError):
            await c.send(np.zeros(1), 1 - rank, world="w")
        return caught.value.cause, manager.worlds["w"].error.cause

    assert together(work) == [("timeout",) * 2, ("peer_reported",) * 2]


def test_cancelling_breaks_the_world_only_after_data_has_begun_to_move(together):
    async def work(manager, rank):
        c = manager.communicator
        if rank == 0:
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(c.recv(1, world="w"), 0.05)
            assert not c.is_broken("w")
            await c.barrier(world="w")
            assert (await c.recv(1, world="w")).tolist() == [1]
            with pytest.raises((asyncio.TimeoutError, BrokenWorldError)):
                await asyncio.wait_for(c.all_reduce(np.zeros(5), world="w"), 0.1)
            assert c.is_broken("w")
        else:
            await c.barrier(world="w")
            await c.send(np.array([1]), 0, world="w")
            with pytest.raises(BrokenWorldError):
                await c.recv(0, world="w")

    together(work)


def test_a_blocked_send_times_out_and_the_peer_that_does_not_receive_is_informed(together):
    """The connection is full of what nobody receives: the news come by way of the helpers."""

    async def work(manager, rank):
        c = manager.communicator
        if rank == 0:
            with pytest.raises(BrokenWorldError) as caught:
                await c.send(np.zeros(100_000_000, np.uint8), 1, world="w", timeout=0.3)
            return caught.value.cause
        while not c.is_broken("w"):
            await asyncio.sleep(0.01)
        return manager.worlds["w"].error.cause

    assert together(work) == ["timeout", "peer_reported"]


def test_invalid_arguments_are_refused_and_do_not_break_the_world(together):
    async def work(manager, rank):
        c = manager.communicator
        for wrong in (
            lambda: c.send(np.zeros(1), rank, world="w"),
            lambda: c.send(np.zeros(1), 2, world="w"),
            lambda: c.send([1], 1 - rank, world="w"),
            lambda: c.send(np.zeros([1] * 17), 1 - rank, world="w"),
            lambda: c.recv(-1, world="w"),
            lambda: c.recv(1 - rank, world="other"),
            lambda: c.recv(1 - rank, world="w", tag=-1),
            lambda: c.all_reduce(np.zeros(1), "mean", world="w"),
            lambda: c.all_reduce(np.zeros(1), world="w", out=np.zeros(2)),
            lambda: c.all_reduce(np.zeros(1, complex), "max", world="w"),
            lambda: c.all_to_all([np.zeros(1)], world="w"),
            lambda: c.scatter(None, rank, world="w"),
            lambda: manager.initialize_world("w", 0, 2),
            lambda: manager.initialize_world("x", 2, 2),
            lambda: manager.initialize_world("", 0, 2),
            lambda: manager.initialize_world("x", 0, 2, port=0),
            lambda: manager.remove_world("x"),
        ):
            with pytest.raises(UsageError):
                await wrong()
        assert c.is_broken("other")
        assert not c.is_broken("w")
        await c.barrier(world="w")

    together(work)


def test_a_name_is_made_again_at_the_next_epoch(together, port):
    again = port()

    async def work(manager, rank):
        seen = []
        manager.on_broken(seen.append)
        manager.on_broken(lambda error: 1 / 0)
        if rank == 0:
            await manager.remove_world("w")
        else:
            with pytest.raises(BrokenWorldError) as caught:
                await manager.communicator.recv(0, world="w")
            assert (caught.value.cause, caught.value.epoch) == ("closed", 0)
            assert [(error.world, error.cause) for error in seen] == [("w", "closed")]
        await manager.initialize_world("w", rank, 2, port=again, timeout=60)
        await manager.communicator.barrier(world="w")
        return manager.worlds["w"].epoch

    assert together(work) == [1, 1]


def test_what_was_sent_before_leaving_arrives(together):
    async def work(manager, rank):
        if rank == 0:
            for _ in range(3):
                await manager.communicator.send(np.zeros(200_000), 1, world="w")
            await manager.remove_world("w")
            return None
        await asyncio.sleep(0.3)
        return [len(await manager.communicator.recv(0, world="w")) for _ in range(3)]

    assert together(work)[1] == [200_000] * 3


def test_a_peer_that_has_left_does_not_keep_the_loop_busy(together, monkeypatch):
    reads = []
    read = Link._read_once
    monkeypatch.setattr(Link, "_read_once", lambda link: reads.append(link) or read(link))

    async def work(manager, rank):
        if rank == 0:
            await manager.remove_world("w")
        else:
            await asyncio.sleep(0.3)
            assert not manager.communicator.is_broken("w")

    together(work)
    assert len(reads) < 20


def test_polling_for_answers_lets_other_tasks_run(together):
    rounds = 2000

    async def work(manager, rank):
        c, turns = manager.communicator, 0

        async def tick():
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        ticking = asyncio.ensure_future(tick())
        number = np.zeros(1)
        for _ in range(rounds):
            if rank == 0:
                await c.send(number, 1, world="w")
            await c.recv(1 - rank, world="w", out=number)
            if rank == 1:
                await c.send(number, 0, world="w")
        ticking.cancel()
        await asyncio.gather(ticking, return_exceptions=True)
        return turns

    # At the latest after sixteen looks or sends the loop has its turn.
    assert min(together(work)) > rounds / 20


def test_a_world_whose_members_do_not_join_is_forgotten(port):
    async def main():
        async with WorldManager() as manager:
            for rank in (0, 1):
                with pytest.raises(BrokenWorldError) as caught:
                    await manager.initialize_world("w", rank, 2, port=port(), timeout=0.3)
                assert caught.value.cause == "timeout"
            assert manager.worlds == {}

    asyncio.run(main())


def test_synchronous_managers_send_reduce_and_break(port):
    import threading

    at, got = port(), []

    def member(rank):
        with SyncWorldManager() as manager:
            manager.initialize_world("w", rank, 2, port=at, timeout=60)
            c = manager.communicator
            if rank == 0:
                c.send(np.arange(3), 1, world="w")
            else:
                got.append(c.recv(0, world="w").tolist())
            got.append(int(c.all_reduce(np.array(rank + 1), world="w")))
            assert not c.is_broken("w")
            assert set(manager.worlds) == {"w"}
            if rank == 0:
                manager.remove_world("w")
            else:
                with pytest.raises(BrokenWorldError):
                    c.recv(0, world="w")

    threads = [threading.Thread(target=member, args=[rank]) for rank in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert sorted(map(str, got)) == ["3", "3", "[0, 1, 2]"]
    with pytest.raises(UsageError, match="context manager"):
        SyncWorldManager().remove_world("w")
