"""One server as its client sees it: asked one thing at a time, joined again when the world with it broke."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

from ms_recover.errors import BrokenWorldError, InputError, StorageError, UsageError, VerificationError
from ms_recover.model.contents import Contents
from ms_recover.model.inventory import Inventory, SliceFile
from ms_recover.remote.inventories import inventory_from_json
from ms_recover.remote.messages import (
    MAX_REPLY,
    RefusedError,
    SliceRequest,
    ask_digests,
    ask_inventory,
    ask_slice,
    ask_to_leave,
    read_contents,
    read_inventory,
    read_mode,
)
from ms_recover.worlds.authentication import HandshakeRefusedError
from ms_recover.worlds.manager import WorldManager
from ms_recover.worlds.security import Security
from ms_recover.worlds.transfer import Channel, TransferError, UnexpectedMessageError, join, leave, receive_file

DEFAULT_PORT = 29610
_ADDRESS = re.compile(r"(?:\[(?P<six>[0-9A-Fa-f:.%\w]+)\]|(?P<host>[^\[\]:/\s]+))(?::(?P<port>\d{1,5}))?\Z", re.ASCII)


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server listens."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Address:
        """Read ``HOST``, ``HOST:PORT`` or ``[IPV6]:PORT``.

        Raises
        ------
        UsageError
            When the text is none of these.
        """
        match = _ADDRESS.match(text)
        port = int(match["port"] or DEFAULT_PORT) if match else 0
        if match is None or not 0 < port < 1 << 16:
            raise UsageError(f"{text!r} is no address: write HOST:PORT, for example 10.0.0.2:{DEFAULT_PORT}")
        return cls(match["six"] or match["host"], port)

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Peer:
    """A server; created and used in one event loop.

    Whenever the world with it has to be made, it has `timeout` seconds to answer at all.
    """

    def __init__(self, address: Address, security: Security, timeout: float) -> None:
        self.name = str(address)
        self._address, self._timeout = address, timeout
        self._manager = WorldManager(security=security)
        self._channel: Channel | None = None
        self._gone: BrokenWorldError | None = None
        self._busy = asyncio.Lock()

    async def close(self) -> None:
        """Leave."""
        async with self._manager:
            if self._channel is not None and not self._channel.is_broken:
                with suppress(BrokenWorldError):
                    await self._channel.send_message(ask_to_leave())

    async def inventory(self) -> Inventory:
        """Request the inventory of the server.

        Raises
        ------
        StorageError
            When it cannot be reached, or is gone.
        InputError
            When it refuses, or sends an invalid message.
        """
        async with self._asking():
            channel = await self._connect()
            await channel.send_message(ask_inventory())
            data = await channel.receive_message(MAX_REPLY, timeout=None)
            return read_inventory(data, self.name, lambda sent: inventory_from_json(sent, self.name))

    async def digests(self, files: Sequence[SliceFile], progress: Callable[[int], None] | None) -> Contents:
        """Request the digests of slices, which the server reads; errors as for `inventory`."""
        async with self._asking():
            channel = await self._connect()
            await channel.send_message(ask_digests(files))
            while True:
                found = read_contents(await channel.receive_message(MAX_REPLY), self.name, files)
                if isinstance(found, Contents):
                    return found
                if progress is not None:
                    progress(found)

    async def fetch(self, wanted: SliceRequest, take: Callable[[memoryview], None]) -> int:
        """Receive bytes of a slice, and return the file's permissions; when the connection breaks, request the rest.

        `take` is given the next bytes, each once. Errors are those of `inventory`.
        """

        def request(offset: int) -> bytes:
            return ask_slice(wanted.path, wanted.state, wanted.offset + offset, wanted.end)

        async with self._asking():
            try:
                size = wanted.stop - wanted.offset
                return read_mode(await receive_file(self._connect, request, size, take), self.name)
            except UnexpectedMessageError as unexpected:
                read_mode(unexpected.args[0], self.name)
                raise TransferError("a slice ends too early") from None

    async def _connect(self) -> Channel:
        if self._gone is not None:
            raise self._gone  # it was waited for already
        if self._channel is None or self._channel.is_broken:
            try:
                self._channel = await join(self._manager, self._address.host, self._address.port, self._timeout)
            except BrokenWorldError as error:
                self._gone = error
                raise
        return self._channel

    @asynccontextmanager
    async def _asking(self) -> AsyncIterator[None]:
        """Make one request at a time; an error closes the channel and names the server."""
        async with self._busy:
            try:
                yield
            except RefusedError as error:
                raise VerificationError(f"{self.name} refuses: {error}") from error
            except BrokenWorldError as error:
                await self._hang_up()
                raise self._in_words(error) from error
            except TransferError as error:
                await self._hang_up()
                raise TransferError(f"{self.name}: {error}") from error
            except BaseException:
                await self._hang_up()
                raise

    async def _hang_up(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            await leave(self._manager)

    def _in_words(self, error: BrokenWorldError) -> StorageError | InputError:
        if isinstance(error.__cause__, HandshakeRefusedError):
            return InputError(
                f"{self.name} does not let this node in ({error.words}): give both sides the same token, with "
                "--token-file or in the environment"
            )
        return StorageError(
            f"{self.name} cannot be reached, or is gone ({error.cause}{error.words and ': '}{error.words}): see that "
            f"recover-ckpt serve runs there and the port is open, then run this again"
        )
