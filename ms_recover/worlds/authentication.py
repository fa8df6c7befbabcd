"""Connections between members: both sides prove that they know the key, with the messages of `handshake`."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import socket
import ssl
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, NamedTuple

from ms_recover.stores.credentials import reason
from ms_recover.worlds import handshake, stream
from ms_recover.worlds.handshake import NONCE_BYTES, Hello, MessageType
from ms_recover.worlds.instructions import Fault
from ms_recover.worlds.security import Security, describe, make_nonce, prove
from ms_recover.worlds.wire import ProtocolError

_log = logging.getLogger(__name__)
HANDSHAKE_S = 5.0
"""Time limit of one handshake, in seconds."""
RETRY_S = 0.05
_MAX_HANDSHAKES = 64
_REFUSING_S = 1.0


class JoinError(Exception):
    """A failure that another attempt to join would only repeat."""


class HandshakeRefusedError(JoinError):
    """The other side refused this member or could not prove that it knows the key."""


class CertificateError(JoinError):
    """One side does not accept the other's certificate."""


class AcceptError(JoinError):
    """Accepting connections ended with an unexpected error of this member."""


class EndedError(JoinError):
    """The world will not be made, with the fault for which it ends."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.words)
        self.fault = fault


class BusyError(ConnectionError):
    """The other side refuses this member for now: another attempt may succeed."""


class Busy(str):
    """A reason to refuse a connection for now."""

    __slots__ = ()


OnStatus = Callable[[str], None]
"""Called with each failed attempt and each stage reached, for the message of a later timeout."""


class Joined(NamedTuple):
    """An authenticated connection, accepted by an `Acceptor`."""

    sock: socket.socket
    hello: Hello
    transcript: bytes


async def send_message(sock: socket.socket, kind: MessageType, body: bytes) -> None:
    """Send one handshake message."""
    await stream.write(sock, handshake.pack(kind, body))


async def read_message(sock: socket.socket, kind: MessageType, limit: int) -> bytes:
    """Receive the body of one handshake message, at most `limit` bytes; raises as `read_any`."""
    actual, body = await read_any(sock, limit)
    if actual is not kind:
        raise ProtocolError(f"received {actual.name}, expected {kind.name}")
    return body


async def read_any(sock: socket.socket, limit: int) -> tuple[MessageType, bytes]:
    """Receive type and body of one handshake message, of at most `limit` bytes.

    A REFUSED raises `HandshakeRefusedError`, a BUSY `BusyError`, and an ENDED `EndedError`.
    """
    kind, length = handshake.unpack_preamble(await stream.read_exactly(sock, handshake.PREAMBLE_SIZE), limit)
    body = await stream.read_exactly(sock, length)
    if kind is MessageType.REFUSED:
        raise HandshakeRefusedError(f"refused: {body.decode(errors='replace')}")
    if kind is MessageType.BUSY:
        raise BusyError(f"refused for now: {body.decode(errors='replace')}")
    if kind is MessageType.ENDED:
        accused, words = handshake.unpack_ended(body)
        raise EndedError(Fault(accused, "peer_reported", f"rank 0 reports: {words}"))
    return kind, body


async def connect(address: str, port: int, hello: Hello, key: bytes, security: Security) -> tuple[socket.socket, bytes]:
    """Connect to a member that accepts connections, and authenticate both sides.

    Returns the connection and the transcript of the handshake, to which the WELCOME is bound. Raises `JoinError` when
    one side does not accept the other's key or certificate, `OSError` or `ProtocolError` when nothing listens there, or
    another program does.
    """
    try:
        sock = await stream.connect(address, port, security.guest_tls)
    except ssl.SSLCertVerificationError as error:
        raise CertificateError(f"the certificate of {address}:{port} is not accepted here ({reason(error)})") from error
    with stream.closed_on_error(sock):
        try:
            body = handshake.pack_hello(hello)
            await send_message(sock, MessageType.HELLO, body)
            challenge = await read_message(sock, MessageType.CHALLENGE, handshake.MAX_UNAUTHENTICATED)
            transcript = body + challenge[:NONCE_BYTES]
            if not hmac.compare_digest(challenge[NONCE_BYTES:], prove(key, "host", transcript)):
                raise HandshakeRefusedError(f"{address}:{port} has another token")
            await send_message(sock, MessageType.PROOF, prove(key, "guest", transcript))
        except ssl.SSLError as error:
            if "ALERT" not in (error.reason or ""):
                raise
            # The alert is genuine: the other side's certificate was verified before.
            words = f"{address}:{port} does not accept this member's certificate ({reason(error)})"
            raise CertificateError(words) from error
        except ConnectionResetError as error:
            if security.guest_tls is not None:
                raise
            raise ConnectionResetError(f"{error} (does the other side use TLS, and this member not?)") from error
        return sock, transcript


class Acceptor:
    """Accepts connections at a listener, which stays open; authenticates them and refuses all others.

    `admit` is called with each authenticated connection and returns the reason to refuse it, `Busy` for now, or None.
    `on_status` is called with the reason of each refusal.
    """

    def __init__(
        self,
        listener: socket.socket,
        key: bytes,
        security: Security,
        admit: Callable[[Joined], str | None],
        on_status: OnStatus,
    ) -> None:
        self._listener = listener
        self._key = key
        self._security = security
        self._admit = admit
        self._on_status = on_status
        self._handshakes: set[asyncio.Task[None]] = set()
        self._failed: asyncio.Future[AcceptError] = asyncio.get_running_loop().create_future()

    async def accept_during(self, work: Coroutine[Any, Any, None]) -> None:
        """Accept connections until `work` is done; when that fails, those who connected receive the reason."""
        loop = asyncio.get_running_loop()
        accepting, working = loop.create_task(self._accept()), loop.create_task(work)
        try:
            ends: list[asyncio.Future[Any]] = [working, self._failed]
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if self._failed.done() and self._handshakes:
                await asyncio.wait(self._handshakes, timeout=_REFUSING_S)
        finally:
            tasks = [accepting, working, *self._handshakes]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if self._failed.done():
            raise self._failed.result()
        working.result()

    async def _accept(self) -> None:
        try:
            while True:
                try:
                    sock, _ = await stream.when_ready(self._listener, self._listener.accept)
                except OSError as error:  # too many open files, or the connection ended before it was accepted
                    _log.warning("accepting a connection failed: %s", error)
                    await asyncio.sleep(RETRY_S)
                else:
                    self._start_handshake(sock)
        except Exception as error:
            self._fail(error)
            with contextlib.suppress(Exception):
                for _ in range(_MAX_HANDSHAKES):  # those who have connected already receive the reason as well
                    self._start_handshake(self._listener.accept()[0])

    def _fail(self, error: Exception) -> str:
        """End `accept_during` with an error of our own; return the reason for those who connect."""
        _log.error("accepting connections failed", exc_info=error)
        words = f"accepting connections failed: {type(error).__name__}: {error}"
        if not self._failed.done():
            self._failed.set_result(AcceptError(words))
        return words

    def _start_handshake(self, sock: socket.socket) -> None:
        if len(self._handshakes) >= _MAX_HANDSHAKES:
            sock.close()
            return
        task = asyncio.get_running_loop().create_task(self._authenticate_in_time(sock))
        self._handshakes.add(task)
        task.add_done_callback(partial(self._handshake_ended, sock))

    def _handshake_ended(self, sock: socket.socket, task: asyncio.Task[None]) -> None:
        self._handshakes.discard(task)
        if task.cancelled():  # perhaps before its first step
            sock.close()

    async def _authenticate_in_time(self, sock: socket.socket) -> None:
        try:
            await asyncio.wait_for(self._authenticate(sock), HANDSHAKE_S)
        except Exception as error:
            _log.info("a connection was refused: %s", describe(error))
            self._on_status(f"a connection was refused: {describe(error)}")

    async def _authenticate(self, accepted: socket.socket) -> None:
        with stream.closed_on_error(await stream.secure(accepted, self._security.host_tls, host=True)) as sock:
            try:
                refusal = self._refusal(await self._prove(sock))
            except (HandshakeRefusedError, OSError):
                raise
            except ProtocolError as error:
                refusal = str(error)
            except Exception as error:  # without a proof it ends this connection only: anyone may connect
                _log.exception("a handshake failed")
                refusal = f"the handshake failed: {type(error).__name__}"  # its text is not for everyone
            if refusal is not None:
                kind = MessageType.BUSY if isinstance(refusal, Busy) else MessageType.REFUSED
                await send_message(sock, kind, refusal.encode()[:255])
                with contextlib.suppress(OSError):
                    sock.recv(1 << 16)  # a close with unread bytes would reset the connection and lose the REFUSED
                raise ProtocolError(refusal)

    async def _prove(self, sock: socket.socket) -> Joined:
        """Prove to the other side that this member knows the key, and verify its proof."""
        body = await read_message(sock, MessageType.HELLO, handshake.MAX_UNAUTHENTICATED)
        nonce = make_nonce()
        joined = Joined(sock, handshake.unpack_hello(body), body + nonce)
        await send_message(sock, MessageType.CHALLENGE, nonce + prove(self._key, "host", joined.transcript))
        proof = await read_message(sock, MessageType.PROOF, handshake.MAX_UNAUTHENTICATED)
        if not hmac.compare_digest(proof, prove(self._key, "guest", joined.transcript)):
            raise ProtocolError("wrong token")
        return joined

    def _refusal(self, joined: Joined) -> str | None:
        if self._failed.done():
            return str(self._failed.result())
        try:
            return self._admit(joined)
        except Exception as error:
            return self._fail(error)
