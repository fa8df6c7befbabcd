"""Files over a world that breaks, without any socket."""

import asyncio
import os

import numpy as np
import pytest
import xxhash

from ms_recover.errors import BrokenWorldError
from ms_recover.worlds import transfer
from ms_recover.worlds.transfer import (
    TRANSFER_WORLD,
    Channel,
    PayloadKind,
    TransferError,
    UnexpectedMessageError,
    receive_file,
    send_file,
)

DATA = bytes(range(256)) * 40


class Script:
    """A channel that breaks where it should; the host gives from the offset that is asked for."""

    def __init__(self, chunk, breaks=()):
        self.chunk, self.breaks = chunk, list(breaks)
        self.asked, self.joined = [], 0

    async def connect(self):
        self.joined += 1
        return self

    async def send_message(self, message):
        self.asked.append(int(message))
        self.at = int(message)

    async def receive(self, limit, timeout=None, buffer=None):
        if self.breaks and self.at >= self.breaks[0]:
            self.breaks.pop(0)
            raise BrokenWorldError("w", 0, 0, "eof")
        data = DATA[self.at : self.at + self.chunk]
        self.at += len(data)
        return PayloadKind.CHUNK, memoryview(data)

    async def receive_message(self, limit):
        return b"the end"


def taken(script, size=256 * 40, **options):
    got = bytearray()
    end = asyncio.run(receive_file(script.connect, lambda at: str(at).encode(), size, got.extend, **options))
    return bytes(got), end


def test_a_file_is_taken_up_where_it_broke():
    script = Script(1000, breaks=[0, 3000, 3000, 9000])
    assert taken(script, tries=2) == (DATA, b"the end")
    assert script.asked == [0, 0, 3000, 3000, 9000]


def test_it_gives_up_in_the_end():
    script = Script(1000, breaks=[4000] * 9)
    with pytest.raises(BrokenWorldError):
        taken(script, tries=2)
    assert script.asked == [0, 4000, 4000]


def test_a_file_of_nothing_is_only_its_end():
    assert taken(Script(10), size=0) == (b"", b"the end")


@pytest.mark.parametrize("size", [0, 999])
def test_chunks_have_to_fit(size):
    script = Script(1000 if size else 0)
    with pytest.raises(TransferError):
        taken(script, size=size or 10)


def test_a_message_instead_of_a_chunk_is_handed_on():
    class Talking(Script):
        async def receive(self, limit, timeout=None, buffer=None):
            return PayloadKind.MESSAGE, memoryview(b"no")

    with pytest.raises(UnexpectedMessageError, match="no"):
        taken(Talking(1))


class Pipe:
    """A communicator that gives back what was sent."""

    def __init__(self):
        self.sent = []

    async def send(self, tensor, dst, *, world, timeout):
        self.sent.append(np.array(tensor))

    async def recv(self, src, *, world, out, timeout):
        data = self.sent.pop(0)
        assert data.shape == out.shape  # the world would break
        out.cast("B")[:] = data.tobytes()
        return out


class Manager:
    def __init__(self):
        self.communicator = Pipe()


def test_channels_check_length_kind_and_digest():
    async def run():
        manager = Manager()
        channel, sent = Channel(manager.communicator, TRANSFER_WORLD, 1), manager.communicator.sent
        await channel.send_message(b"hello")
        assert await channel.receive_message(5) == b"hello"
        await channel.send_message(b"")
        assert await channel.receive_message(5) == b""
        await channel.send_message(b"hello")
        with pytest.raises(TransferError, match="5 bytes"):
            await channel.receive_message(4)
        sent.clear()
        await channel.send(PayloadKind.CHUNK, b"hello")
        with pytest.raises(TransferError, match="a chunk of a file"):
            await channel.receive_message(5)
        await channel.send_message(b"hello")
        sent[1][2] ^= 4
        with pytest.raises(TransferError, match="changed in transit"):
            await channel.receive_message(5)
        for head in ([3, 5, 0, 0], [1, 1 << 60, 0, 0], [0, 0, 0, 0]):
            sent[:] = [np.array(head, np.uint64)]
            with pytest.raises(TransferError):
                await channel.receive(1 << 20)

    asyncio.run(run())


def test_a_file_is_given_in_chunks(tmp_path, monkeypatch):
    monkeypatch.setattr(transfer, "CHUNK", 4096)
    (tmp_path / "file").write_bytes(DATA)

    async def run(offset, size):
        manager = Manager()
        descriptor = os.open(tmp_path / "file", os.O_RDONLY)
        try:
            reached = await send_file(Channel(manager.communicator, TRANSFER_WORLD, 1), descriptor, offset, size)
        finally:
            os.close(descriptor)
        heads, bodies = manager.communicator.sent[::2], manager.communicator.sent[1::2]
        for head, body in zip(heads, bodies, strict=True):
            digest = xxhash.xxh3_128_intdigest(body.tobytes())
            assert [int(one) for one in head] == [PayloadKind.CHUNK, len(body), digest >> 64, digest & (1 << 64) - 1]
            assert len(body) <= 4096
        return reached, b"".join(body.tobytes() for body in bodies)

    assert asyncio.run(run(0, len(DATA))) == (len(DATA), DATA)
    assert asyncio.run(run(5000, len(DATA))) == (len(DATA), DATA[5000:])
    assert asyncio.run(run(0, len(DATA) + 7)) == (len(DATA), DATA)  # the file is shorter than it should be
