"""How the members of a world find each other: all connect to rank 0, then each pair connects.

Rank 0 listens at the world's address. Every other rank connects there, is authenticated, and receives a WELCOME once
all have joined: the epoch, a fresh nonce and the addresses of all members. Nonce and token give the key with which the
members authenticate each other. Of each pair, the lower rank accepts and the higher rank connects.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import itertools
import socket
from collections.abc import Sequence
from typing import NamedTuple

from ms_recover.errors import UsageError
from ms_recover.worlds import authentication, handshake, stream
from ms_recover.worlds.authentication import AcceptError, Acceptor, HandshakeRefusedError, Joined, OnStatus, connect
from ms_recover.worlds.handshake import Hello, MemberAddress, MessageType, Purpose, Welcome
from ms_recover.worlds.security import Security, describe, make_nonce, prove
from ms_recover.worlds.wire import ProtocolError

_MAC_BYTES = 32
_FIRST_RETRY_S = 0.001
"""Rank 0 may be about to listen: members are often started together."""
_MAX_RETRY_S = 0.5
_GROWTH = 1.5


class Rendezvous(NamedTuple):
    """What all members agreed on, the key of this world and epoch, and this member's sockets."""

    welcome: Welcome
    key: bytes
    sockets: dict[int, socket.socket]
    """Connections, by rank."""
    heartbeats: socket.socket


async def host_rendezvous(
    address: str, port: int, listener: socket.socket | None, hello: Hello, security: Security, on_status: OnStatus
) -> Rendezvous:
    """As rank 0, wait until all members have joined, then welcome them; the epoch is the highest of all members.

    A listener that is given stays open. `on_status` is called with the reason of each refusal.
    """
    if listener is None:
        with _listen(address, port) as opened:
            return await host_rendezvous(address, port, opened, hello, security, on_status)
    members: dict[int, Joined] = {}
    arrived = asyncio.Event()

    def admit(joined: Joined) -> str | None:
        rank = joined.hello.rank
        if (joined.hello.purpose, joined.hello.world, joined.hello.size) != (hello.purpose, hello.world, hello.size):
            return f"this is the rendezvous of world {hello.world!r} of size {hello.size}"
        if rank in members:
            if not stream.is_dead(members[rank].sock):
                return f"duplicate rank {rank}"
            members[rank].sock.close()
        members[rank] = joined
        arrived.set()
        return None

    async def all_joined() -> None:
        while len(members) < hello.size - 1:
            arrived.clear()
            await arrived.wait()
            for rank in [rank for rank, joined in members.items() if stream.is_dead(joined.sock)]:
                members.pop(rank).sock.close()

    heartbeats = stream.bind_datagrams(address)
    try:
        await Acceptor(listener, security.token, security, admit, on_status).accept_during(all_joined())
        addresses = [MemberAddress(address, port, heartbeats.getsockname()[1], hello.heartbeat)]
        for _, (sock, other, _) in sorted(members.items()):
            addresses.append(MemberAddress(sock.getpeername()[0], other.port, other.heartbeat_port, other.heartbeat))
        epoch = max(hello.epoch, *(joined.hello.epoch for joined in members.values()))
        welcome = Welcome(epoch, make_nonce(), tuple(addresses))
        body = handshake.pack_welcome(welcome)
        for joined in members.values():
            mac = prove(security.token, "welcome", joined.transcript, body)
            await authentication.send_message(joined.sock, MessageType.WELCOME, mac + body)
    except BaseException as error:
        for joined in members.values():
            if isinstance(error, AcceptError):
                with contextlib.suppress(OSError):
                    joined.sock.send(handshake.pack(MessageType.REFUSED, str(error).encode()[:255]))
            joined.sock.close()
        heartbeats.close()
        raise
    sockets = {rank: joined.sock for rank, joined in members.items()}
    return Rendezvous(welcome, _world_key(hello.world, welcome, security), sockets, heartbeats)


