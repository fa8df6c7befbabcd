"""Making worlds: invalid arguments, the message when members are missing, and addresses that are names."""

import asyncio
import itertools
import socket
import subprocess
import sys
import time

import pytest

from ms_recover.errors import BrokenWorldError, UsageError
from ms_recover.worlds import WorldManager, rendezvous, stream


@pytest.mark.parametrize(
    ("rank", "size", "port", "timeout", "words"),
    [
        (2, 2, 29999, 1, "invalid rank 2 of 2: the size is 1 to 1024, and ranks are 0 to size - 1"),
        (-1, 2, 29999, 1, "rank -1 of 2"),
        (0, 0, 29999, 1, "rank 0 of 0"),
        (0, 1025, 29999, 1, "the size is 1 to 1024"),
        (0, 2, 0, 1, "invalid port 0: ports are 1 to 65535$"),
        (0, 2, 65536, 1, "invalid port 65536"),
        (0, 2, 29999, 0, "invalid timeout of 0 s: it must be more than 0 s$"),
        (0, 2, 29999, float("nan"), "timeout of nan s"),
    ],
)
def test_an_invalid_argument_is_named_with_the_valid_range(rank, size, port, timeout, words):
    async def main():
        async with WorldManager() as made:
            with pytest.raises(UsageError, match=words):
                await made.initialize_world("w", rank, size, port=port, timeout=timeout)

    asyncio.run(main())


def fails(rank, port, timeout, addr="127.0.0.1"):
    """Return the error of a member that no other member joins."""

    async def main():
        async with WorldManager() as made:
            with pytest.raises(BrokenWorldError) as caught:
                await made.initialize_world("w", rank, 2, addr, port, timeout)
            assert not made.worlds
            return caught.value

    return asyncio.run(main())


def test_a_timeout_has_few_digits_and_the_last_error(port):
    error = fails(1, port(), 0.299999)
    assert error.cause == "timeout"
    words = (
        "not all members joined within 0.3 s; rank 0 did not answer; the last attempt failed: no program listens there"
    )
    assert (error.words, error.rank) == (words, 0)
    error = fails(0, port(), 0.1)
    assert (error.words, error.rank) == ("not all members joined within 0.1 s; rank 1 did not answer", 1)


def test_a_timeout_says_that_rank_0_was_reached(port):
    at = port()

    async def main():
        async with WorldManager() as host, WorldManager() as client:
            making = asyncio.ensure_future(host.initialize_world("w", 0, 3, port=at, timeout=60))
            with pytest.raises(BrokenWorldError, match="connected with rank 0, which waits for rank 2"):
                await client.initialize_world("w", 1, 3, port=at, timeout=1)
            making.cancel()
            await asyncio.wait([making])

    asyncio.run(main())


def resolving_to(monkeypatch, *addresses, after=0.0):
    async def resolve(self, host, port, **options):
        await asyncio.sleep(after)
        return [(0, 0, 0, "", (address, 0)) for address in addresses]

    monkeypatch.setattr(asyncio.base_events.BaseEventLoop, "getaddrinfo", resolve)


def has_ipv6():
    with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as probe:
        try:
            probe.bind(("::1", 0))
        except OSError:
            return False
    return True


@pytest.mark.processes
@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
@pytest.mark.parametrize("order", [1, -1])
def test_a_connecting_member_tries_each_address_of_a_name(port, monkeypatch, host, order):
    if not has_ipv6():
        pytest.skip("no IPv6 here")
    resolving_to(monkeypatch, *["::1", "127.0.0.1"][::order])
    at = port()

    async def main():
        async with WorldManager() as one, WorldManager() as two:
            await asyncio.gather(
                one.initialize_world("w", 0, 2, host, at, timeout=60),
                two.initialize_world("w", 1, 2, "a-name", at, timeout=60),
            )
            await asyncio.gather(*(member.communicator.barrier(world="w") for member in (one, two)))

    asyncio.run(main())


