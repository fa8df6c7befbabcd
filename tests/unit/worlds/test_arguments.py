"""Arguments of wrong types and values: refused before anything is sent, so that the streams stay in step."""

import asyncio
import math

import numpy as np
import pytest

from ms_recover.errors import UsageError
from ms_recover.worlds import WatchDog, WorldManager, arguments, multiworld

NOTHING = np.zeros(1)


def test_whole_numbers_are_those_of_python_and_numpy():
    assert [arguments.whole("tag", value) for value in (3, np.int64(3), np.uint8(3))] == [3, 3, 3]
    for wrong in (1.0, "1", None, True, np.float32(1), [1], np.zeros(2, int)):
        with pytest.raises(UsageError, match=r"invalid tag .*it must be a whole number"):
            arguments.whole("tag", wrong)


def test_time_limits_are_more_than_0():
    assert [arguments.seconds("timeout", value) for value in (1, 0.5, np.float32(2))] == [1, 0.5, 2]
    for long in (math.inf, 1e300, 10**400):
        assert arguments.seconds("timeout", long) == arguments.LONGEST_S
    for wrong in (0, -1, math.nan, -math.inf, -(10**400), np.float32("nan")):
        with pytest.raises(UsageError, match=r"invalid timeout of .* s: it must be more than 0 s"):
            arguments.seconds("timeout", wrong)
    for wrong in ("1", None, True, [1.0], 1j):
        with pytest.raises(UsageError, match=r"invalid timeout .*: it must be a number of seconds"):
            arguments.seconds("timeout", wrong)


def test_a_text_is_one_that_utf_8_can_encode():
    assert arguments.text("name", "é") == "é"
    for wrong in (b"w", None, 1, "\ud800"):
        with pytest.raises(UsageError, match="invalid name"):
            arguments.text("name", wrong)


def test_a_heartbeat_is_a_number_of_seconds_that_fits_the_handshake():
    for wrong in ("3", None, math.inf, 5e6, 0.1, math.nan):
        with pytest.raises(UsageError, match="heartbeat"):
            WatchDog(wrong, lambda *_: None)


def test_a_manager_refuses_what_is_no_security_and_no_callback():
    with pytest.raises(UsageError, match="invalid security"):
        WorldManager(security="secret")
    with pytest.raises(UsageError, match="invalid callback"):
        WorldManager().on_broken("print")


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": b"w"},
        {"name": None},
        {"name": ["w"]},
        {"rank": 0.0},
        {"rank": "0"},
        {"size": 1.0},
        {"size": True},
        {"port": "29500"},
        {"port": 29500.0},
        {"addr": None},
        {"addr": 127},
        {"timeout": "30"},
        {"timeout": None},
        {"listener": 3},
    ],
)
def test_a_world_with_an_argument_of_a_wrong_type_is_refused(wrong):
    async def main():
        async with WorldManager() as manager:
            with pytest.raises(UsageError):
                await manager.initialize_world(**{"name": "w", "rank": 0, "size": 1, **wrong})
            assert not manager.worlds
            await manager.initialize_world("w", np.int64(0), np.int64(1))

    asyncio.run(main())


@pytest.mark.processes
def test_wrong_arguments_of_every_method_leave_the_streams_in_step(together):
    async def work(manager, rank):
        c, other = manager.communicator, 1 - rank
        calls = [
            lambda **given: c.send(NOTHING, **{"dst": other, "world": "w", **given}),
            lambda **given: c.recv(**{"src": other, "world": "w", **given}),
            lambda **given: c.broadcast(NOTHING, **{"src": 0, "world": "w", **given}),
            lambda **given: c.reduce(NOTHING, **{"dst": 0, "world": "w", **given}),
            lambda **given: c.gather(NOTHING, **{"dst": 0, "world": "w", **given}),
            lambda **given: c.scatter([NOTHING] * 2, **{"src": rank, "world": "w", **given}),
            lambda **given: c.all_reduce(NOTHING, **{"world": "w", **given}),
            lambda **given: c.all_gather(NOTHING, **{"world": "w", **given}),
            lambda **given: c.all_to_all([NOTHING] * 2, **{"world": "w", **given}),
            lambda **given: c.barrier(**{"world": "w", **given}),
        ]
        everywhere = [
            *({"tag": tag} for tag in (1.0, "1", None, -1, 1 << 63, True, [0])),
            *({"timeout": timeout} for timeout in (math.nan, 0, -1, "1", [1])),
            *({"world": world} for world in (b"w", 1, ["w"])),
        ]
        for index, call in enumerate(calls):
            ranks = [{name: value} for name in ("src", "dst") for value in (1.0, "1", None, 2, -1, True)]
            names = {0: "dst", 1: "src", 2: "src", 3: "dst", 4: "dst", 5: "src"}
            for wrong in [*everywhere, *(one for one in ranks if names.get(index) in one)]:
                with pytest.raises(UsageError):
                    await call(**wrong)
        for call in (
            lambda: c.send(NOTHING, other, world="w", tag=np.float64(3)),
            lambda: c.send(np.zeros(2, object), other, world="w"),
            lambda: c.send(None, other, world="w"),
            lambda: c.recv(other, world="w", out="text"),
            lambda: c.recv(other, world="w", out=b"read only"),
            lambda: c.all_reduce(NOTHING, 3, world="w"),
            lambda: c.all_reduce(NOTHING, ["sum"], world="w"),
            lambda: c.all_reduce(NOTHING, np.zeros(2), world="w"),
            lambda: c.all_to_all(iter([NOTHING] * 2), world="w"),
            lambda: c.scatter(3, rank, world="w"),
        ):
            with pytest.raises(UsageError):
                await call()
        big = np.arange(100_000)
        for step in range(3):
            if rank:
                await c.send(big + step, np.int64(0), world="w", tag=np.int64(7), timeout=math.inf)
            else:
                assert (await c.recv(np.int8(1), world="w", tag=7) == big + step).all()
            assert (await c.broadcast(big + rank, np.int8(1), world="w") == big + 1).all()
        return c.is_broken("w")

    assert together(work) == [False, False]


