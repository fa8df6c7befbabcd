"""Unexpected errors of a member itself, in its background work: its world breaks at once, with the reason."""

import asyncio
import os
import time

import numpy as np
import pytest

from ms_recover.errors import BrokenWorldError
from ms_recover.worlds import (
    Security,
    WorldManager,
    authentication,
    collectives,
    handshake,
    link,
    sending,
    stream,
    tensors,
    watchdog,
    wire,
)
from ms_recover.worlds.authentication import AcceptError, Acceptor, HandshakeRefusedError
from ms_recover.worlds.handshake import Hello, MessageType, Purpose
from ms_recover.worlds.state import SMALL
from tests.support.ports import free_port

HELLO = Hello(Purpose.RENDEZVOUS, 0, 1, 2, 1, 1, 3000, b"n" * 32, "w")
LONG = 60.0


def fail(*_, **__):
    raise RuntimeError("injected")


async def errors(*members):
    """Return the errors of all members, none of which may wait for its timeout."""
    began = time.monotonic()
    found = await asyncio.gather(*members, return_exceptions=True)
    assert time.monotonic() - began < LONG / 2
    assert all(isinstance(error, BrokenWorldError) for error in found), found
    return found


@pytest.mark.parametrize("size", [2, 4])
def test_an_error_while_accepting_fails_all_who_join(port, monkeypatch, size):
    """Rank 1 waits for the welcome; the others are in their handshakes, or not yet accepted."""
    at, when_ready, strike = port(), stream.when_ready, []

    async def struck(sock, call, **options):
        if strike and getattr(call, "__name__", "") == "accept":
            fail()
        return await when_ready(sock, call, **options)

    async def main():
        managers = [WorldManager(security=Security()) for _ in range(size)]
        monkeypatch.setattr(stream, "when_ready", struck)
        joining = []
        for rank, manager in enumerate(managers):
            if rank == min(2, size - 1):
                await asyncio.sleep(0.2)
                strike.append(True)
            joining.append(asyncio.ensure_future(manager.initialize_world("w", rank, size, port=at, timeout=LONG)))
            await asyncio.sleep(0.05 if rank == 0 else 0)
        found = await errors(*joining)
        assert (found[0].rank, found[0].cause) == (0, "closed")
        assert all("accepting connections failed: RuntimeError: injected" in error.words for error in found)
        assert not any(manager.worlds for manager in managers)
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(main())


async def accepting(admit, visit):
    """Visit an acceptor; return its error, and the result of the visit."""
    with stream.listen("127.0.0.1", 0) as listener:
        acceptor = Acceptor(listener, b"", Security(), admit, lambda words: None)
        work = asyncio.ensure_future(acceptor.accept_during(asyncio.Event().wait()))
        try:
            return await asyncio.wait_for(visit(listener.getsockname()[1]), LONG), work.done() and work.exception()
        finally:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)


async def refused(port):
    """Return the reason for which a member is refused."""
    with pytest.raises(HandshakeRefusedError) as caught:
        sock, _ = await authentication.connect("127.0.0.1", port, HELLO, b"", Security())
        with sock:
            await authentication.read_message(sock, MessageType.WELCOME, handshake.MAX_MESSAGE)
    await asyncio.sleep(0.1)
    return str(caught.value)


def test_an_error_while_admitting_ends_the_acceptor_and_is_the_reason_of_the_refusal():
    words, error = asyncio.run(accepting(fail, refused))
    assert "accepting connections failed: RuntimeError: injected" in words
    assert isinstance(error, AcceptError)


def test_an_error_before_the_proof_ends_one_connection_only(monkeypatch):
    monkeypatch.setattr(handshake, "unpack_hello", fail)  # anyone may connect and cause it
    words, error = asyncio.run(accepting(lambda joined: None, refused))
    assert words == "refused: the handshake failed: RuntimeError"
    assert not error


def break_memory(monkeypatch, worlds):
    monkeypatch.setattr(tensors, "allocate", fail)


def break_state(monkeypatch, worlds):
    monkeypatch.setattr(worlds[0].state, "payload_received", fail)
    monkeypatch.setattr(worlds[0].state, "_mismatch", fail)  # of a receive that waits


def break_delivery(monkeypatch, worlds):
    monkeypatch.setattr(worlds[0], "_deliver", fail)
    monkeypatch.setattr(worlds[0]._links[1], "take", fail)


def break_reading(monkeypatch, worlds):
    monkeypatch.setattr(worlds[0]._links[1], "_parse", fail)


def break_decoding(monkeypatch, worlds):
    decode = wire.decode
    monkeypatch.setattr(wire, "decode", lambda *args: (monkeypatch.setattr(wire, "decode", decode), fail()))


