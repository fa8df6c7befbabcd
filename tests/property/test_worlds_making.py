"""A world that cannot be made: whoever gives up first, in whichever phase, all others end at once, with its reason.

Each member is a process of its own. One of them is stuck: it never comes, or does not connect, or does not answer.
"""

import asyncio
import contextlib
import json
import os
import select
import signal
import socket
import time

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ms_recover.errors import BrokenWorldError
from ms_recover.worlds import WorldManager, manager
from tests.support.examples import examples

pytestmark = [
    pytest.mark.processes,
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning"),  # other tests may have left threads
]
LONG = 300.0
SOON = 30.0
"""Far less than LONG, and far more than the others need on a busy machine."""
PHASES = ("joining", "connecting", "meeting")


async def for_ever(*_):
    await asyncio.Event().wait()


def is_there(made, rank, size, phase):
    """Whether this member has come as far as it gets in this phase."""
    making = made._making.get("w")
    if making is None or phase != "joining":
        return making is not None and making.world.is_open and (rank > 0 or not making.world.unconnected())
    return len(making.members) == size - 2 if rank == 0 else making.stage.startswith("connected with rank 0")


async def be_member(port, rank, size, phase, timeout, said, ordered):
    """Make the world; say when this gets no further, and how it ends. Give up as ordered: cancel or leave."""

    def say(**words):
        os.write(said, json.dumps(words).encode() + b"\n")

    made = WorldManager()
    making = asyncio.ensure_future(made.initialize_world("w", rank, size, port=port, timeout=timeout))
    order = asyncio.ensure_future(asyncio.to_thread(os.read, ordered, 16))
    is_said = False
    while not making.done() and not order.done():
        if not is_said and is_there(made, rank, size, phase):
            is_said = True
            say(there=rank)
        await asyncio.sleep(0.01)
    if order.done() and order.result() == b"cancel":
        making.cancel()
    elif order.done() and order.result() == b"leave":
        await made.__aexit__()
    await asyncio.wait([making])
    if making.cancelled():
        say(ended="cancelled")
    else:
        error = making.exception()
        assert isinstance(error, BrokenWorldError), error
        assert "w" not in made.worlds
        assert not made._making
        say(ended=error.cause, rank=error.rank, words=error.words)
    await made.__aexit__()


class Member:
    """A process that is a member; the parent hears it, and gives it orders."""

    def __init__(self, port, rank, size, phase, timeout, stuck):
        self.rank = rank
        self.heard, said = os.pipe()
        ordered, self.orders = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            try:
                if stuck:
                    setattr(manager, "connect_members" if phase == "connecting" else "meet", for_ever)
                asyncio.run(be_member(port, rank, size, phase, timeout, said, ordered))
            finally:
                os._exit(0)  # also the thread that waits for an order ends
        os.close(said)
        os.close(ordered)
        self.words = b""

    def hear(self, key, seconds):
        """Return what it says with this key, or None when nothing comes in time, or it has ended."""
        until = time.monotonic() + seconds
        while True:
            lines = [json.loads(line) for line in self.words.splitlines(keepends=True) if line.endswith(b"\n")]
            found = next((line for line in lines if key in line), None)
            if found or any("ended" in line for line in lines):
                return found
            if not select.select([self.heard], [], [], max(until - time.monotonic(), 0))[0]:
                return None
            piece = os.read(self.heard, 4096)
            if not piece:
                return None
            self.words += piece

    def close(self):
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)
        os.close(self.heard)
        os.close(self.orders)


@contextlib.contextmanager
def members(size, stuck, phase, timeouts):
    """Start all members but one that never comes; by rank."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    started = {}
    try:
        for rank in range(size):
            if phase != "joining" or rank != stuck:
                started[rank] = Member(port, rank, size, phase, timeouts.get(rank, LONG), rank == stuck)
        yield started
    finally:
        for member in started.values():
            member.close()


@st.composite
def scenes(draw, ways):
    size, phase = draw(st.integers(2, 5)), draw(st.sampled_from(PHASES))
    stuck = draw(st.integers(1 if phase != "meeting" else 0, size - 1))
    # Without another member rank 0 waits until one of its rank comes again.
    giver = 0 if phase == "joining" else draw(st.integers(0, size - 1))
    return size, phase, stuck, giver, draw(st.sampled_from(ways))


@settings(deadline=None, max_examples=examples(40))
@given(scenes(("cancel", "leave", "kill")))
def test_whoever_gives_up_first_ends_the_making_for_all_at_once_and_is_the_one_at_fault(scene):
    size, phase, stuck, giver, way = scene
    with members(size, stuck, phase, {}) as started:
        for member in started.values():
            assert member.hear("there", LONG)
        if way == "kill":
            os.kill(started[giver].pid, signal.SIGKILL)
        else:
            os.write(started[giver].orders, way.encode())
        ends = {rank: member.hear("ended", SOON) for rank, member in started.items()}
    assert (ends[giver] is None) == (way == "kill")
    if way == "cancel":
        assert ends[giver]["ended"] == "cancelled"
    if way == "leave":
        words = f"rank {giver} left its WorldManager while it made the world"
        assert ends[giver] == {"ended": "closed", "rank": giver, "words": words}, ends
    for rank in set(ends) - {giver}:
        assert ends[rank] is not None, f"rank {rank} still waits"
        assert ends[rank]["rank"] == giver, ends
        causes = {"eof", "reset", "peer_reported"} if way == "kill" else {"peer_reported"}
        assert ends[rank]["ended"] in causes, ends
        if phase == "joining" and way != "kill":
            reason = (
                "the call of rank 0 was cancelled"
                if way == "cancel"
                else "rank 0 left its WorldManager while it made the world"
            )
            assert ends[rank]["words"] == f"rank 0 reports: {reason}"


@settings(deadline=None, max_examples=examples(16))
@given(scenes(("timeout",)), st.booleans())
def test_in_a_timeout_the_one_who_did_not_answer_is_at_fault_for_all(scene, together):
    """The giver's time is over first, or that of all at once."""
    size, phase, stuck, giver, _ = scene
    assume(giver != stuck)
    seconds = 4.0  # more than all need to come so far; on a machine so busy that it is not, nothing is shown
    givers = [rank for rank in range(size) if rank != stuck] if together else [giver]
    with members(size, stuck, phase, dict.fromkeys(givers, seconds)) as started:
        there = [member.hear("there", SOON) for member in started.values()]
        assume(all(there))
        ends = {rank: member.hear("ended", SOON) for rank, member in started.items()}
    for rank, end in ends.items():
        assert end is not None, f"rank {rank} still waits"
        assert end["rank"] == stuck, ends
        assert end["ended"] in ({"timeout"} if rank == giver and not together else {"timeout", "peer_reported"}), ends
        if end["ended"] == "timeout":
            assert f"rank {stuck} did not answer" in end["words"]
