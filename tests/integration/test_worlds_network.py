"""Two hosts of our own: what a slow, lossy or cut cable between them does to worlds, and what it does not.

This file is also the program of the members: ``python -m tests.integration.test_worlds_network JSON``.
"""

import asyncio
import json
import os
import queue
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from ms_recover.worlds import BrokenWorldError, WorldManager
from tests.integration.test_worlds_faults import LONG, Process, census, feed, pump, reduce_for_ever, say
from tests.support.cable import ADDRESSES, Cable

PORT = 29700
TOKEN = {"MS_RECOVER_WORLDS_TOKEN": "a token for these two hosts"}
SHORT, DEFAULT = 2.0, 3.0
"""Heartbeats in seconds."""
LARGE = 16 << 20
SMALL_ONES = 50_000


def large(rank):
    """Return bytes that cannot be mistaken for others."""
    return np.random.default_rng(rank).integers(0, 256, LARGE, np.uint8)


async def swap(manager, rank):
    """Both members send a large message at once; each checks what it gets, byte by byte."""
    given, out = large(rank), np.zeros(LARGE, np.uint8)
    communicator = manager.communicator
    await asyncio.gather(communicator.send(given, 1 - rank, world="w"), communicator.recv(1 - rank, world="w", out=out))
    say(swapped=LARGE, same=bool((out == large(1 - rank)).all()))
    await asyncio.Event().wait()


async def until_late(manager, seconds):
    """Do nothing for so long, or until the world breaks."""
    until = time.monotonic() + seconds
    while time.monotonic() < until and not manager.communicator.is_broken("w"):
        await asyncio.sleep(0.01)


async def receive_many_late(manager, rank, seconds):
    """Send many small messages that fill all buffers, or receive them only after so long."""
    communicator = manager.communicator
    try:
        if rank:
            for number in range(SMALL_ONES):
                await communicator.send(np.full(125, number), 0, world="w")
        else:
            await until_late(manager, seconds)
            right = [(await communicator.recv(1, world="w"))[-1] == number for number in range(SMALL_ONES)]
            say(received=SMALL_ONES, same=bool(all(right)))
        await communicator.recv(1 - rank, world="w")
    except BrokenWorldError as error:
        say(broken="w", cause=error.cause, rank=error.rank, words=error.words)


async def receive_late(manager, rank, seconds, given=None):
    """Receive a large message only after so long, and meanwhile send one, if any; say what came, or what broke."""
    out, communicator = np.zeros(LARGE, np.uint8), manager.communicator
    sending = asyncio.ensure_future(communicator.send(given, 1 - rank, world="w")) if given is not None else None
    try:
        await until_late(manager, seconds)
        await communicator.recv(1 - rank, world="w", out=out)
        say(swapped=LARGE, same=bool((out == large(1 - rank)).all()))
        if sending is not None:
            await sending
        await communicator.barrier(world="w")
        await communicator.recv(1 - rank, world="w")
    except BrokenWorldError as error:
        say(broken="w", cause=error.cause, rank=error.rank, words=error.words)
        await asyncio.gather(*filter(None, [sending]), return_exceptions=True)


async def send_only(manager, rank, given):
    """Send a message if there is one, then wait for the other member; say what breaks."""
    communicator = manager.communicator
    try:
        if given is not None:
            await communicator.send(given, 1 - rank, world="w")
            await communicator.barrier(world="w")
        await communicator.recv(1 - rank, world="w")
    except BrokenWorldError as error:
        say(broken="w", cause=error.cause, rank=error.rank, words=error.words)


async def be_member(manager, rank, size, what, times, seconds=0.0, addr=ADDRESSES[0], port=PORT):
    """Be a member of a world that is made again when it breaks."""
    for _ in range(times):
        await manager.initialize_world("w", rank, size, addr, port, LONG)
        say(made=manager.worlds["w"].epoch)
        if what == "stream":
            await (feed(manager, "w", 0) if rank else pump(manager, "w", 1))
        elif what == "reduce":
            await reduce_for_ever(manager, "w", rank, 10_000)
        elif what == "wait":
            await send_only(manager, rank, None)
        elif what == "unread":
            await (send_only(manager, rank, large(rank)) if rank else receive_late(manager, rank, seconds))
        elif what == "small unread":
            await receive_many_late(manager, rank, seconds)
        elif what == "both unread":
            await receive_late(manager, rank, seconds, large(rank))
        else:
            await swap(manager, rank)


async def live(heartbeat, **options):
    """Work until standard input is closed; say what is left over."""
    before = census()
    async with WorldManager(heartbeat=heartbeat) as manager:
        loop, stop = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(0, stop.set)
        work, stopping = loop.create_task(be_member(manager, **options)), loop.create_task(stop.wait())
        await asyncio.wait([work, stopping], return_when=asyncio.FIRST_COMPLETED)
        loop.remove_reader(0)
        for task in (work, stopping):
            task.cancel()
        await asyncio.wait([work, stopping])
        if not work.cancelled():
            work.result()
    await asyncio.sleep(0)
    say(before=before, after=census(), tasks=len(asyncio.all_tasks()) - 1)


