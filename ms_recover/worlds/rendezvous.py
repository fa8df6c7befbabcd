"""How the members of a world find each other: all connect to rank 0, then each pair connects.

Rank 0 listens at the world's address. Every other rank connects there, is authenticated, and receives a WELCOME once
all have joined: the epoch, a fresh nonce and the addresses of all members. Nonce and token give the key with which the
members authenticate each other. Of each pair, the lower rank accepts and the higher rank connects. A connection carries
the world's frames as soon as it stands, so that a member that gives up breaks the world for all who have a WELCOME.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import itertools
import socket
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ms_recover.errors import UsageError
from ms_recover.worlds import authentication, handshake, stream
from ms_recover.worlds.authentication import (
    Acceptor,
    Busy,
    BusyError,
    EndedError,
    HandshakeRefusedError,
    Joined,
    JoinError,
    connect,
)
from ms_recover.worlds.handshake import Hello, MemberAddress, MessageType, Purpose, Welcome
from ms_recover.worlds.instructions import Fault
from ms_recover.worlds.making import Making, tell
from ms_recover.worlds.security import Security, describe, make_nonce, prove
from ms_recover.worlds.wire import ProtocolError
from ms_recover.worlds.world import REPORT_S

_MAC_BYTES = 32
_FIRST_RETRY_S = 0.001
"""Rank 0 may be about to listen: members are often started together."""
_MAX_RETRY_S = 0.5
_GROWTH = 1.5
_WAITING_S = 1.0
"""Time between two WAITING of rank 0."""
_SILENT_S = 3.0


class Agreed(NamedTuple):
    """What all members agreed on, the key of this world and epoch, and this member's sockets.

    Rank 0 has no listener for peers, and no connection to itself.
    """

    welcome: Welcome
    key: bytes
    heartbeats: socket.socket
    listener: socket.socket | None = None
    first: socket.socket | None = None
    """The connection to rank 0."""


async def host_rendezvous(
    making: Making, address: str, port: int, listener: socket.socket | None, security: Security
) -> Agreed:
    """As rank 0, wait until all members have joined; the epoch is the highest of all members.

    A listener that is given stays open.
    """
    if listener is None:
        with _listen(address, port) as opened:
            return await host_rendezvous(making, address, port, opened, security)
    hello, members, loop = making.hello, making.members, asyncio.get_running_loop()
    arrived = asyncio.Event()
    came: set[int] = set()

    def missing() -> list[int]:
        """Return the ranks that are not there, those first that have never been."""
        ranks = [rank for rank in range(1, hello.size) if rank not in members]
        return sorted(ranks, key=lambda rank: (rank in came, rank))

    def admit(joined: Joined) -> str | None:
        other, rank = joined.hello, joined.hello.rank
        if (other.purpose, other.world, other.size) != (hello.purpose, hello.world, hello.size):
            words = f"this is the rendezvous of world {hello.world!r} of size {hello.size}"
            return words if other.world == hello.world or other.purpose != hello.purpose else Busy(words)
        if rank in members:
            if not stream.is_dead(members[rank].sock):
                return f"duplicate rank {rank}"
            members[rank].sock.close()
        members[rank] = joined
        came.add(rank)
        tell(joined.sock, MessageType.WAITING, handshake.pack_waiting(next(iter(missing()), 0)))
        arrived.set()
        return None

    async def all_joined() -> None:
        told, again = 0, 0.0
        while ranks := missing():
            if ranks[0] != told or loop.time() >= again:
                told, again = ranks[0], loop.time() + _WAITING_S
                making.tell(MessageType.WAITING, handshake.pack_waiting(told))
            arrived.clear()
            timer = loop.call_at(again, arrived.set)
            await arrived.wait()
            timer.cancel()
            for rank in [rank for rank, joined in members.items() if stream.is_dead(joined.sock)]:
                members.pop(rank).sock.close()

    making.awaited = missing
    with stream.closed_on_error(stream.bind_datagrams(address)) as heartbeats:
        acceptor = Acceptor(listener, security.token, security, admit, lambda words: setattr(making, "stage", words))
        await acceptor.accept_during(all_joined())
        addresses = [MemberAddress(address, port, heartbeats.getsockname()[1], hello.heartbeat)]
        for rank, (sock, other, _) in sorted(members.items()):
            try:
                host = sock.getpeername()[0]
            except OSError as error:
                raise _gone(rank, error) from error
            addresses.append(MemberAddress(host, other.port, other.heartbeat_port, other.heartbeat))
        epoch = max(hello.epoch, *(joined.hello.epoch for joined in members.values()))
        welcome = Welcome(epoch, make_nonce(), tuple(addresses))
        return Agreed(welcome, _world_key(hello.world, welcome, security), heartbeats)


async def welcome_members(making: Making, agreed: Agreed, security: Security) -> None:
    """As rank 0, send each member its WELCOME; from then on its connection is one of the world."""
    body = handshake.pack_welcome(agreed.welcome)
    for rank, joined in sorted(making.members.items()):
        making.awaited = lambda rank=rank: [rank]  # type: ignore[misc]
        mac = prove(security.token, "welcome", joined.transcript, body)
        try:
            await authentication.send_message(joined.sock, MessageType.WELCOME, mac + body)
        except OSError as error:
            raise _gone(rank, error) from error
        del making.members[rank]
        making.world.connect(rank, joined.sock)


async def join_rendezvous(making: Making, addresses: Sequence[str], port: int, security: Security) -> Agreed:
    """As another rank, connect to rank 0, retrying until it answers, and wait until all have joined.

    The addresses of rank 0 are tried in turn.
    """
    pause = _FIRST_RETRY_S
    for address in itertools.cycle(addresses):
        making.awaited = lambda: [0]
        try:
            return await _join(making, address, port, security)
        except (OSError, ProtocolError, asyncio.TimeoutError) as error:  # nothing, or another program, answers
            making.stage = f"the last attempt failed: {describe(error)}"
        await asyncio.sleep(pause)
        pause = min(_GROWTH * pause, _MAX_RETRY_S)
    raise AssertionError


async def _join(making: Making, address: str, port: int, security: Security) -> Agreed:
    """Connect to rank 0 and wait for its WELCOME. What fails after it has admitted this member raises `JoinError`."""
    sock, transcript, hello, listener, heartbeats = await _connect_first(address, port, making.hello, security)
    admitted = False

    def waiting(rank: int) -> None:
        nonlocal admitted
        admitted = True
        heard = asyncio.get_running_loop().time()
        making.stage = f"connected with rank 0, which waits for {f'rank {rank}' if rank else 'nobody'}"
        making.awaited = lambda: [rank if asyncio.get_running_loop().time() - heard < _SILENT_S else 0]

    with contextlib.ExitStack() as opened:
        for each in (sock, listener, heartbeats):
            opened.enter_context(stream.closed_on_error(each))
        try:
            welcome = await _receive_welcome(sock, hello, transcript, security, waiting)
        except (OSError, ProtocolError) as error:
            if not admitted or isinstance(error, BusyError):
                raise
            raise _gone(0, error) from error
    making.stage = "all members joined, but not all are connected with each other"
    return Agreed(welcome, _world_key(hello.world, welcome, security), heartbeats, listener, sock)


async def _connect_first(
    address: str, port: int, hello: Hello, security: Security
) -> tuple[socket.socket, bytes, Hello, socket.socket, socket.socket]:
    """Connect to rank 0, with sockets for peers and heartbeats at the address from which this host reaches it."""
    with stream.new_socket(address, socket.SOCK_DGRAM) as probe:
        probe.connect((address, port))  # sends nothing
        own = str(probe.getsockname()[0])
    with (
        stream.closed_on_error(stream.listen(own, 0)) as listener,
        stream.closed_on_error(stream.bind_datagrams(own)) as heartbeats,
    ):
        ports = {"port": listener.getsockname()[1], "heartbeat_port": heartbeats.getsockname()[1]}
        hello = hello._replace(nonce=make_nonce(), **ports)
        connecting = connect(address, port, hello, security.token, security)
        in_time = stream.in_time(connecting, authentication.HANDSHAKE_S, lambda connected: connected[0].close())
        sock, transcript = await in_time
        return sock, transcript, hello, listener, heartbeats


async def _receive_welcome(
    sock: socket.socket, hello: Hello, transcript: bytes, security: Security, waiting: Callable[[int], None]
) -> Welcome:
    """Return the WELCOME; `waiting` is called with the rank in each WAITING before."""
    while True:
        kind, message = await authentication.read_any(sock, handshake.MAX_MESSAGE)
        if kind is MessageType.WELCOME:
            break
        if kind is not MessageType.WAITING:
            raise ProtocolError(f"received {kind.name}, expected WELCOME")
        waiting(handshake.unpack_waiting(message))
    mac, body = message[:_MAC_BYTES], message[_MAC_BYTES:]
    if not hmac.compare_digest(mac, prove(security.token, "welcome", transcript, body)):
        raise HandshakeRefusedError("the WELCOME was changed in transit")
    welcome = handshake.unpack_welcome(body)
    if len(welcome.members) != hello.size or welcome.epoch < hello.epoch:
        raise HandshakeRefusedError(f"welcomed to a world of size {len(welcome.members)} at epoch {welcome.epoch}")
    first = welcome.members[0]._replace(host=sock.getpeername()[0])
    return welcome._replace(members=(first, *welcome.members[1:]))


async def connect_members(making: Making, agreed: Agreed, security: Security) -> None:
    """As another rank than 0, connect to all lower ranks, and accept all higher ones."""
    world, welcome = making.world, agreed.welcome
    own = making.hello._replace(purpose=Purpose.PEER, epoch=welcome.epoch)
    arrived = asyncio.Event()
    expected = (own.purpose, own.world, own.size, own.epoch)

    def admit(joined: Joined) -> str | None:
        hello = joined.hello
        if (hello.purpose, hello.world, hello.size, hello.epoch) != expected:
            return f"this is rank {own.rank} of world {own.world!r} at epoch {welcome.epoch}"
        if hello.rank <= own.rank or hello.rank not in world.unconnected():
            return f"unexpected rank {hello.rank}"
        if not world.is_open:
            return f"world {own.world!r} has ended"
        world.connect(hello.rank, joined.sock)
        arrived.set()
        return None

    async def all_connected() -> None:
        for peer in range(1, own.rank):
            making.awaited = lambda peer=peer: [peer]  # type: ignore[misc]
            hello = own._replace(nonce=make_nonce())
            world.connect(peer, await _connect_peer(welcome.members[peer], peer, hello, agreed.key, security))
        making.awaited = world.unconnected
        while world.unconnected():
            arrived.clear()
            await arrived.wait()

    assert agreed.listener is not None
    acceptor = Acceptor(agreed.listener, agreed.key, security, admit, lambda words: setattr(making, "stage", words))
    sign = world.loop.call_later(_WAITING_S, world.give_sign, 0)  # which cannot see who keeps others waiting
    try:
        await acceptor.accept_during(all_connected())
    finally:
        sign.cancel()


async def _connect_peer(
    member: MemberAddress, peer: int, hello: Hello, key: bytes, security: Security
) -> socket.socket:
    try:
        return (await connect(member.host, member.port, hello, key, security))[0]
    except (JoinError, OSError, ProtocolError) as error:
        await asyncio.sleep(REPORT_S)  # the one that gives up says why to rank 0, which ends this
        raise _gone(peer, error) from error


def _gone(rank: int, error: Exception) -> EndedError:
    """Return the error of a world that ends because a member cannot be reached."""
    cause = "eof" if isinstance(error, OSError) else "protocol"
    return EndedError(Fault(rank, cause, f"rank {rank} cannot be reached any more: {describe(error)}"))


def _world_key(world: str, welcome: Welcome, security: Security) -> bytes:
    return prove(security.token, "world", world.encode(), welcome.epoch.to_bytes(4, "big"), welcome.nonce)


def _listen(address: str, port: int) -> socket.socket:
    try:
        return stream.listen(address, port)
    except OSError as error:
        raise UsageError(f"cannot listen at {address} port {port}: {error.strerror}") from error