@pytest.mark.processes
def test_a_listening_socket_accepts_the_members_of_one_world_after_the_other(monkeypatch):
    monkeypatch.setattr(rendezvous, "_FIRST_RETRY_S", 3600.0)  # no connection is refused in between

    async def main():
        with stream.listen("127.0.0.1", 0) as listener:
            at = listener.getsockname()[1]
            for _ in range(2):
                async with WorldManager() as host, WorldManager() as client:
                    joining = asyncio.ensure_future(client.initialize_world("w", 1, 2, port=at, timeout=60))
                    await asyncio.sleep(0.05)
                    await host.initialize_world("w", 0, 2, port=at, timeout=60, listener=listener)
                    await joining

    asyncio.run(main())


def not_listening(kind=socket.SOCK_STREAM, family=socket.AF_INET):
    sock = socket.socket(family, kind | socket.SOCK_NONBLOCK)
    if family == socket.AF_INET:
        sock.bind(("127.0.0.1", 0))
    return sock


def closed():
    listener = stream.listen("127.0.0.1", 0)
    listener.close()
    return listener


def blocking():
    listener = stream.listen("127.0.0.1", 0)
    listener.setblocking(True)
    return listener


def connected():
    with stream.listen("127.0.0.1", 0) as listener:
        sock = socket.create_connection(listener.getsockname())
    sock.setblocking(False)
    return sock


def of_a_file():
    sock = not_listening(family=socket.AF_UNIX)
    sock.bind("")  # a name of the kernel's choice, without a file
    sock.listen()
    return sock


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: not_listening(socket.SOCK_DGRAM), "it is no TCP socket"),
        (lambda: not_listening(socket.SOCK_SEQPACKET, socket.AF_UNIX), "it is no TCP socket"),
        (of_a_file, "it is no TCP socket"),
        (closed, "it is closed"),
        (not_listening, "it does not listen"),
        (connected, "it does not listen"),
        (blocking, "it blocks"),
        (lambda: 3, "it is no socket"),
    ],
)
@pytest.mark.parametrize("size", [1, 2])
def test_a_listener_that_accepts_nobody_is_refused(make, words, size):
    async def main():
        async with WorldManager() as made:
            listener = make()
            with pytest.raises(UsageError, match=f"invalid listener: {words}"):
                await made.initialize_world("w", 0, size, timeout=60, listener=listener)
            assert not made.worlds
            if isinstance(listener, socket.socket):
                listener.close()

    asyncio.run(main())


def test_every_address_of_a_name_has_to_be_allowed(monkeypatch):
    resolving_to(monkeypatch, "127.0.0.1", "192.0.2.1")

    async def main():
        async with WorldManager() as made:
            with pytest.raises(UsageError, match=r"192\.0\.2\.1 is not loopback"):
                await made.initialize_world("w", 1, 2, "a-name", 29999, timeout=5)

    asyncio.run(main())


def test_looking_up_a_name_counts_as_waiting(port, monkeypatch):
    resolving_to(monkeypatch, "127.0.0.1", after=60)
    began = time.monotonic()
    error = fails(1, port(), 0.2, "a-name")
    assert error.cause == "timeout"
    assert error.words == "not all members joined within 0.2 s; 'a-name' is being looked up"
    assert time.monotonic() - began < 30
    resolving_to(monkeypatch, "127.0.0.1", after=0.2)
    assert "not all members joined within 0.4 s" in fails(1, port(), 0.4, "a-name").words


def test_an_unknown_host_is_an_invalid_address():
    async def main():
        for name in ("no such host", "a" * 70 + ".example"):
            with pytest.raises(UsageError, match="is not a valid address"):
                await stream.resolve(name)

    asyncio.run(main())


@pytest.mark.parametrize("name", [None, "hccl", "gloo"])
def test_a_backend_is_accepted_and_a_link_between_devices_is_answered(port, caplog, name):
    async def main():
        async with WorldManager() as made:
            for world in ("a", "b"):
                await made.initialize_world(world, 0, 1, backend=name, addr="127.0.0.1", port=port())
            with pytest.raises(UsageError, match=r"in 2 worlds \('a', 'b'\)"):
                await made.communicator.barrier()
            await made.remove_world("b")
            await made.communicator.barrier()
            with pytest.raises(UsageError, match="invalid backend 5: it must be a name"):
                await made.initialize_world("b", 0, 1, backend=5, port=port())

    asyncio.run(main())
    words = "backend hccl is not used: worlds carry host memory over TCP, and tensors of devices cross the host"
    assert [record.getMessage() for record in caplog.records] == ([words] if name == "hccl" else [])