async def join_rendezvous(
    addresses: Sequence[str], port: int, hello: Hello, security: Security, on_status: OnStatus
) -> Rendezvous:
    """As another rank, connect to rank 0, retrying until it answers, then connect with all other members.

    The addresses of rank 0 are tried in turn. `hello` gets its ports and nonce here. `on_status` is called with each
    failed attempt and each stage reached.
    """
    pause = _FIRST_RETRY_S
    for address in itertools.cycle(addresses):
        try:
            sock, transcript, hello, listener, heartbeats = await _connect_first(address, port, hello, security)
            break
        except (OSError, ProtocolError, asyncio.TimeoutError) as error:  # nothing, or another program, answers
            on_status(f"the last attempt failed: {describe(error)}")
        await asyncio.sleep(pause)
        pause = min(_GROWTH * pause, _MAX_RETRY_S)
    on_status("connected with rank 0, which waits for other members")
    sockets = {0: sock}
    try:
        with listener:
            welcome = await _receive_welcome(sock, hello, transcript, security)
            key = _world_key(hello.world, welcome, security)
            await _connect_peers(listener, hello, welcome, key, security, sockets, on_status)
    except BaseException:
        for sock in (*sockets.values(), heartbeats):
            sock.close()
        raise
    return Rendezvous(welcome, key, sockets, heartbeats)


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


async def _receive_welcome(sock: socket.socket, hello: Hello, transcript: bytes, security: Security) -> Welcome:
    message = await authentication.read_message(sock, MessageType.WELCOME, handshake.MAX_MESSAGE)
    mac, body = message[:_MAC_BYTES], message[_MAC_BYTES:]
    if not hmac.compare_digest(mac, prove(security.token, "welcome", transcript, body)):
        raise HandshakeRefusedError("the WELCOME was changed in transit")
    welcome = handshake.unpack_welcome(body)
    if len(welcome.members) != hello.size or welcome.epoch < hello.epoch:
        raise HandshakeRefusedError(f"welcomed to a world of size {len(welcome.members)} at epoch {welcome.epoch}")
    first = welcome.members[0]._replace(host=sock.getpeername()[0])
    return welcome._replace(members=(first, *welcome.members[1:]))


async def _connect_peers(
    listener: socket.socket,
    own: Hello,
    welcome: Welcome,
    key: bytes,
    security: Security,
    sockets: dict[int, socket.socket],
    on_status: OnStatus,
) -> None:
    arrived = asyncio.Event()
    expected = (Purpose.PEER, own.world, own.size, welcome.epoch)

    def admit(joined: Joined) -> str | None:
        hello = joined.hello
        if (hello.purpose, hello.world, hello.size, hello.epoch) != expected:
            return f"this is rank {own.rank} of world {own.world!r} at epoch {welcome.epoch}"
        if hello.rank <= own.rank or hello.rank in sockets:
            return f"unexpected rank {hello.rank}"
        sockets[hello.rank] = joined.sock
        arrived.set()
        return None

    async def all_connected() -> None:
        for peer in range(1, own.rank):
            member = welcome.members[peer]
            hello = own._replace(purpose=Purpose.PEER, epoch=welcome.epoch, nonce=make_nonce())
            sockets[peer], _ = await connect(member.host, member.port, hello, key, security)
        while len(sockets) < own.size - 1:
            arrived.clear()
            await arrived.wait()

    await Acceptor(listener, key, security, admit, on_status).accept_during(all_connected())


def _world_key(world: str, welcome: Welcome, security: Security) -> bytes:
    return prove(security.token, "world", world.encode(), welcome.epoch.to_bytes(4, "big"), welcome.nonce)


def _listen(address: str, port: int) -> socket.socket:
    try:
        return stream.listen(address, port)
    except OSError as error:
        raise UsageError(f"cannot listen at {address} port {port}: {error.strerror}") from error
