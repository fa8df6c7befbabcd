"""How the members of a world find each other: all meet at rank 0, then each connects with each.

Rank 0 listens at the world's address. Everybody else knocks there, proves that it belongs, and is welcomed once all are
there, with the epoch, a fresh nonce and the list of members. From the nonce and the token comes the key with which the
members prove themselves to each other; lower ranks listen, higher ranks knock.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from ms_recover.worlds import hello, stream
from ms_recover.worlds.hello import Hello, Member, Purpose, Type, Welcome
from ms_recover.worlds.security import Security, in_words, nonce, prove, reason, same
from ms_recover.worlds.wire import WireError

_log = logging.getLogger(__name__)
HANDSHAKE_S = 5.0
"""How long a stranger may take to prove that it is none."""
_MAX_STRANGERS = 64
_RETRY_S = 0.05


class RefusedError(Exception):
    """The other side does not want this member, or is not who it should be."""


class CertificateError(Exception):
    """The two sides do not accept each other's certificates."""


Note = Callable[[str], None]
"""Told what went wrong last while there is still time."""


class Guest(NamedTuple):
    """Somebody who has proven to belong."""

    sock: socket.socket
    hello: Hello
    transcript: bytes


class Met(NamedTuple):
    """The result of a meeting: what all agreed on, the key of this world and epoch, connections by rank."""

    welcome: Welcome
    key: bytes
    sockets: dict[int, socket.socket]


async def send_message(sock: socket.socket, kind: Type, body: bytes) -> None:
    """Send one handshake message."""
    await stream.write(sock, hello.pack(kind, body))


async def read_message(sock: socket.socket, kind: Type, limit: int) -> bytes:
    """Read one handshake message of the kind expected.

    Raises
    ------
    RefusedError
        When the other side refuses instead.
    WireError, OSError
    """
    came, length = hello.unpack_preamble(await stream.read_exactly(sock, hello.PREAMBLE_SIZE), limit)
    body = await stream.read_exactly(sock, length)
    if came is Type.REFUSED:
        raise RefusedError(f"refused: {body.decode(errors='replace')}")
    if came is not kind:
        raise WireError(f"{came.name} instead of {kind.name}")
    return body


async def knock(
    address: str, port: int, greeting: Hello, key: bytes, security: Security
) -> tuple[socket.socket, bytes]:
    """Connect, and prove to each other to belong to the same world.

    Returns
    -------
    socket.socket, bytes
        The connection and the transcript, to which the welcome is bound.

    Raises
    ------
    RefusedError
    CertificateError
    WireError, OSError
        When nobody, or somebody else, listens there.
    """
    try:
        sock = await stream.connect(address, port, security.guest_tls)
    except ssl.SSLCertVerificationError as error:
        raise CertificateError(
            f"{address}:{port} shows a certificate that is not accepted here ({reason(error)})"
        ) from error
    try:
        said = hello.pack_hello(greeting)
        await send_message(sock, Type.HELLO, said)
        challenge = await read_message(sock, Type.CHALLENGE, hello.MAX_FROM_STRANGER)
        transcript = said + challenge[: hello.NONCE]
        if not same(challenge[hello.NONCE :], prove(key, "host", transcript)):
            raise RefusedError(f"{address}:{port} has another token")
        await send_message(sock, Type.PROOF, prove(key, "guest", transcript))
    except ssl.SSLError as error:
        sock.close()
        if "ALERT" not in (error.reason or ""):
            raise
        # The other end has shown its own certificate before, so that no stranger says this.
        raise CertificateError(
            f"{address}:{port} does not accept this member's certificate ({reason(error)})"
        ) from error
    except BaseException as error:
        sock.close()
        if security.guest_tls is None and isinstance(error, ConnectionResetError):
            raise ConnectionResetError(f"{error} (does it speak TLS, and this member not?)") from error
        raise
    return sock, transcript