@pytest.mark.processes
@pytest.mark.parametrize("start", ["asyncio.run(main())", "asyncio.new_event_loop().run_until_complete(main())"])
def test_a_program_that_does_not_wait_for_its_cleanup_leaves_in_good_order(port, start):
    at = port()
    program = f"""
import asyncio
from ms_recover.worlds import WorldManager

async def main():
    manager = WorldManager()
    await manager.initialize_world("w", 1, 2, port={at}, timeout=60)
    await manager.communicator.send(bytes(9_000_000), 0, "w")
    manager.cleanup()

{start}
"""

    async def main():
        async with WorldManager() as made:
            await made.initialize_world("w", 0, 2, port=at, timeout=60)
            assert (await made.communicator.recv(1)).shape == (9_000_000,)
            with pytest.raises(BrokenWorldError) as caught:
                await made.communicator.recv(1)
            return caught.value

    options = ["-X", "dev", "-W", "ignore:unclosed event loop:ResourceWarning"]
    process = subprocess.Popen([sys.executable, *options, "-c", program], stderr=subprocess.PIPE, text=True)
    try:
        error = asyncio.run(asyncio.wait_for(main(), 60))
        assert (process.communicate(timeout=60)[1], process.returncode) == ("", 0)
    finally:
        process.kill()
        process.communicate()
    assert (error.cause, error.rank) == ("closed", 1)


def test_a_member_that_knocks_first_knocks_again_at_once_and_then_more_and_more_seldom(port, monkeypatch):
    pauses, sleep = [], asyncio.sleep

    async def recorded(seconds, *args):
        pauses.append(seconds)
        return await sleep(seconds if seconds < 0.01 else 0)

    monkeypatch.setattr(rendezvous.asyncio, "sleep", recorded)
    for limit in (0.2, 20):  # a busy machine knocks a few times only in the first
        pauses.clear()
        assert fails(1, port(), limit).cause == "timeout"
        grown = [pause for pause in pauses if pause]
        if max(grown) >= 0.5:
            break
    assert grown[0] <= 0.001
    assert sum(grown[:8]) < 0.05
    assert all(before <= after <= 1.6 * before for before, after in itertools.pairwise(grown))
    assert max(grown) == 0.5


def test_a_cancellation_is_not_lost_when_a_connection_is_refused_at_the_same_moment(port, monkeypatch):
    """``asyncio.wait_for`` before Python 3.12 lost it: the member then knocked for ever, and its thread hung."""

    async def main():
        async def refused(*_):
            making.cancel()
            raise ConnectionRefusedError

        monkeypatch.setattr(rendezvous, "connect", refused)
        async with WorldManager() as manager:
            making = asyncio.ensure_future(manager.initialize_world("w", 1, 2, port=port(), timeout=600))
            done, _ = await asyncio.wait([making], timeout=10)
            assert done, "it still knocks"
            assert making.cancelled()
            assert not manager.worlds

    asyncio.run(main())


@pytest.mark.parametrize("late", [0, 1])
def test_a_result_that_comes_with_the_cancellation_is_dropped(late):
    async def main():
        dropped = []

        async def work():
            try:
                await asyncio.sleep(0 if not late else 60)
            except asyncio.CancelledError:
                await asyncio.sleep(0.01)
            return "result"

        waiting = asyncio.ensure_future(stream.in_time(work(), 60, dropped.append))
        for _ in range(3):
            await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        with pytest.raises(asyncio.TimeoutError):
            await stream.in_time(asyncio.sleep(60), 0.01)
        with pytest.raises(ZeroDivisionError):
            await stream.in_time(divide(), 60)
        assert await stream.in_time(asyncio.sleep(0, "in time"), 60) == "in time"
        return dropped

    async def divide():
        return 1 // 0

    assert asyncio.run(main()) == ["result"]
