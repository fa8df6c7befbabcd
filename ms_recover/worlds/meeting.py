"""How the members of a world find each other: all meet at rank 0, then each connects with each.

Rank 0 listens at the world's address. Everybody else knocks there, proves that it belongs, and is welcomed once all are
there, with the epoch, a fresh nonce and the list of members. From the nonce and the token comes the key with which the
members prove themselves to each other; lower ranks listen, higher ranks knock.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from ms_recover.worlds import hello, stream
from ms_recover.worlds.hello import Hello, Member, Purpose, Type, Welcome
from ms_recover.worlds.security import Security, nonce, prove, same
from ms_recover.worlds.wire import WireError

_log = logging.getLogger(__name__)
HANDSHAKE_S = 5.0
"""How long a stranger may take to prove that it is none."""
_MAX_STRANGERS = 64
_RETRY_S = 0.05


class RefusedError(Exception):
    """The other side does not want this member, or is not who it should be."""


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
    WireError, OSError
        When nobody, or somebody else, listens there.
    """
    sock = await stream.connect(address, port, security.guest_tls)
    try:
        said = hello.pack_hello(greeting)
        await send_message(sock, Type.HELLO, said)
        challenge = await read_message(sock, Type.CHALLENGE, hello.MAX_FROM_STRANGER)
        transcript = said + challenge[: hello.NONCE]
        if not same(challenge[hello.NONCE :], prove(key, "host", transcript)):
            raise RefusedError(f"{address}:{port} has another token")
        await send_message(sock, Type.PROOF, prove(key, "guest", transcript))
    except BaseException:
        sock.close()
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
    """

    def __init__(
        self, listener: socket.socket, key: bytes, security: Security, admit: Callable[[Guest], str | None]
    ) -> None:
        self._listener, self._key, self._security, self._admit = listener, key, security, admit
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
            _log.info("a connection was refused: %s", str(error) or type(error).__name__)

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
    listener: socket.socket, world: str, size: int, epoch: int, me: Member, security: Security
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
        async with Door(listener, security.token, security, admit):
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
    address: str, port: int, greeting: Hello, security: Security, prepare: Callable[[str], tuple[socket.socket, int]]
) -> Met:
    """Be another rank: knock until rank 0 opens, then connect with all the others.

    Parameters
    ----------
    address, port
        Where rank 0 is.
    greeting : Hello
        Its ports are set here.
    security : Security
    prepare : callable
        Given this member's own address, returns a listening socket there and the port for heartbeats.
    """
    own = await _patiently(lambda: _own_address(address, port))
    listener, beat_port = prepare(own)
    sockets: dict[int, socket.socket] = {}
    try:
        greeting = greeting._replace(port=listener.getsockname()[1], beat_port=beat_port)
        sockets[0], transcript = await _patiently(
            lambda: knock(address, port, greeting._replace(nonce=nonce()), security.token, security)
        )
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
        await _connect_peers(listener, greeting, welcome, key, security, sockets)
    except BaseException:
        for sock in sockets.values():
            sock.close()
        raise
    finally:
        listener.close()
    return Met(welcome, key, sockets)


async def _connect_peers(
    listener: socket.socket,
    greeting: Hello,
    welcome: Welcome,
    key: bytes,
    security: Security,
    sockets: dict[int, socket.socket],
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

    async with Door(listener, key, security, admit):
        for peer in range(1, rank):
            member = welcome.members[peer]
            said = greeting._replace(purpose=Purpose.PEER, epoch=welcome.epoch, nonce=nonce())
            sockets[peer], _ = await knock(member.host, member.port, said, key, security)
        while len(sockets) < greeting.size - 1:
            arrived.clear()
            await arrived.wait()


async def _own_address(address: str, port: int) -> str:
    """Return the address from which this host reaches another."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((address, port))  # sends nothing
        return str(probe.getsockname()[0])


async def _patiently(attempt: Callable[[], Awaitable[stream.T]]) -> stream.T:
    """Try again while nobody, or somebody else, answers; the caller sets the limit of time."""
    wait = _RETRY_S
    while True:
        with contextlib.suppress(OSError, WireError, asyncio.TimeoutError):
            return await asyncio.wait_for(attempt(), HANDSHAKE_S)
        await asyncio.sleep(wait)
        wait = min(2 * wait, 0.5)


def _world_key(world: str, welcome: Welcome, security: Security) -> bytes:
    return prove(security.token, "world", world.encode(), welcome.epoch.to_bytes(4, "big"), welcome.nonce)