class Door:
    """Lets those in who prove that they belong, and nobody else.

    Parameters
    ----------
    listener : socket.socket
        The door owns it from now on.
    key : bytes
    security : Security
    admit : callable
        Given a proven guest, returns why it is refused or None.
    note : callable
    """

    def __init__(
        self, listener: socket.socket, key: bytes, security: Security, admit: Callable[[Guest], str | None], note: Note
    ) -> None:
        self._listener, self._key, self._security, self._admit = listener, key, security, admit
        self._note = note
        self._strangers: set[asyncio.Task[None]] = set()
        self._accepting: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Door:
        self._accepting = asyncio.get_running_loop().create_task(self._accept())
        return self

    async def __aexit__(self, *_: object) -> None:
        tasks = [*self._strangers, *([self._accepting] if self._accepting else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._listener.close()

    async def _accept(self) -> None:
        while True:
            try:
                sock, _ = await stream.when_ready(self._listener, self._listener.accept)
            except OSError as error:  # too many open files, or a connection gone before it was accepted
                _log.warning("accepting a connection failed: %s", error)
                await asyncio.sleep(_RETRY_S)
                continue
            if len(self._strangers) >= _MAX_STRANGERS:
                sock.close()
                continue
            task = asyncio.get_running_loop().create_task(self._meet(sock))
            self._strangers.add(task)
            task.add_done_callback(self._strangers.discard)

    async def _meet(self, sock: socket.socket) -> None:
        try:
            await asyncio.wait_for(self._prove(sock), HANDSHAKE_S)
        except (RefusedError, WireError, OSError, asyncio.TimeoutError) as error:
            _log.info("a connection was refused: %s", in_words(error))
            self._note(f"a connection was refused: {in_words(error)}")

    async def _prove(self, sock: socket.socket) -> None:
        sock = await stream.secure(sock, self._security.host_tls, host=True)
        try:
            try:
                said = await read_message(sock, Type.HELLO, hello.MAX_FROM_STRANGER)
                guest = Guest(sock, hello.unpack_hello(said), said + nonce())
                mine = guest.transcript[len(said) :]
                await send_message(sock, Type.CHALLENGE, mine + prove(self._key, "host", guest.transcript))
                proof = await read_message(sock, Type.PROOF, hello.MAX_FROM_STRANGER)
                if not same(proof, prove(self._key, "guest", guest.transcript)):
                    raise WireError("wrong token")
                why = self._admit(guest)
                if why is not None:
                    raise WireError(why)
            except WireError as error:
                await send_message(sock, Type.REFUSED, str(error).encode()[:255])
                with contextlib.suppress(OSError):
                    sock.recv(1 << 16)  # closing with bytes unread would take back what was just said
                raise
        except BaseException:
            sock.close()
            raise


async def host_meeting(
    listener: socket.socket, world: str, size: int, epoch: int, me: Member, security: Security, note: Note
) -> Met:
    """Be rank 0: wait until all are there, then welcome them.

    Parameters
    ----------
    listener : socket.socket
        Where the others knock; it is closed at the end.
    world : str
    size : int
    epoch : int
        The lowest that will do; the highest of all members' is taken.
    me : Member
    security : Security
    note : callable
    """
    guests: dict[int, Guest] = {}
    arrived = asyncio.Event()

    def admit(guest: Guest) -> str | None:
        greeting = guest.hello
        if (greeting.purpose, greeting.world, greeting.size) != (Purpose.MEETING, world, size):
            return f"this is the meeting of world {world!r} of {size}"
        before = guests.get(greeting.rank)
        if before is not None:
            if not stream.is_dead(before.sock):
                return f"rank {greeting.rank} is here already"
            before.sock.close()
        guests[greeting.rank] = guest
        arrived.set()
        return None

    try:
        async with Door(listener, security.token, security, admit, note):
            while len(guests) < size - 1:
                arrived.clear()
                await arrived.wait()
                for rank in [rank for rank, guest in guests.items() if stream.is_dead(guest.sock)]:
                    guests.pop(rank).sock.close()
        greetings = [guests[rank].hello for rank in sorted(guests)]
        places = [
            Member(guests[greeting.rank].sock.getpeername()[0], greeting.port, greeting.beat_port, greeting.heartbeat)
            for greeting in greetings
        ]
        agreed = max([epoch, *(greeting.epoch for greeting in greetings)])
        welcome = Welcome(agreed, nonce(), (me, *places))
        body = hello.pack_welcome(welcome)
        for guest in guests.values():
            mac = prove(security.token, "welcome", guest.transcript, body)
            await send_message(guest.sock, Type.WELCOME, mac + body)
    except BaseException:
        for guest in guests.values():
            guest.sock.close()
        raise
    return Met(welcome, _world_key(world, welcome, security), {rank: guest.sock for rank, guest in guests.items()})


async def join_meeting(
    addresses: Sequence[str],
    port: int,
    greeting: Hello,
    security: Security,
    prepare: Callable[[str], tuple[socket.socket, socket.socket]],
    note: Note,
) -> tuple[Met, socket.socket]:
    """Be another rank: knock until rank 0 opens, then connect with all the others.

    Parameters
    ----------
    addresses, port
        Where rank 0 is: at one of these, tried in turn.
    greeting : Hello
        Its ports are set here.
    security : Security
    prepare : callable
        Given this member's own address, returns a listening socket there and one for heartbeats.
    note : callable

    Returns
    -------
    Met, socket.socket
        With the socket for heartbeats.
    """
    places = itertools.cycle(addresses)
    prepared: dict[str, tuple[socket.socket, socket.socket]] = {}
    sockets: dict[int, socket.socket] = {}
    beats: socket.socket | None = None

    async def attempt() -> tuple[str, Hello, socket.socket, bytes]:
        address = next(places)
        own = _own_address(address, port)
        if own not in prepared:
            prepared[own] = prepare(own)
        ports = [sock.getsockname()[1] for sock in prepared[own]]
        said = greeting._replace(port=ports[0], beat_port=ports[1], nonce=nonce())
        return own, said, *await knock(address, port, said, security.token, security)

    try:
        own, greeting, sockets[0], transcript = await _patiently(attempt, note)
        note("rank 0 is there, and waits for others")
        said = await read_message(sockets[0], Type.WELCOME, hello.MAX_MESSAGE)
        mac, body = said[:32], said[32:]
        if not same(mac, prove(security.token, "welcome", transcript, body)):
            raise RefusedError("the welcome was changed on its way")
        welcome = hello.unpack_welcome(body)
        if len(welcome.members) != greeting.size or welcome.epoch < greeting.epoch:
            raise RefusedError(f"welcomed to a world of {len(welcome.members)} at epoch {welcome.epoch}")
        members = list(welcome.members)
        members[0] = members[0]._replace(host=sockets[0].getpeername()[0])
        welcome = welcome._replace(members=tuple(members))
        key = _world_key(greeting.world, welcome, security)
        await _connect_peers(prepared[own][0], greeting, welcome, key, security, sockets, note)
        beats = prepared[own][1]
    except BaseException:
        for sock in sockets.values():
            sock.close()
        raise
    finally:
        for pair in prepared.values():
            for sock in pair:
                if sock is not beats:
                    sock.close()
    return Met(welcome, key, sockets), beats


async def _connect_peers(
    listener: socket.socket,
    greeting: Hello,
    welcome: Welcome,
    key: bytes,
    security: Security,
    sockets: dict[int, socket.socket],
    note: Note,
) -> None:
    rank, arrived = greeting.rank, asyncio.Event()

    def admit(guest: Guest) -> str | None:
        said = guest.hello
        if (said.purpose, said.world, said.size, said.epoch) != (
            Purpose.PEER,
            greeting.world,
            greeting.size,
            welcome.epoch,
        ):
            return f"this is rank {rank} of world {greeting.world!r} at epoch {welcome.epoch}"
        if said.rank <= rank or said.rank in sockets:
            return f"rank {said.rank} has no business here"
        sockets[said.rank] = guest.sock
        arrived.set()
        return None

    async with Door(listener, key, security, admit, note):
        for peer in range(1, rank):
            member = welcome.members[peer]
            said = greeting._replace(purpose=Purpose.PEER, epoch=welcome.epoch, nonce=nonce())
            sockets[peer], _ = await knock(member.host, member.port, said, key, security)
        while len(sockets) < greeting.size - 1:
            arrived.clear()
            await arrived.wait()


def _own_address(address: str, port: int) -> str:
    """Return the address from which this host reaches another."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((address, port))  # sends nothing
        return str(probe.getsockname()[0])


async def _patiently(attempt: Callable[[], Awaitable[stream.T]], note: Note) -> stream.T:
    """Try again while nobody, or somebody else, answers; the caller sets the limit of time."""
    wait = _RETRY_S
    while True:
        try:
            return await asyncio.wait_for(attempt(), HANDSHAKE_S)
        except (OSError, WireError, asyncio.TimeoutError) as error:
            note(f"the last try failed: {in_words(error)}")
        await asyncio.sleep(wait)
        wait = min(2 * wait, 0.5)


def _world_key(world: str, welcome: Welcome, security: Security) -> bytes:
    return prove(security.token, "world", world.encode(), welcome.epoch.to_bytes(4, "big"), welcome.nonce)
