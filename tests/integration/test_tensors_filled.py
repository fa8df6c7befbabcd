"""What is given to be filled is filled in the memory that a program sees, for each operation and each kind of view."""

import asyncio

import numpy as np
import pytest

pytestmark = [pytest.mark.mindspore, pytest.mark.processes]
ms = pytest.importorskip("mindspore")

from mindspore import nn  # noqa: E402

from ms_recover.errors import UsageError  # noqa: E402
from ms_recover.tensors.memory import memory_of, set_value  # noqa: E402
from ms_recover.worlds import WorldManager, multiworld  # noqa: E402
from tests.support.ports import free_port  # noqa: E402

SHAPE = (4, 6)
VIEWS = {
    "whole": lambda one: one,
    "row": lambda one: one[1],
    "column": lambda one: one[:, 2],
    "strided slice": lambda one: one[1:4:2, ::3],
    "view": lambda one: one.reshape(24) if isinstance(one, np.ndarray) else one.view(24),
    "row of a view": lambda one: one.reshape(2, 12)[1] if isinstance(one, np.ndarray) else one.view(2, 12)[1],
    "reshape": lambda one: one.reshape(6, 4),
    "transposed": lambda one: one.T,
    "one element": lambda one: one[1:2, 2:3].reshape(()) if isinstance(one, np.ndarray) else one[1, 2],
}
KINDS = {"float32": np.float32, "float64": np.float64, "int64": np.int64, "bool": np.bool_, "bfloat16": np.float32}
OPTIMIZERS = {
    "SGD": lambda parameters: nn.SGD(parameters, 0.5),
    "Momentum": lambda parameters: nn.Momentum(parameters, 0.5, 0.9),
    "Adam": lambda parameters: nn.Adam(parameters, 0.5),
}


async def recv(worlds, multi, rank, one, theirs):
    await (worlds.send(theirs, 1, "w") if rank == 0 else worlds.recv(one, 0, "w"))


async def recv_out(worlds, multi, rank, one, theirs):
    await (worlds.send(theirs, 1, "w") if rank == 0 else worlds.recv(0, world="w", out=one))


async def broadcast(worlds, multi, rank, one, theirs):
    await worlds.broadcast(theirs if rank == 0 else one, 0, "w")


async def all_reduce(worlds, multi, rank, one, theirs):
    await worlds.all_reduce(theirs if rank == 0 else one, "max", world="w", out=one)


async def scatter(worlds, multi, rank, one, theirs):
    await worlds.scatter([theirs, theirs] if rank == 0 else None, 0, world="w", out=one if rank else None)


async def multi_recv(worlds, multi, rank, one, theirs):
    await (multi.send(theirs, 1, "w") if rank == 0 else multi.recv(one, 0, "w"))


async def multi_broadcast(worlds, multi, rank, one, theirs):
    await multi.broadcast(theirs if rank == 0 else one, 0, "w")


async def multi_all_reduce(worlds, multi, rank, one, theirs):
    await multi.all_reduce(theirs if rank == 0 else one, "max", "w")


async def multi_reduce(worlds, multi, rank, one, theirs):
    await multi.reduce(theirs if rank == 0 else one, 1, "max", "w")


async def multi_all_gather(worlds, multi, rank, one, theirs):
    others = [ms.Tensor(theirs) for _ in range(2)]
    await multi.all_gather(others if rank == 0 else [one, others[1]], theirs, "w")


async def multi_gather(worlds, multi, rank, one, theirs):
    await multi.gather(theirs, [one, ms.Tensor(theirs)] if rank == 1 else None, 1, "w")


async def multi_scatter(worlds, multi, rank, one, theirs):
    out = ms.Tensor(theirs) if rank == 0 else one
    await multi.scatter(out, [theirs, theirs] if rank == 0 else None, 0, "w")


async def multi_scatter_to_itself(worlds, multi, rank, one, theirs):
    out = ms.Tensor(theirs) if rank == 0 else one
    await multi.scatter(out, [theirs, theirs] if rank == 1 else None, 1, "w")


OPERATIONS = [
    *(recv, recv_out, broadcast, all_reduce, scatter, multi_recv, multi_broadcast, multi_all_reduce, multi_reduce),
    *(multi_all_gather, multi_gather, multi_scatter, multi_scatter_to_itself),
]
"""In each, rank 1 has `one` filled with `theirs`, which is greater where the operation takes the maximum."""


def on_both(work):
    """Run ``work(communicator, multiworld's, rank)`` on both members of a world "w", in one event loop."""

    async def main():
        at = free_port()

        async def member(rank):
            async with WorldManager() as manager:
                await manager.initialize_world("w", rank, 2, port=at, timeout=60)
                await work(manager.communicator, multiworld.WorldCommunicator(manager), rank)

        await asyncio.wait_for(asyncio.gather(*map(member, range(2))), 120)

    asyncio.run(main())


