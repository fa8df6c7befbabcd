"""Files over a world of two: sent in checked chunks, and resumed where the world broke.

Rank 0 has the files, rank 1 requests them.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable

from ms_recover.errors import BrokenWorldError
from ms_recover.worlds.authentication import CertificateError, HandshakeRefusedError
from ms_recover.worlds.channel import Channel, PayloadKind, TransferError
from ms_recover.worlds.manager import WorldManager
from ms_recover.worlds.tensors import allocate

_log = logging.getLogger(__name__)
TRANSFER_WORLD = "ms_recover.transfer"
CHUNK = 4 << 20
"""Bytes of a file that are sent, checked and written at a time."""
TRIES = 5
_REFUSALS = 3
_PAUSE_S = 0.2


class UnexpectedMessageError(Exception):
    """The other side sent a message, the argument, where a chunk of a file was expected."""


async def join(manager: WorldManager, address: str, port: int, timeout: float) -> Channel:
    """Make the world with a server, at the next epoch when it existed before; waits while the server is busy or away.

    Raises BrokenWorldError when the world could not be made in `timeout` seconds, or cannot be made: its ``__cause__``
    is then a ``HandshakeRefusedError`` (another token) or, at once, a ``CertificateError``.
    """
    clock = asyncio.get_running_loop().time
    deadline, refusals = clock() + timeout, 0
    while True:
        try:
            limit = max(deadline - clock(), _PAUSE_S)
            await manager.initialize_world(TRANSFER_WORLD, 1, 2, address, port, timeout=limit)
        except BrokenWorldError as error:
            # One refusal may come from a server whose place was taken by another client a moment earlier.
            refusals += isinstance(error.__cause__, HandshakeRefusedError)
            final = refusals >= _REFUSALS or isinstance(error.__cause__, CertificateError)
            if final or clock() + _PAUSE_S >= deadline:
                raise
            await asyncio.sleep(_PAUSE_S)
        else:
            return Channel(manager.communicator, TRANSFER_WORLD, 0)


async def leave(manager: WorldManager) -> None:
    """Leave the world of a transfer, or forget it when it is broken."""
    if TRANSFER_WORLD in manager.worlds:
        await manager.remove_world(TRANSFER_WORLD)


async def send_file(channel: Channel, descriptor: int, offset: int, size: int) -> int:
    """Send an open file from `offset` to `size`, in bytes; return the offset reached, less when the file is shorter."""
    buffer = allocate(CHUNK)
    while offset < size:
        part = buffer[: min(CHUNK, size - offset)]
        count = await asyncio.to_thread(os.preadv, descriptor, [part], offset)
        if not count:
            break
        await channel.send(PayloadKind.CHUNK, part[:count])
        offset += count
    return offset


async def receive_file(
    connect: Callable[[], Awaitable[Channel]],
    request: Callable[[int], bytes],
    size: int,
    write: Callable[[memoryview], None],
    *,
    tries: int = TRIES,
    message_limit: int = 1 << 16,
) -> bytes:
    """Request a file of `size` bytes and receive it; a broken world is made again, and the rest is requested.

    `connect` returns the channel, and makes the world again when it is broken. `request` gives the message that asks
    for the bytes from an offset on. `write` is called with each chunk once, in order; its memory is reused afterwards.
    The world may break `tries` times in a row without a chunk in between. Returns the message after the last chunk.
    Raises BrokenWorldError when the world broke too often, or could not be made again, UnexpectedMessageError when a
    message came before the last chunk, and TransferError when the chunks exceed the size or are invalid.
    """
    buffer = allocate(CHUNK)
    offset = failures = 0
    while True:
        channel = await connect()
        try:
            await channel.send_message(request(offset))
            while offset < size:
                limit = min(CHUNK, max(size - offset, message_limit))
                kind, data = await channel.receive(limit, buffer=buffer)
                if kind is PayloadKind.MESSAGE:
                    raise UnexpectedMessageError(bytes(data))
                if not 0 < len(data) <= size - offset:
                    raise TransferError(f"the other side sent a chunk of {len(data)} bytes, {size - offset} are left")
                write(data)
                offset += len(data)
                failures = 0
            return await channel.receive_message(message_limit)
        except BrokenWorldError as error:
            failures += 1
            if failures > tries:
                raise
            _log.warning("resuming at byte %d of %d: %s", offset, size, error)
