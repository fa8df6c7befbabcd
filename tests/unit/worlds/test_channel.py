"""Messages and chunks over a real world of two."""

import numpy as np
import pytest

from ms_recover.worlds.transfer import Channel, PayloadKind, TransferError

pytestmark = pytest.mark.processes

LARGE = np.random.default_rng(0).bytes(3_000_001)


@pytest.mark.parametrize("payload", [b"", b"message", LARGE])
def test_payloads_arrive_as_they_were_sent(together, payload):
    async def work(manager, rank):
        channel = Channel(manager.communicator, "w", 1 - rank)
        if rank == 0:
            await channel.send_message(payload)
            await channel.send(PayloadKind.CHUNK, memoryview(payload))
            return None
        message = await channel.receive_message(len(payload))
        kind, chunk = await channel.receive(len(payload), buffer=memoryview(bytearray(len(payload))))
        return message, kind, bytes(chunk)

    assert together(work)[1] == (payload, PayloadKind.CHUNK, payload)


def test_a_payload_longer_than_the_limit_is_refused_before_it_is_received(together):
    async def work(manager, rank):
        channel = Channel(manager.communicator, "w", 1 - rank)
        if rank == 0:
            await channel.send(PayloadKind.MESSAGE, b"12345")
        else:
            with pytest.raises(TransferError, match="5 bytes of kind 1, the limit is 4 bytes"):
                await channel.receive_message(4)
        await manager.communicator.barrier(world="w")

    together(work)


def test_a_wrong_digest_is_refused(together):
    async def work(manager, rank):
        if rank == 0:
            head = np.array([PayloadKind.MESSAGE, 4, 1, 2], np.uint64)
            await manager.communicator.send(head, 1, world="w")
            await manager.communicator.send(np.zeros(4, np.uint8), 1, world="w")
        else:
            with pytest.raises(TransferError, match="digest mismatch"):
                await Channel(manager.communicator, "w", 0).receive_message(4)
        await manager.communicator.barrier(world="w")

    together(work)