class Member(Process):
    """A member process, and what it said."""

    def __init__(self, prefix, **options):
        self.process = subprocess.Popen(
            [*prefix, sys.executable, "-X", "dev", "-W", "error", "-m", __spec__.name, json.dumps(options)],
            cwd=Path(__file__).parents[2],
            env={**os.environ, **TOKEN},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.said = []
        self._lines = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def hears_nothing_of_a_fault(self, key, at_least):
        """Wait until what it counts has come so far; its world must not have broken."""
        while self.hear(key)[key] < at_least:
            pass
        assert not [words for words in self.said if "broken" in words]


@pytest.fixture
def cable():
    """Two hosts and a cable between them."""
    with Cable() as made:
        yield made


@pytest.fixture
def start(cable):
    """Start the members of a world, the first on the first host and the others on the second."""
    members = []

    def go(what, *, size=2, times=1, heartbeat=DEFAULT, **further):
        for rank in range(size):
            options = {"rank": rank, "size": size, "what": what, "times": times, "heartbeat": heartbeat, **further}
            members.append(Member(cable.prefix(min(rank, 1)), **options))
        for member in members:
            member.hear(made=0)
        return members

    yield go
    for member in members:
        member.close()


def end(first, second):
    """End the second member, then the first: they part in good order."""
    second.end()
    assert first.hear(broken="w").items() >= {"cause": "closed", "rank": 1}.items()
    first.end()


TROUBLES = [
    {"delay": 0.050, "jitter": 0.020},
    {"delay": 0.050, "jitter": 0.020, "in_order": True},
    {"loss": 0.05},
    {"delay": 0.020, "loss": 0.02},
]


@pytest.mark.parametrize("trouble", TROUBLES, ids="-".join)
def test_delay_and_loss_are_no_faults(cable, start, trouble):
    cable.set(**trouble)  # also while the world is made
    a, b = start("stream")
    a.hears_nothing_of_a_fault("count", 300)
    end(a, b)
    cable.look()
    assert min(cable.carried) > 50
    assert all(cable.lost) == ("loss" in trouble)


def test_all_reduce_is_right_under_delay_and_loss(cable, start):
    """Three members on two hosts; `reduce_for_ever` checks every result."""
    cable.set(delay=0.010, jitter=0.005, loss=0.02)
    members = start("reduce", size=3)
    for member in members:
        member.hears_nothing_of_a_fault("reduced", 10)
    members[2].end()
    for member in members[:2]:
        # A member that is told closes its connections; where its own word gets lost, a reset is what remains.
        assert member.hear(broken="w")["cause"] in ("closed", "peer_reported", "reset", "eof")
        member.end()
    cable.look()
    assert all(cable.lost)


def test_large_messages_under_loss_are_whole(cable, start):
    cable.set(loss=0.02)
    members = start("swap")
    for member in members:
        assert member.hear("swapped") == {"swapped": LARGE, "same": True}
    cable.look()
    assert min(cable.carried) > LARGE / 1500
    assert min(cable.lost) > LARGE / 1500 / 100
    for member in members[::-1]:
        member.end()


def test_partition_that_heals_in_time_is_no_fault(cable, start):
    a, b = start("stream", heartbeat=4.0)
    a.hears_nothing_of_a_fault("count", 40)
    cable.set(cut=[True, True])
    time.sleep(1.5)
    cable.set(cut=[False, False])
    assert all(cable.lost)
    a.hears_nothing_of_a_fault("count", a.said[-1]["count"] + 400)  # what waited meanwhile, and then as before
    end(a, b)


def test_world_breaks_by_heartbeat_at_a_partition_and_is_made_again(cable, start):
    a, b = start("stream", times=2, heartbeat=SHORT)
    a.hear("count")
    cut = time.monotonic()
    cable.set(cut=[True, True])
    for rank, member in enumerate((a, b)):
        assert member.hear(broken="w").items() >= {"cause": "heartbeat", "rank": 1 - rank, "epoch": 0}.items()
    assert SHORT * 0.8 < time.monotonic() - cut < SHORT * 5  # loose: others may keep the processors busy
    cable.set(cut=[False, False])
    for member in (a, b):
        assert member.hear("made")["made"] == 1
    a.hear("count")
    end(a, b)


@pytest.mark.parametrize("deaf", [0, 1])
def test_one_way_partition_breaks_the_world_on_both_sides(cable, start, deaf):
    """The one who hears nothing accuses the other, who is told so by the way that is open."""
    members, mute = start("stream", times=2, heartbeat=SHORT), 1 - deaf
    members[0].hear("count")
    cable.set(cut=[deaf == 1, deaf == 0])
    assert members[deaf].hear(broken="w").items() >= {"cause": "heartbeat", "rank": mute, "epoch": 0}.items()
    told = members[mute].hear(broken="w")
    assert (told["cause"], told["rank"]) == ("peer_reported", mute)
    cable.set(cut=[False, False])
    for member in members:
        assert member.hear("made")["made"] == 1
    members[0].hear("count")
    end(*members)


def test_hosts_and_cable_leave_nothing_behind():
    with Cable() as cable:
        process = cable._process
        done = subprocess.run([*cable.prefix(0), "ip", "-brief", "address"], capture_output=True, text=True, check=True)
        assert ADDRESSES[0] in done.stdout
    assert process.returncode == 0
    devices = subprocess.run(["ip", "-brief", "link"], capture_output=True, text=True, check=True).stdout
    assert "cable" not in devices


if __name__ == "__main__":
    asyncio.run(live(**json.loads(sys.argv[1])))
