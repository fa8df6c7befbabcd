"""Messages and chunks of files over a world of two: each has a bounded length and a digest.

A payload is preceded by a head of four uint64: kind, length, and the high and low half of its XXH3-128 digest.
"""

from __future__ import annotations

from array import array
from enum import IntEnum

import xxhash

from ms_recover.errors import InputError
from ms_recover.worlds.communicator import WorldCommunicator
from ms_recover.worlds.tensors import allocate

STALL_S = 60.0
"""Time limit for the other side to send or receive the next bytes, in seconds."""
_LOW_HALF = (1 << 64) - 1


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
