"""Worlds that are being made: ports that make another one, managers that are left, and helpers that do not start."""

import asyncio
import signal
import subprocess
import sys
import time

import pytest

from ms_recover.errors import BrokenWorldError, MsRecoverError, StartError, UsageError
from ms_recover.worlds import WorldManager, rendezvous, stream

LONG = 600.0


async def until(true):
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


@pytest.mark.processes
@pytest.mark.parametrize("shared", [True, False], ids=["listener", "port"])
def test_a_member_that_knocks_while_the_port_makes_another_world_knocks_on(port, shared):
    """Three worlds by one port: the members of all knock from the beginning."""
    names = ("a", "b", "c")

    async def main():
        listener = stream.listen("127.0.0.1", 0) if shared else None
        at = listener.getsockname()[1] if listener else port()
        async with WorldManager() as host, WorldManager() as one, WorldManager() as two:
            joining = [
                asyncio.ensure_future(made.initialize_world(name, rank, 3, port=at, timeout=LONG))
                for rank, made in enumerate((one, two), 1)
                for name in names
            ]
            for name in reversed(names):
                await host.initialize_world(name, 0, 3, port=at, timeout=60, listener=listener)
            await asyncio.wait_for(asyncio.gather(*joining), 60)
            assert set(one.worlds) == set(two.worlds) == set(names)
        if listener:
            listener.close()

    asyncio.run(main())


def test_a_member_that_knocks_at_the_port_of_another_world_says_so_when_its_time_is_over(port):
    at = port()

    async def main():
        async with WorldManager() as host, WorldManager() as client:
            making = asyncio.ensure_future(host.initialize_world("other", 0, 2, port=at, timeout=LONG))
            with pytest.raises(BrokenWorldError) as caught:
                await client.initialize_world("w", 1, 2, port=at, timeout=1)
            assert not making.done()
            making.cancel()
            await asyncio.wait([making])
            return caught.value

    error = asyncio.run(main())
    assert (error.rank, error.cause) == (0, "timeout")
    assert "this is the rendezvous of world 'other' of size 2" in error.words


def test_another_size_of_the_same_world_is_refused_at_once(port):
    at = port()

    async def main():
        async with WorldManager() as host, WorldManager() as client:
            making = asyncio.ensure_future(host.initialize_world("w", 0, 2, port=at, timeout=LONG))
            with pytest.raises(BrokenWorldError, match="this is the rendezvous of world 'w' of size 2") as caught:
                await client.initialize_world("w", 1, 3, port=at, timeout=LONG)
            making.cancel()
            await asyncio.wait([making])
            return caught.value.cause

    assert asyncio.run(main()) == "protocol"


@pytest.mark.parametrize("stage", ["looking up", "knocking", "waiting", "listening", "several"])
def test_leaving_a_manager_ends_its_calls_of_initialize_world(port, monkeypatch, stage):
    async def never(*_, **__):
        await asyncio.Event().wait()

    async def main():
        at = port()
        async with WorldManager() as host:
            async with WorldManager() as made:
                calls = []

                def call(name, rank, addr="127.0.0.1", where=None):
                    coroutine = made.initialize_world(name, rank, 3, addr, where or port(), LONG)
                    calls.append((asyncio.ensure_future(coroutine), rank))

                if stage == "looking up":
                    monkeypatch.setattr(asyncio.base_events.BaseEventLoop, "getaddrinfo", never)
                    call("w", 1, "a-name")
                elif stage == "listening":
                    call("w", 0)
                elif stage == "knocking":
                    call("w", 1)
                else:
                    hosting = asyncio.ensure_future(host.initialize_world("w", 0, 3, port=at, timeout=LONG))
                    call("w", 1, where=at)
                    await until(lambda: "w" in made._making and "waits for rank 2" in made._making["w"].stage)
                if stage == "several":
                    call("x", 0)
                    call("y", 1)
                await asyncio.sleep(0.1)
                began = time.monotonic()
            assert all(done.done() for done, _ in calls)
            assert time.monotonic() - began < 30
            for done, rank in calls:
                error = done.exception()
                assert isinstance(error, BrokenWorldError)
                assert (error.rank, error.cause) == (rank, "closed")
                assert error.words == f"rank {rank} left its WorldManager while it made the world"
            assert not made.worlds
            if stage in ("waiting", "several"):  # rank 0 waits for another one with that rank
                await asyncio.sleep(0)
                assert not hosting.done()
                hosting.cancel()
                await asyncio.wait([hosting])
        assert len(asyncio.all_tasks()) == 1
        return calls

    asyncio.run(main())