MASKED = (
    np.ma.masked_array(np.arange(3.0), [True, False, True]),
    np.ma.masked_array(np.arange(3.0)),
    np.ma.masked_array(np.arange(6.0).reshape(2, 3).T, np.zeros((3, 2), bool)),
    np.ma.masked_array(np.zeros(3, ">f8"), [True, False, True]),
    np.ma.masked,
)


@pytest.mark.processes
@pytest.mark.parametrize("masked", MASKED, ids=range(len(MASKED)))
def test_a_masked_array_is_refused_by_every_method_before_anything_is_sent(together, masked):
    async def work(manager, rank):
        c, m, other, plain = manager.communicator, multiworld.WorldCommunicator(manager), 1 - rank, np.arange(3.0)
        for call in (
            lambda: c.send(masked, other),
            lambda: c.recv(masked, other),
            lambda: c.recv(other, out=masked),
            lambda: c.broadcast(masked, rank),
            lambda: c.broadcast(masked, other),
            lambda: c.all_reduce(masked, world="w"),
            lambda: c.all_reduce(plain, world="w", out=masked),
            lambda: c.reduce(masked, world="w"),
            lambda: c.all_gather(masked, world="w"),
            lambda: c.gather(masked, world="w"),
            lambda: c.scatter([plain, masked], rank, world="w"),
            lambda: c.scatter(None, other, world="w", out=masked),
            lambda: c.all_to_all([masked, plain], world="w"),
            lambda: m.send(masked, other),
            lambda: m.recv(masked, other),
            lambda: m.broadcast(masked, rank),
            lambda: m.broadcast(masked, other),
            lambda: m.all_reduce(masked),
            lambda: m.reduce(masked, rank),
            lambda: m.reduce(masked, other),
            lambda: m.all_gather([plain, masked], plain),
            lambda: m.all_gather([plain, plain.copy()], masked),
            lambda: m.gather(plain, [plain.copy(), masked], rank),
            lambda: m.gather(masked, None, other),
            lambda: m.scatter(masked, [plain, plain], rank),
            lambda: m.scatter(plain, [plain, masked], rank),
            lambda: m.scatter(masked, None, other),
        ):
            with pytest.raises(UsageError, match="would lose its mask"):
                await asyncio.wait_for(call(), 60)
        assert (await c.all_reduce(plain, world="w") == 2 * plain).all()  # nothing is left of those calls
        if rank:
            await c.send(plain, other)
        else:
            assert (await c.recv(other) == plain).all()
        return c.is_broken("w")

    assert together(work) == [False, False]


@pytest.mark.processes
def test_another_event_loop_is_refused_and_changes_nothing(together):
    async def attempt(call):
        with pytest.raises(UsageError, match="event loop"):
            await call()

    async def work(manager, rank):
        c, other = manager.communicator, 1 - rank
        for call in (
            lambda: c.send(np.zeros(10_000_000), other, world="w"),
            lambda: c.recv(other, world="w"),
            lambda: c.all_reduce(NOTHING, world="w"),
            lambda: manager.initialize_world("other", 0, 1),
            lambda: manager.remove_world("w"),
            manager.__aexit__,
        ):
            await asyncio.to_thread(asyncio.run, attempt(call))
        await c.send(np.array([rank]), other, world="w")
        return int((await c.recv(other, world="w"))[0])

    assert together(work) == [1, 0]


@pytest.mark.processes
def test_reducing_a_tensor_in_place_does_not_copy_it(together, monkeypatch):
    from ms_recover.worlds import tensors

    copies = []
    copy = tensors.copy_bytes
    monkeypatch.setattr(tensors, "copy_bytes", lambda into, source: copies.append(into is source) or copy(into, source))

    async def work(manager, rank):
        mine = np.full(1000, rank + 1.0)
        assert await manager.communicator.all_reduce(mine, world="w", out=mine) is mine
        shifted = np.zeros(1001)
        shifted[:1000] = mine
        await manager.communicator.all_reduce(shifted[:-1], world="w", out=shifted[1:])
        assert (shifted[1:] == 6).all()
        return mine.tolist()

    assert together(work) == [[3.0] * 1000] * 2
    assert len(copies) == 4


def test_bytes_are_copied_unless_they_are_there():
    from ms_recover.worlds.tensors import copy_bytes

    memory = np.arange(8, dtype=np.uint8)
    memory.flags.writeable = False  # a needless copy would fail
    copy_bytes(memory.data, memory.data)
    target = np.zeros(8, np.uint8)
    copy_bytes(target.data, memory.data)
    assert (target == memory).all()
    empty = np.zeros(0, np.uint8)
    copy_bytes(empty.data, empty.data)