@pytest.mark.processes
@pytest.mark.parametrize("strike", [break_memory, break_state, break_delivery, break_reading, break_decoding])
@pytest.mark.parametrize("posted", [True, False])
@pytest.mark.parametrize("length", [8, 10 * SMALL])
def test_an_error_while_receiving_breaks_the_world_on_both_sides(together, monkeypatch, strike, posted, length):
    worlds, through, struck = [None, None], asyncio.Event(), asyncio.Event()

    async def work(manager, rank):
        worlds[rank] = manager._worlds["w"]
        c = manager.communicator
        await c.barrier(world="w")
        if rank:
            through.set()
            await struck.wait()
            with pytest.raises(BrokenWorldError) as caught:
                await c.send(np.zeros(length, np.uint8), 0, world="w")
                await c.recv(0, world="w")
            return caught.value
        await through.wait()  # what is struck may be both worlds'
        if posted:
            asyncio.get_running_loop().call_later(0.1, lambda: (strike(monkeypatch, worlds), struck.set()))
        else:
            strike(monkeypatch, worlds)
            struck.set()
            await asyncio.sleep(0.2)
        with pytest.raises(BrokenWorldError) as caught:
            await c.recv(1, world="w")
        return caught.value

    own, other = together(work, limit=LONG)
    assert (own.cause, own.rank) == ("closed", 0)
    assert "an unexpected error: RuntimeError: injected" in own.words
    assert other.cause in ("peer_reported", "eof", "reset")
    assert other.rank == 0


@pytest.mark.processes
@pytest.mark.parametrize("place", [sending, link], ids=["in the thread of large frames", "in the event loop"])
def test_an_error_while_writing_in_the_background_breaks_the_world(together, monkeypatch, place):
    large = place is sending

    async def work(manager, rank):
        c = manager.communicator
        with pytest.raises(BrokenWorldError) as caught:
            if rank == 0:
                one = np.zeros(100_000_000 if large else 1_000_000, np.uint8)
                waiting = [asyncio.ensure_future(c.send(one, 1, world="w")) for _ in range(1 if large else 100)]
                await asyncio.sleep(0.1)
                monkeypatch.setattr(place, "send_part", fail)
                await asyncio.gather(*waiting)
            await asyncio.sleep(0.3)
            for _ in range(100):
                await c.recv(0, world="w")
        return caught.value

    own, other = together(work, limit=LONG)
    assert "an unexpected error: RuntimeError: injected" in own.words
    assert other.rank == 0


@pytest.mark.processes
def test_an_error_in_the_sending_half_of_a_collective_fails_it_on_both_sides(together, monkeypatch):
    async def broken(call, *_):
        if call.rank == 0:
            fail()
        await asyncio.Event().wait()

    monkeypatch.setattr(collectives, "_send_pieces", broken)

    async def work(manager, rank):
        with pytest.raises(BrokenWorldError) as caught:
            await manager.communicator.all_reduce(np.zeros(1000), world="w")
        return caught.value

    own, other = together(work, limit=LONG)
    assert (own.cause, own.rank, other.rank) == ("closed", 0, 0)
    assert "RuntimeError: injected" in own.words


def watched_alone(heartbeat, strike, seconds):
    """Strike the watchdog of a member; return the error of its world, and the number of helpers that were replaced."""

    async def main():
        port = free_port()
        async with WorldManager(heartbeat=heartbeat) as one, WorldManager(heartbeat=LONG) as two:
            for rank, manager in enumerate((one, two)):
                manager.joining = asyncio.ensure_future(manager.initialize_world("w", rank, 2, port=port, timeout=LONG))
            await asyncio.gather(one.joining, two.joining)
            strike(one.watchdog)
            try:
                await asyncio.wait_for(one.communicator.recv(1, world="w"), seconds)
            except BrokenWorldError as error:
                return error, one.watchdog.replaced + two.watchdog.replaced
            except asyncio.TimeoutError:
                return None, one.watchdog.replaced + two.watchdog.replaced

    return asyncio.run(main())


@pytest.mark.processes
@pytest.mark.parametrize("fault", ["it ends at once", "it cannot be started"])
def test_a_helper_that_cannot_be_kept_running_breaks_the_world(monkeypatch, tmp_path, fault):
    def strike(dog):
        if fault == "it ends at once":
            monkeypatch.setattr(watchdog, "_HELPER", tmp_path / "none.py")
        else:
            monkeypatch.setattr(watchdog.subprocess, "Popen", lambda *_, **__: os.stat(tmp_path / "none"))
        dog._helper.kill()

    monkeypatch.setattr(watchdog, "_FAILING_LIMITS", 2)
    error, replaced = watched_alone(1.0, strike, LONG)
    assert (error.cause, error.rank) == ("closed", 0)
    assert error.words == "the heartbeat helper cannot be kept running"
    assert replaced


@pytest.mark.processes
def test_a_helper_with_invalid_reports_is_replaced(monkeypatch):
    def strike(dog):
        loads = watchdog.json.loads

        def broken(data):
            monkeypatch.setattr(watchdog.json, "loads", loads)
            fail()

        monkeypatch.setattr(watchdog.json, "loads", broken)

    assert watched_alone(3.0, strike, 2.0) == (None, 1)
