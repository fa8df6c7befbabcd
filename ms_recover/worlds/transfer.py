"""Messages and files over a world of two: files in checked chunks, resumed where the world broke.

Rank 0 has the files, rank 1 requests them. Each payload has a bounded length; a head of four uint64 comes before it:
kind, length, and the high and low half of its XXH3-128 digest.
"""

from __future__ import annotations

import asyncio
import logging
import os
from array import array
from collections.abc import Awaitable, Callable
from enum import IntEnum

import xxhash

from ms_recover.errors import BrokenWorldError, InputError
from ms_recover.worlds.authentication import CertificateError, HandshakeRefusedError
from ms_recover.worlds.communicator import WorldCommunicator
from ms_recover.worlds.manager import WorldManager
from ms_recover.worlds.tensors import allocate

_log = logging.getLogger(__name__)
TRANSFER_WORLD = "ms_recover.transfer"
CHUNK = 4 << 20
"""Bytes of a file that are sent, checked and written at a time."""
TRIES = 5
STALL_S = 60.0
"""Time limit for the other side to send or receive the next bytes, in seconds."""
_REFUSALS = 3
_PAUSE_S = 0.2
_LOW_HALF = (1 << 64) - 1


class UnexpectedMessageError(Exception):
    """The other side sent a message, the argument, where a chunk of a file was expected."""


class PayloadKind(IntEnum):
    """The kind of a payload."""

    MESSAGE = 1
    CHUNK = 2
    """A part of a file."""


class TransferError(InputError):
    """The other side sent something invalid; the world must be made again."""


class Channel:
    """One side of a world of two; `peer` is the rank of the other side.

    Its methods raise `BrokenWorldError` when the world breaks.
    """

    def __init__(self, communicator: WorldCommunicator, world: str, peer: int) -> None:
        self._communicator = communicator
        self._world = world
        self._peer = peer

    @property
    def is_broken(self) -> bool:
        """Whether the world must be made again."""
        return self._communicator.is_broken(self._world)

    async def send(self, kind: PayloadKind, data: bytes | memoryview) -> None:
        """Send a payload."""
        digest = xxhash.xxh3_128_intdigest(data)
        head = memoryview(array("Q", [kind, len(data), digest >> 64, digest & _LOW_HALF]))
        await self._communicator.send(head, self._peer, world=self._world, timeout=STALL_S)
        if data:
            await self._communicator.send(memoryview(data), self._peer, world=self._world, timeout=STALL_S)

    async def receive(
        self, limit: int, timeout: float | None = STALL_S, buffer: memoryview | None = None
    ) -> tuple[PayloadKind, memoryview]:
        """Receive a payload of at most `limit` bytes, which is checked before memory is allocated for it.

        The payload must begin within `timeout` seconds. `buffer`, when given, has at least `limit` bytes. Raises
        `TransferError` when kind, length or digest is invalid.
        """
        head = memoryview(array("Q", bytes(32)))
        await self._communicator.recv(self._peer, world=self._world, out=head, timeout=timeout)
        kind, length, high, low = head
        if kind not in (PayloadKind.MESSAGE, PayloadKind.CHUNK) or length > limit:
            raise TransferError(f"the other side sent {length} bytes of kind {kind}, the limit is {limit} bytes")
        data = allocate(length) if buffer is None else buffer[:length]
        if length:
            await self._communicator.recv(self._peer, world=self._world, out=data, timeout=STALL_S)
        if xxhash.xxh3_128_intdigest(data) != high << 64 | low:
            raise TransferError("digest mismatch: the bytes were changed in transit")
        return PayloadKind(kind), data

    async def send_message(self, message: bytes) -> None:
        """Send a message."""
        await self.send(PayloadKind.MESSAGE, message)

    async def receive_message(self, limit: int, timeout: float | None = STALL_S) -> bytes:
        """Receive a message; parameters and errors as for `receive`."""
        kind, data = await self.receive(limit, timeout)
        if kind is not PayloadKind.MESSAGE:
            raise TransferError("the other side sent a chunk of a file, expected a message")
        return bytes(data)


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
