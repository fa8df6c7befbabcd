"""Messages and files over a world of two: bounded, checked, and taken up again where the world broke.

What crosses is a head of four numbers, then the bytes it tells of: kind, length and the two halves of their digest.
Rank 0 has the files, rank 1 asks for them.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from enum import IntEnum

import numpy as np
import numpy.typing as npt
import xxhash

from ms_recover.errors import BrokenWorldError, InputError
from ms_recover.worlds.manager import WorldManager
from ms_recover.worlds.meeting import CertificateError, RefusedError

_log = logging.getLogger(__name__)
WORLD = "ms_recover.transfer"
CHUNK = 4 << 20
"""Bytes of a file that are sent, checked and written at a time."""
STALL_S = 60.0
"""How long the other end may say nothing."""
TRIES = 5
_REFUSALS = 3
_PAUSE_S = 0.2
_HALF = (1 << 64) - 1


class Kind(IntEnum):
    """What bytes are."""

    SAID = 1
    """A message."""
    CHUNK = 2
    """A piece of a file."""


class TransferError(InputError):
    """The other end sent what cannot be."""


class SaidInsteadError(Exception):
    """The other end had something to say where a piece of a file was due; the message is the argument."""


class Line:
    """One end of a world of two.

    Parameters
    ----------
    manager : WorldManager
        Its world of the name ``WORLD`` stands.
    peer : int
        The other end's rank.
    """

    def __init__(self, manager: WorldManager, peer: int) -> None:
        self._manager, self._communicator, self._peer = manager, manager.communicator, peer

    @property
    def is_broken(self) -> bool:
        """Whether the world has to be made again."""
        return self._communicator.is_broken(WORLD)

    async def send(self, kind: Kind, data: bytes | memoryview) -> None:
        """Send some bytes.

        Raises
        ------
        BrokenWorldError
        """
        digest = xxhash.xxh3_128_intdigest(data)
        head = np.array([kind, len(data), digest >> 64, digest & _HALF], np.uint64)
        await self._communicator.send(head, self._peer, world=WORLD, timeout=STALL_S)
        if data:
            array = np.frombuffer(data, np.uint8)
            await self._communicator.send(array, self._peer, world=WORLD, timeout=STALL_S)

    async def receive(
        self, most: int, timeout: float | None = STALL_S, into: npt.NDArray[np.uint8] | None = None
    ) -> tuple[Kind, memoryview]:
        """Receive some bytes.

        Parameters
        ----------
        most : int
            More are refused before memory is taken for them.
        timeout : float or None
            Seconds that it may take until they begin.
        into : array, optional
            Memory that may be used; of at least `most` bytes.

        Raises
        ------
        BrokenWorldError
            When the world breaks.
        TransferError
            When what came is not what it should be; the world is of no use then.
        """
        head = np.empty(4, np.uint64)
        await self._communicator.recv(self._peer, world=WORLD, out=head, timeout=timeout)
        kind, length, high, low = map(int, head)
        if kind not in (Kind.SAID, Kind.CHUNK) or length > most:
            raise TransferError(f"the other end sent {length} bytes of kind {kind} where at most {most} can be meant")
        array = np.empty(length, np.uint8) if into is None else into[:length]
        if length:
            await self._communicator.recv(self._peer, world=WORLD, out=array, timeout=STALL_S)
        if xxhash.xxh3_128_intdigest(array.data) != high << 64 | low:
            raise TransferError("bytes were changed on their way, or the other end lies")
        return Kind(kind), array.data

    async def say(self, message: bytes) -> None:
        """Send a message."""
        await self.send(Kind.SAID, message)

    async def hear(self, most: int, timeout: float | None = STALL_S) -> bytes:
        """Receive a message; errors as for `receive`."""
        kind, data = await self.receive(most, timeout)
        if kind is not Kind.SAID:
            raise TransferError("the other end sent a piece of a file where a message was due")
        return bytes(data)

    async def close(self) -> None:
        """Leave the world, or forget it when it is broken."""
        if WORLD in self._manager.worlds:
            await self._manager.remove_world(WORLD)


async def join(manager: WorldManager, address: str, port: int, timeout: float) -> Line:
    """Make the world with a host, at the next epoch when it was there before; waits while the host is busy or away.

    Raises
    ------
    BrokenWorldError
        When it could not be made in so many seconds. Its ``__cause__`` is a ``RefusedError`` when the host, or this
        end, does not know the token, and a ``CertificateError``, at once, when one does not accept the other's
        certificate.
    UsageError
        As ``WorldManager.initialize_world``.
    """
    clock = asyncio.get_running_loop().time
    deadline, refusals = clock() + timeout, 0
    while True:
        try:
            await manager.initialize_world(WORLD, 1, 2, address, port, timeout=max(deadline - clock(), _PAUSE_S))
        except BrokenWorldError as error:
            refusals += isinstance(error.__cause__, RefusedError)  # also where another guest was a moment earlier
            settled = refusals >= _REFUSALS or isinstance(error.__cause__, CertificateError)
            if settled or clock() + _PAUSE_S >= deadline:
                raise
            await asyncio.sleep(_PAUSE_S)
        else:
            return Line(manager, 0)


async def give_file(line: Line, descriptor: int, offset: int, size: int) -> int:
    """Send the bytes of a file from an offset on.

    Parameters
    ----------
    line : Line
    descriptor : int
        Open for reading.
    offset, size : int
        Where to begin, and where to end.

    Returns
    -------
    int
        The offset that was reached; below `size` when the file is shorter.

    Raises
    ------
    BrokenWorldError, OSError
    """
    buffer = np.empty(CHUNK, np.uint8).data
    while offset < size:
        part = buffer[: min(CHUNK, size - offset)]
        count = await asyncio.to_thread(os.preadv, descriptor, [part], offset)
        if not count:
            break
        await line.send(Kind.CHUNK, part[:count])
        offset += count
    return offset


async def take_file(
    connect: Callable[[], Awaitable[Line]],
    request: Callable[[int], bytes],
    size: int,
    take: Callable[[memoryview], None],
    *,
    tries: int = TRIES,
    most_said: int = 1 << 16,
) -> bytes:
    """Ask for a file and take it in; a broken world is made again, and the rest is asked for.

    Parameters
    ----------
    connect : callable
        Gives the line; makes the world again when it is broken, within a limit of time.
    request : callable
        Given an offset, returns the message that asks for the bytes from there on. The host sends these, then a
        message.
    size : int
        Bytes of the file.
    take : callable
        Given each chunk once, in order; the memory is used again.
    tries : int
        How often in a row the world may break without a chunk between; when it cannot be made again, that is the end.
    most_said : int
        Longest message that is taken.

    Returns
    -------
    bytes
        The message behind the last chunk.

    Raises
    ------
    BrokenWorldError
        When it broke too often, or could not be made.
    SaidInsteadError
        When a message came before the last chunk.
    TransferError
        When chunks do not fit.
    """
    buffer = np.empty(CHUNK, np.uint8)
    offset = failures = 0
    while True:
        line = await connect()
        try:
            await line.say(request(offset))
            while offset < size:
                kind, data = await line.receive(min(CHUNK, max(size - offset, most_said)), into=buffer)
                if kind is Kind.SAID:
                    raise SaidInsteadError(bytes(data))
                if not 0 < len(data) <= size - offset:
                    raise TransferError(
                        f"the other end sent {len(data)} bytes of a file where {size - offset} are left"
                    )
                take(data)
                offset, failures = offset + len(data), 0
            return await line.hear(most_said)
        except BrokenWorldError as error:
            failures += 1
            if failures > tries:
                raise
            _log.warning("taken up again at byte %d of %d: %s", offset, size, error)
