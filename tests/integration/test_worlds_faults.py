"""Real processes that die, freeze and lag: every row of the fault tables ends with the right error and no wrong data.

This file is also the program of the members: ``python test_worlds_faults.py ROLE JSON``. A member prints one JSON line
per thing that happens to it.
"""

import asyncio
import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from ms_recover.worlds import BrokenWorldError, WorldManager
from tests.support.ports import free_port
from tests.support.sample import REPOSITORY

LONG = 120
HEARTBEAT = 1.0


def say(**words):
    print(json.dumps(words), flush=True)


def census():
    """Count what could leak."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        children = len(file.read().split())
    return {"descriptors": len(os.listdir("/proc/self/fd")), "children": children, "threads": threading.active_count()}


async def pump(manager, world, src, name="count"):
    """Receive numbered messages; say how many, and what ends it."""
    expected = 0
    try:
        while True:
            got = int((await manager.communicator.recv(src, world=world))[0])
            if got != expected:
                say(wrong=world, got=got, expected=expected)
            expected += 1
            if expected % 20 == 0:
                say(**{name: expected, "world": world})
    except BrokenWorldError as error:
        say(broken=world, cause=error.cause, rank=error.rank, epoch=error.epoch, after=expected)


async def feed(manager, world, dst):
    """Send numbered messages."""
    number = 0
    try:
        while True:
            await manager.communicator.send(np.array([number]), dst, world=world)
            number += 1
            await asyncio.sleep(0.005)
    except BrokenWorldError as error:
        say(broken=world, cause=error.cause, rank=error.rank, epoch=error.epoch)


async def reduce_for_ever(manager, world, rank, elements, **options):
    """all_reduce in a loop; every result is checked."""
    size = manager.worlds[world].size
    step = 0
    try:
        while True:
            mine = np.full(elements, rank + step, np.int64)
            result = await manager.communicator.all_reduce(mine, world=world, **options)
            want = sum(range(size)) + size * step
            if not (result == want).all():
                say(wrong=world, step=step, want=want, got=result[:4].tolist())
            step += 1
            if step % 10 == 0:
                say(reduced=step, world=world)
            await asyncio.sleep(0)
    except BrokenWorldError as error:
        say(broken=world, cause=error.cause, rank=error.rank, epoch=error.epoch, after=step)


async def broken_already(manager, world, peer):
    """Nothing works any more in a broken world, at once and for good."""
    communicator = manager.communicator
    for attempt in (
        lambda: communicator.recv(peer, world=world),
        lambda: communicator.send(np.zeros(2), peer, world=world),
        lambda: communicator.all_reduce(np.zeros(2), world=world),
        lambda: communicator.barrier(world=world),
    ):
        try:
            await asyncio.wait_for(attempt(), LONG)
            say(wrong=world, words="a broken world was used")
        except BrokenWorldError:
            pass
    assert communicator.is_broken(world)


async def member(manager, worlds, work):
    """Be a member of worlds, {name: [rank, size, port]}, and do work in each at once, {name: [what, ...]}."""
    await asyncio.gather(*(manager.initialize_world(n, r, s, port=p, timeout=LONG) for n, (r, s, p) in worlds.items()))
    say(ready=sorted(worlds), pid=os.getpid(), helper=manager.watchdog.pid)

    async def one(world, what, *args):
        if what == "pump":
            await pump(manager, world, *args)
        elif what == "feed":
            await feed(manager, world, *args)
        elif what == "reduce":
            await reduce_for_ever(manager, world, worlds[world][0], *args)
        elif what == "wait_for":
            try:
                await asyncio.wait_for(manager.communicator.recv(args[0], world=world), 0.3)
            except asyncio.TimeoutError:
                say(timed_out=world, broken_now=manager.communicator.is_broken(world))
            await pump(manager, world, *args)
        elif what == "idle":
            while not manager.communicator.is_broken(world):
                await asyncio.sleep(0.01)
            error = manager.worlds[world].error
            say(broken=world, cause=error.cause, rank=error.rank, epoch=error.epoch)
        if manager.communicator.is_broken(world):
            await broken_already(manager, world, args[0] if args and what != "reduce" else 1 - min(1, worlds[world][0]))

    await asyncio.gather(*(one(world, *what) for world, what in work.items()))


async def through(manager, name, rank, addr, port, what, times):
    """Be a member of a world of two that is made again when it breaks."""
    for _ in range(times):
        await manager.initialize_world(name, rank, 2, addr=addr, port=port, timeout=LONG)
        say(made=manager.worlds[name].epoch)
        await {"pump": pump, "feed": feed}[what](manager, name, 1 - rank)


async def again(manager, name, rank, size, ports, slow):
    """all_reduce with a timeout while one member is late; then the same name made again."""
    communicator = manager.communicator
    if ports[0] is not None:
        await manager.initialize_world(name, rank, size, port=ports[0], timeout=LONG)
        await communicator.all_reduce(np.full(1000, rank), world=name)
        if rank == slow:
            await asyncio.sleep(1.5)
        for attempt in range(4):
            try:
                result = await communicator.all_reduce(np.full(1000, 10 * (rank + 1)), world=name, timeout=0.5)
                say(wrong=name, attempt=attempt, got=result[:4].tolist())
            except BrokenWorldError as error:
                say(broken=name, cause=error.cause, rank=error.rank, epoch=error.epoch)
    await manager.initialize_world(name, rank, size, port=ports[1], timeout=LONG)
    result = await communicator.all_reduce(np.full(1000, 10 * (rank + 1)), world=name, timeout=LONG)
    await communicator.barrier(world=name)
    say(made_again=manager.worlds[name].epoch, right=bool((result == 10 * sum(range(1, size + 1))).all()))


async def live(role, options):
    before = census()
    async with WorldManager(heartbeat=HEARTBEAT) as manager:
        manager.on_broken(lambda error: say(noticed=error.world, cause=error.cause, rank=error.rank))
        stop = asyncio.Event()
        asyncio.get_running_loop().add_reader(0, stop.set)  # standard input is closed
        work = asyncio.ensure_future({"member": member, "again": again, "through": through}[role](manager, **options))
        stopping = asyncio.ensure_future(stop.wait())
        await asyncio.wait([work, stopping], return_when=asyncio.FIRST_COMPLETED)
        asyncio.get_running_loop().remove_reader(0)
        stopping.cancel()
        if not work.done():
            work.cancel()
        await asyncio.wait([work, stopping])
        if not work.cancelled():
            work.result()
    await asyncio.sleep(0)
    say(before=before, after=census(), tasks=len(asyncio.all_tasks()) - 1)


class Process:
    """A member process, and what it said."""

    def __init__(self, role, *, prefix=(), env=None, **options):
        self.process = subprocess.Popen(
            [*prefix, sys.executable, "-X", "dev", "-W", "error", __file__, role, json.dumps(options)],
            env={**os.environ, "PYTHONPATH": str(REPOSITORY), **(env or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.said = []
        self._lines = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        for line in self.process.stdout:
            self._lines.put(json.loads(line))
        self._lines.put(None)

    def hear(self, *keys, **values):
        """Wait until it says something with these keys and values; return that."""
        deadline = time.monotonic() + LONG
        while True:
            words = self._lines.get(timeout=max(0.1, deadline - time.monotonic()))
            assert words is not None, f"it ended; it had said {self.said}"
            self.said.append(words)
            assert "wrong" not in words, words
            if set(keys) <= set(words) and values.items() <= words.items():
                return words

    def kill(self, how=signal.SIGKILL):
        os.kill(self.process.pid, how)

    def end(self):
        """Ask it to end in good order; it must have leaked nothing and heard nothing wrong."""
        self.process.stdin.close()
        last = self.hear("after", "before")
        assert last["after"] == {**last["before"], "descriptors": last["after"]["descriptors"]}, last
        # the event loop itself and its self-pipe are there only afterwards
        assert last["after"]["descriptors"] <= last["before"]["descriptors"], last
        assert last["tasks"] == 0
        assert self.process.wait(LONG) == 0

    def close(self):
        for how in (signal.SIGCONT, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                if self.process.poll() is None:
                    self.kill(how)
        self.process.wait(LONG)
        self._reader.join(LONG)
        self.process.stdin.close()
        self.process.stdout.close()


@pytest.fixture
def start():
    processes = []

    def go(role="member", **options):
        processes.append(Process(role, **options))
        return processes[-1]

    yield go
    for process in processes:
        process.close()


@pytest.fixture
def port():
    return free_port


def leader_and_two(start, port, in_w1, in_w1_b):
    """A in w1 with B and in w2 with C; messages flow in w2 all the time."""
    one, two = port(), port()
    a = start(worlds={"w1": [0, 2, one], "w2": [0, 2, two]}, work={"w1": in_w1, "w2": ["pump", 1]})
    b = start(worlds={"w1": [1, 2, one]}, work={"w1": in_w1_b})
    c = start(worlds={"w2": [1, 2, two]}, work={"w2": ["feed", 0]})
    for process in (a, b, c):
        process.hear("ready")
    a.hear("count")
    return a, b, c


def still_flows(process, world="w2"):
    """Messages of another world keep coming, none missing (`pump` counts them)."""
    before = process.hear("count", world=world)["count"]
    assert process.hear("count", world=world)["count"] > before


def test_killing_a_peer_fails_a_receive(start, port):
    a, b, c = leader_and_two(start, port, ["pump", 1], ["idle"])
    b.kill(signal.SIGKILL)
    assert a.hear(broken="w1")["cause"] in ("eof", "reset")
    still_flows(a)
    a.end()
    assert c.hear(broken="w2")["cause"] == "closed"
    c.end()


def test_killing_rank_0_breaks_its_world_and_no_other(start, port):
    one, two = port(), port()
    a = start(worlds={"w1": [0, 3, one]}, work={"w1": ["pump", 1]})
    b = start(worlds={"w1": [1, 3, one], "w2": [0, 2, two]}, work={"w1": ["idle"], "w2": ["pump", 1]})
    c = start(worlds={"w1": [2, 3, one], "w2": [1, 2, two]}, work={"w1": ["pump", 0], "w2": ["feed", 0]})
    for process in (a, b, c):
        process.hear("ready")
    a.kill()
    for process in (b, c):
        broken = process.hear(broken="w1")
        assert broken["rank"] == 0
        assert broken["cause"] in ("eof", "reset", "peer_reported")
    still_flows(b)
    b.end()
    c.end()


@pytest.mark.parametrize("elements", [4, 1_000_000])
def test_killing_a_peer_fails_an_all_reduce(start, port, elements):
    one, two = port(), port()
    a = start(worlds={"w1": [0, 3, one], "w2": [0, 2, two]}, work={"w1": ["reduce", elements], "w2": ["pump", 1]})
    b = start(worlds={"w1": [1, 3, one]}, work={"w1": ["reduce", elements]})
    c = start(worlds={"w1": [2, 3, one], "w2": [1, 2, two]}, work={"w1": ["reduce", elements], "w2": ["feed", 0]})
    for process in (a, b, c):
        process.hear("reduced")
    b.kill()
    for process in (a, c):
        broken = process.hear(broken="w1")
        assert broken["rank"] == 1
        assert broken["cause"] in ("eof", "reset", "peer_reported")
    still_flows(a)
    a.end()
    c.end()


def test_freezing_a_peer_fails_an_all_reduce(start, port):
    a, b, c = leader_and_two(start, port, ["reduce", 1000], ["reduce", 1000])
    b.hear("reduced")
    b.kill(signal.SIGSTOP)
    assert a.hear(broken="w1").items() >= {"cause": "heartbeat", "rank": 1}.items()
    still_flows(a)
    assert b.process.poll() is None, "somebody ended the frozen process"
    b.kill(signal.SIGCONT)
    assert b.hear(broken="w1")["cause"] in ("peer_reported", "eof", "reset")
    for process in (a, b, c):
        process.end()


def test_freezing_a_peer_fails_a_receive(start, port):
    a, b, c = leader_and_two(start, port, ["pump", 1], ["idle"])
    b.kill(signal.SIGSTOP)
    assert a.hear(broken="w1").items() >= {"cause": "heartbeat", "rank": 1}.items()
    still_flows(a)
    b.kill(signal.SIGCONT)
    assert b.hear(broken="w1")["cause"] in ("peer_reported", "eof", "reset")
    for process in (a, b, c):
        process.end()


def test_a_receive_that_times_out_outside_does_not_break_the_world(start, port):
    a, b, c = leader_and_two(start, port, ["wait_for", 1], ["idle"])
    said = next((words for words in a.said if "timed_out" in words), None)  # before the first count, where that is slow
    assert (said or a.hear(timed_out="w1"))["broken_now"] is False
    still_flows(a)
    b.kill(signal.SIGSTOP)
    assert a.hear(broken="w1")["cause"] == "heartbeat"
    still_flows(a)
    b.kill(signal.SIGCONT)
    for process in (a, b, c):
        process.end()


@pytest.mark.parametrize("size", [2, 3])
def test_all_calls_fail_after_the_timeout_of_a_slow_member_until_the_world_is_made_again(start, port, size):
    """No member is dead, one is late: all calls after the timeout fail on both sides, until the world is made again."""
    ports = [port(), port()]
    members = [start("again", name="w", rank=rank, size=size, ports=ports, slow=1) for rank in range(size)]
    for rank, process in enumerate(members):
        causes = [process.hear(broken="w")["cause"] for _ in range(4)]
        assert set(causes) <= {"timeout", "peer_reported"}, causes
        if size == 2:
            assert causes == ["timeout" if rank == 0 else "peer_reported"] * 4
    for process in members:
        assert process.hear("made_again").items() >= {"made_again": 1, "right": True}.items()
        process.end()


def test_a_death_in_one_world_does_not_stop_the_reductions_of_another(start, port):
    """Both worlds reduce; a death in one does not affect the other."""
    one, two = port(), port()
    a = start(worlds={"w1": [0, 2, one], "w2": [0, 2, two]}, work={"w1": ["reduce", 9], "w2": ["reduce", 9]})
    b = start(worlds={"w1": [1, 2, one]}, work={"w1": ["reduce", 9]})
    c = start(worlds={"w2": [1, 2, two]}, work={"w2": ["reduce", 9]})
    for process in (a, b, c):
        process.hear("reduced")
    b.kill()
    assert a.hear(broken="w1")["rank"] == 1
    before = a.hear("reduced", world="w2")["reduced"]
    assert a.hear("reduced", world="w2")["reduced"] > before
    a.end()
    c.end()


def test_a_rank_that_ends_in_good_order_breaks_its_world_when_it_is_needed(start, port):
    a, b, c = leader_and_two(start, port, ["pump", 1], ["feed", 0])
    b.end()
    assert a.hear(broken="w1").items() >= {"cause": "closed", "rank": 1}.items()
    still_flows(a)
    a.end()
    c.end()


def test_a_new_worker_replaces_a_dead_one(start, port):
    ports = [port(), port()]
    a = start("again", name="w", rank=0, size=2, ports=ports, slow=1)
    b = start("again", name="w", rank=1, size=2, ports=ports, slow=1)
    a.hear(broken="w", cause="timeout")
    b.kill()
    new = start("again", name="w", rank=1, size=2, ports=[None, ports[1]], slow=1)
    for process in (a, new):  # the new one knows of no epoch: it is told
        assert process.hear("made_again").items() >= {"made_again": 1, "right": True}.items()
        process.end()


def test_a_helper_that_dies_is_replaced(start, port):
    one = port()
    a = start(worlds={"w": [0, 2, one]}, work={"w": ["pump", 1]})
    b = start(worlds={"w": [1, 2, one]}, work={"w": ["feed", 0]})
    helpers = [process.hear("ready")["helper"] for process in (a, b)]
    for how, helper in zip((signal.SIGKILL, signal.SIGSTOP), helpers, strict=True):
        os.kill(helper, how)  # a helper of the program under test
    for _ in range(20):
        still_flows(a, "w")
    b.kill(signal.SIGSTOP)
    assert a.hear(broken="w")["cause"] == "heartbeat"
    b.kill(signal.SIGCONT)
    a.end()
    b.end()


if __name__ == "__main__":
    asyncio.run(live(sys.argv[1], json.loads(sys.argv[2])))
