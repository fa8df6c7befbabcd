"""Messages between a splitter and a worker, over real worlds of this machine."""

from __future__ import annotations

import asyncio
import json

import numpy as np
import pytest

from ms_recover.errors import InputError
from ms_recover.splitting.protocol import MessageChannel
from ms_recover.worlds.manager import WorldManager
from ms_recover.worlds.security import Security
from tests.support.ports import free_port

pytestmark = pytest.mark.processes

WORLD = "messages"


def with_channels(work):
    """Run work with the managers and channels of both ends."""

    async def run():
        async with WorldManager(security=Security()) as first, WorldManager(security=Security()) as second:
            port = free_port()
            joining = [
                manager.initialize_world(WORLD, rank, 2, port=port) for rank, manager in enumerate((first, second))
            ]
            await asyncio.gather(*joining)
            return await work(first, MessageChannel(second.communicator, WORLD, 0))

    return asyncio.run(asyncio.wait_for(run(), 60))


def test_a_message_arrives_with_its_fields_and_tensors():
    async def work(manager, channel):
        sender = MessageChannel(manager.communicator, WORLD, 1)
        array = np.arange(6.0).reshape(2, 3)
        await asyncio.gather(sender.send("run", [array], part=3, chunk=4), sender.send("ready"))
        return array, await channel.receive(), await channel.receive()

    array, first, second = with_channels(work)
    assert (first.kind, first.fields) == ("run", {"part": 3, "chunk": 4})
    assert np.array_equal(first.tensors[0], array)
    assert (second.kind, second.fields, second.tensors) == ("ready", {}, [])


VALID = {"kind": "run", "tensors": 0, "bfloat16": [], "fields": {}}


@pytest.mark.parametrize(
    "head",
    [
        b"\xff",
        b"[" * 100_000,
        [],
        {},
        {**VALID, "kind": "nonsense"},
        {**VALID, "kind": ["run"]},
        {**VALID, "fields": []},
        {**VALID, "tensors": -1},
        {**VALID, "tensors": 1.5},
        {**VALID, "tensors": "1"},
        {**VALID, "tensors": 1 << 17},
        {**VALID, "bfloat16": 3},
        {**VALID, "bfloat16": [[]]},
    ],
    ids=lambda head: str(head)[:40],
)
def test_an_invalid_message_is_refused(head):
    async def work(manager, channel):
        data = head if isinstance(head, bytes) else json.dumps(head).encode()
        await manager.communicator.send(np.frombuffer(data, np.uint8), 1, world=WORLD)
        with pytest.raises(InputError, match="invalid message over world 'messages'"):
            await channel.receive()

    with_channels(work)