@pytest.fixture(params=["graph", "pynative"])
def mode(request):
    ms.set_context(mode=ms.GRAPH_MODE if request.param == "graph" else ms.PYNATIVE_MODE)
    return request.param


def tensor(values, kind):
    made = ms.Tensor(values)
    return made.astype(ms.bfloat16) if kind == "bfloat16" else made


def shown(one):
    return (one.astype(ms.float32) if one.dtype == ms.bfloat16 else one).asnumpy()


@pytest.mark.parametrize("kind", KINDS)
def test_each_operation_fills_the_memory_of_whole_tensors_and_of_views(mode, kind):
    async def work(worlds, multi, rank):
        rng = np.random.default_rng(7)
        for operation in OPERATIONS:
            for name, view in VIEWS.items():
                before = rng.integers(0, 2 if kind == "bool" else 100, SHAPE).astype(KINDS[kind])
                theirs = np.ones_like(before) if kind == "bool" else before + rng.integers(1, 100, SHAPE)
                theirs = theirs.astype(KINDS[kind])
                wanted = before.copy()
                view(wanted)[...] = view(theirs)
                base = tensor(before, kind)
                given = view(base)
                await operation(worlds, multi, rank, given, view(tensor(theirs, kind)))
                if rank == 1:
                    assert np.array_equal(shown(base), wanted), (operation.__name__, name)
                    assert np.array_equal(shown(given), view(wanted)), (operation.__name__, name)

    on_both(work)


def trained(parameter, optimizer, write):
    """Return the values of a parameter that steps, is written to, and steps on."""
    step = OPTIMIZERS[optimizer]([parameter])
    gradient = ms.Tensor(np.linspace(0.5, 2, 24, dtype=np.float32).reshape(SHAPE))
    step((gradient,))
    write(parameter)
    step((gradient,))
    step((gradient * 2,))
    return parameter.asnumpy().tobytes()


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("view", ["whole", "row", "strided slice"])
def test_an_optimizer_steps_on_from_what_was_filled(mode, optimizer, view):
    values = np.arange(24, dtype=np.float32).reshape(SHAPE)
    came = VIEWS[view](values + 100)

    def by_hand(parameter):
        VIEWS[view](parameter.asnumpy())[...] = came

    def parameter():
        return ms.Parameter(ms.Tensor(values), name="weight")

    wanted = trained(parameter(), optimizer, by_hand)
    arrived = {}
    operations = OPERATIONS if mode == "pynative" else [recv, all_reduce]  # each compiles anew

    async def work(worlds, multi, rank):
        for operation in operations:
            own, done = parameter(), {}
            step = OPTIMIZERS[optimizer]([own])
            gradient = ms.Tensor(np.linspace(0.5, 2, 24, dtype=np.float32).reshape(SHAPE))
            step((gradient,))
            await operation(worlds, multi, rank, VIEWS[view](own), ms.Tensor(np.ascontiguousarray(came)))
            step((gradient,))
            step((gradient * 2,))
            done[operation.__name__] = own.asnumpy().tobytes() == wanted
            if rank == 1:
                arrived.update(done)

    on_both(work)
    assert arrived == dict.fromkeys((one.__name__ for one in operations), True)


@pytest.mark.parametrize("view", VIEWS)
def test_what_splitting_assigns_is_seen_by_the_whole(mode, view):
    base, values = ms.Tensor(np.zeros(SHAPE, np.float32)), np.arange(24, dtype=np.float32).reshape(SHAPE)
    wanted = np.zeros(SHAPE, np.float32)
    VIEWS[view](wanted)[...] = VIEWS[view](values)
    set_value(VIEWS[view](base), ms.Tensor(np.array(VIEWS[view](values))))
    assert np.array_equal(base.asnumpy(), wanted)


def test_what_has_no_memory_of_its_own_is_refused_before_anything_is_sent(mode):
    shared = ms.Tensor(np.zeros((1, 6), np.float32)).broadcast_to(SHAPE)
    assert memory_of(shared) is None

    async def work(worlds, multi, rank):
        theirs = ms.Tensor(np.ones(SHAPE, np.float32))
        for operation in OPERATIONS:
            if rank == 1:
                with pytest.raises(UsageError, match="cannot be filled in place"):
                    await operation(worlds, multi, 1, shared, theirs)
        assert not worlds.is_broken("w")
        one = ms.Tensor(np.zeros(SHAPE, np.float32))
        await recv(worlds, multi, rank, one, theirs)
        assert rank == 0 or one.asnumpy().all()

    on_both(work)


def test_memory_lives_as_long_as_it_is_used():
    memory = memory_of(ms.Tensor(np.arange(1 << 16, dtype=np.float32))[8:])
    for _ in range(8):
        ms.Tensor(np.zeros(1 << 16, np.float32))
    assert np.array_equal(memory.view(np.float32), np.arange(8, 1 << 16, dtype=np.float32))
