"""Random and damaged bytes at every socket: no crash, no hang, no growth, and only errors of the protocol.

A short run by default; ``WORLDS_FUZZ=100000`` makes it a long one.
"""

import asyncio
import contextlib
import os
import random
import resource
import socket

import pytest

from ms_recover.worlds import Security, WorldManager, handshake, heartbeat, wire
from ms_recover.worlds.handshake import Hello, MemberAddress, MessageType, Purpose, Welcome
from ms_recover.worlds.link import Link
from ms_recover.worlds.state import SMALL
from ms_recover.worlds.wire import FrameKind, Header, ProtocolError
from tests.support.ports import free_port

ROUNDS = int(os.environ.get("WORLDS_FUZZ", "2000"))
pytestmark = pytest.mark.timeout(max(600, ROUNDS // 20))
WORLD = wire.world_id("w")
HELLO = handshake.pack_hello(Hello(Purpose.RENDEZVOUS, 0, 1, 2, 1, 1, 3000, b"n" * 32, "w"))
WELCOME = handshake.pack_welcome(Welcome(1, b"n" * 32, (MemberAddress("127.0.0.1", 1, 2, 3),) * 3))
HEADER = wire.encode(Header(FrameKind.MESSAGE, "float32", (2, 3), WORLD, 0, 0, 0, 0, 24, 0))
BEAT = heartbeat.pack(b"k" * 32, heartbeat.Datagram(heartbeat.HEARTBEAT, 0, WORLD, 0, 1, 1))


def damaged(chance, data):
    """Return the bytes with some changed, cut or added, or others altogether."""
    kind = chance.randrange(5)
    if kind == 0:
        return chance.randbytes(chance.randrange(300))
    data = bytearray(data)
    for _ in range(chance.randrange(1, 4)):
        if data and kind != 2:
            data[chance.randrange(len(data))] = chance.choice([0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)])
    if kind == 2:
        return bytes(data[: chance.randrange(len(data))])
    return bytes(data) + (chance.randbytes(chance.randrange(9)) if kind == 3 else b"")


def read_header(data):
    header = wire.decode(memoryview(data), 0, len(data))
    assert header is None or header.length <= wire.MAX_LENGTH


@pytest.mark.parametrize(
    ("read", "good"),
    [
        (read_header, HEADER),
        (handshake.unpack_hello, HELLO),
        (handshake.unpack_welcome, WELCOME),
        (
            lambda data: len(data) < 8 or handshake.unpack_preamble(data[:8], 1024),
            handshake.pack(MessageType.HELLO, HELLO),
        ),
        (lambda data: heartbeat.unpack(data) and heartbeat.genuine(b"k" * 32, data), BEAT),
    ],
    ids=["frame", "hello", "welcome", "preamble", "heartbeat"],
)
def test_damaged_bytes_are_read_or_refused(read, good):
    chance = random.Random(0)
    for _ in range(ROUNDS):
        with contextlib.suppress(ProtocolError):
            read(damaged(chance, good))


class Sink:
    """Takes what a link reads, as far as it goes; shell and state in one."""

    def __init__(self):
        self.link, self.ended = None, None
        self.state = self

    def apply(self, nothing):
        assert nothing is None

    def header_received(self, peer, header, whole):
        if header.kind in (FrameKind.MESSAGE, FrameKind.PART):
            self.link.fill(memoryview(bytearray(header.length))) if header.length <= SMALL else self.link.pause()

    def payload_received(self, peer):
        pass

    def lost(self, peer, cause, words):
        self.ended = cause
        self.link.close()


def test_damaged_frames_end_a_link_or_are_read():
    chance = random.Random(1)

    async def main():
        for _ in range(ROUNDS // 4):
            ours, theirs = socket.socketpair()
            ours.setblocking(False)
            sink = Sink()
            sink.link = link = Link(ours, 1, sink)
            link.start()
            for _ in range(chance.randrange(1, 4)):
                with contextlib.suppress(BrokenPipeError):  # refused already
                    theirs.send(HEADER + bytes(24) if chance.random() < 0.5 else damaged(chance, HEADER))
                await asyncio.sleep(0)
            theirs.close()
            for _ in range(50):
                await asyncio.sleep(0)
            assert sink.ended in ("eof", "protocol", "reset") or link._paused
            link.close()

    asyncio.run(asyncio.wait_for(main(), max(300, ROUNDS // 20)))


@pytest.mark.processes
def test_damaged_bytes_at_the_rendezvous_do_not_prevent_the_world():
    """Hundreds of damaged handshakes are refused; then the world is made."""
    chance = random.Random(2)
    port = free_port()
    good = handshake.pack(MessageType.HELLO, HELLO) + handshake.pack(MessageType.PROOF, bytes(32))

    async def visit(limit):
        async with limit:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            with contextlib.suppress(ConnectionError), contextlib.closing(writer):
                writer.write(damaged(chance, good))
                writer.write_eof()
                await reader.read()

    async def main():
        security = Security(b"a token of some length")
        async with WorldManager(security=security) as host, WorldManager(security=security) as client:
            making = asyncio.ensure_future(host.initialize_world("w", 0, 2, port=port, timeout=3600))
            await asyncio.sleep(0.05)
            limit = asyncio.Semaphore(20)
            await asyncio.gather(*(visit(limit) for _ in range(50)))
            descriptors = len(os.listdir("/proc/self/fd"))
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            for _ in range(max(1, ROUNDS // 1000)):
                await asyncio.gather(*(visit(limit) for _ in range(100)))
            assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000, "memory grew (KiB)"
            assert len(os.listdir("/proc/self/fd")) <= descriptors + 20
            await asyncio.gather(making, client.initialize_world("w", 1, 2, port=port, timeout=60))
            await asyncio.gather(*(m.communicator.barrier(world="w") for m in (host, client)))

    asyncio.run(main())