def test_no_world_is_made_in_a_manager_that_is_being_left():
    async def main():
        refused = []
        async with WorldManager() as made:

            async def again(error):
                try:
                    await asyncio.sleep(0.05)
                    await made.initialize_world("x", 0, 1)
                except UsageError as refusal:
                    refused.append(str(refusal))

            made.on_broken(again)
            await made.initialize_world("w", 0, 1)
            made._worlds["w"].failed(RuntimeError("injected"))
        assert refused == ["the WorldManager is being left: make no world in it any more"]
        async with made:  # it can be used again
            await made.initialize_world("x", 0, 1)

    asyncio.run(main())


PROGRAM = """
import asyncio, sys
from ms_recover.errors import StartError
from ms_recover.worlds import WorldManager

async def main():
    async with WorldManager() as made:
        sys.executable = "/nowhere/python"
        try:
            await made.initialize_world("w", {rank}, 3, port={port}, timeout=600)
        except StartError as error:
            print(error, made.watchdog.pid, made.worlds)

asyncio.run(main())
"""


@pytest.mark.processes
@pytest.mark.parametrize("failing", range(3))
def test_a_helper_that_cannot_be_started_is_a_start_error_there_and_closed_by_that_rank_for_others(port, failing):
    at = port()

    async def main():
        managers = {rank: WorldManager() for rank in range(3) if rank != failing}
        calls = [made.initialize_world("w", rank, 3, port=at, timeout=LONG) for rank, made in managers.items()]
        errors = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 60)
        await asyncio.gather(*(made.__aexit__() for made in managers.values()))
        return errors

    command = [sys.executable, "-W", "error", "-c", PROGRAM.format(rank=failing, port=at)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        errors = asyncio.run(main())
        said = process.communicate(timeout=60)
    assert said[1] == ""
    assert said[0].startswith("the heartbeat helper cannot be started: [Errno 2] No such file or directory")
    assert said[0].endswith("None {}\n")
    for error in errors:
        assert isinstance(error, BrokenWorldError)
        assert (error.rank, error.cause) == (failing, "peer_reported")
        if failing == 0:
            assert error.words.startswith("rank 0 reports: the heartbeat helper cannot be started")
        else:
            assert error.words.startswith("rank")
            assert f"closed of rank {failing}" in error.words or f"peer_reported of rank {failing}" in error.words


HOST = """
import asyncio
from ms_recover.worlds import WorldManager

async def main():
    async with WorldManager() as made:
        await made.initialize_world("w", 0, 3, port={port}, timeout=600)

asyncio.run(main())
"""


@pytest.mark.processes
def test_in_a_timeout_rank_0_is_at_fault_when_it_is_frozen_itself(port, monkeypatch):
    """It has said that it waits for rank 2, some time ago."""
    monkeypatch.setattr(rendezvous, "_SILENT_S", 1.5)
    at = port()

    async def main(process):
        async with WorldManager() as made:
            making = asyncio.ensure_future(made.initialize_world("w", 1, 3, port=at, timeout=60))
            await until(lambda: "w" in made._making and "waits for rank 2" in made._making["w"].stage)
            process.send_signal(signal.SIGSTOP)
            await until(lambda: made._making["w"].awaited() == [0])
            made._making["w"].expire(60)  # its time limit
            with pytest.raises(BrokenWorldError) as caught:
                await making
            return caught.value

    with subprocess.Popen([sys.executable, "-c", HOST.format(port=at)]) as process:
        try:
            error = asyncio.run(main(process))
        finally:
            process.kill()
    assert (error.rank, error.cause) == (0, "timeout")
    assert "rank 0 did not answer" in error.words


def test_a_start_error_is_an_error_of_the_system_and_of_this_package():
    assert issubclass(StartError, OSError)
    assert issubclass(StartError, MsRecoverError)
    assert StartError.exit_code == 1
