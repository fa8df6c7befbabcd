"""Messages of the handshake (pure): two members prove to each other that they belong to the same world.

::

    connecting                                       accepting
      HELLO  name and rank, world, a nonce      -->
                                                <--  CHALLENGE  a nonce, HMAC(key, "host", HELLO, nonce)
      PROOF  HMAC(key, "guest", HELLO, nonce)   -->
                                                <--  WAITING, again and again
                                                <--  WELCOME, REFUSED, BUSY or ENDED

Each message is ``MSRH``, version, type and a length of at most 64 KiB. The accepting side reads at most 1 KiB before
the other side is authenticated.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import NamedTuple

from ms_recover.worlds.wire import VERSION, ProtocolError

NONCE_BYTES = 32
MAX_UNAUTHENTICATED = 1024
MAX_MESSAGE = 1 << 16
MAX_NAME = 255
_MAX_WORDS = 1024
MAX_SIZE = 1024
_MAGIC = b"MSRH"
_PREAMBLE = struct.Struct("!4sBBH")
_HELLO = struct.Struct("!BIIIHHI32sB")
_WELCOME = struct.Struct("!I32sI")
_MEMBER = struct.Struct("!HHIB")
_RANK = struct.Struct("!I")
PREAMBLE_SIZE = _PREAMBLE.size


class MessageType(IntEnum):
    """The type of a handshake message."""

    HELLO = 1
    CHALLENGE = 2
    PROOF = 3
    WELCOME = 4
    REFUSED = 5
    BUSY = 6
    """Refused for now: the address makes another world at the moment."""
    WAITING = 7
    """From rank 0: the member that joined waits for the others."""
    ENDED = 8
    """From rank 0: the world will not be made."""


class Purpose(IntEnum):
    """Why a member connects."""

    RENDEZVOUS = 1
    """To join the world at rank 0."""
    PEER = 2
    """To open the connection between two members after the rendezvous."""


class Hello(NamedTuple):
    """The first message of the connecting member."""

    purpose: Purpose
    epoch: int
    """For a rendezvous the lowest epoch that the member accepts; for a peer the epoch of the world."""
    rank: int
    size: int
    port: int
    """TCP port on which the member accepts peers."""
    heartbeat_port: int
    """UDP port on which the member receives heartbeats."""
    heartbeat: int
    """Limit of silence, in milliseconds."""
    nonce: bytes
    world: str


class MemberAddress(NamedTuple):
    """Host and ports of a member; ``heartbeat`` is its limit of silence in milliseconds."""

    host: str
    port: int
    heartbeat_port: int
    heartbeat: int


class Welcome(NamedTuple):
    """The last message of rank 0, once all members have joined; members are in the order of their ranks."""

    epoch: int
    nonce: bytes
    members: tuple[MemberAddress, ...]


def pack(kind: MessageType, body: bytes) -> bytes:
    """Encode a message with its envelope."""
    return _PREAMBLE.pack(_MAGIC, VERSION, kind, len(body)) + body


def unpack_preamble(data: bytes, limit: int) -> tuple[MessageType, int]:
    """Decode the type and length of a message, which is at most `limit`; all decoding raises `ProtocolError`."""
    magic, version, kind, length = _PREAMBLE.unpack(data)
    if magic != _MAGIC:
        raise ProtocolError("not a handshake")
    if version != VERSION:
        raise ProtocolError(f"handshake of version {version}, expected {VERSION}")
    if not 1 <= kind <= len(MessageType) or length > limit:
        raise ProtocolError(f"invalid handshake message of type {kind} and {length} bytes")
    return MessageType(kind), length


def pack_hello(hello: Hello) -> bytes:
    """Encode a HELLO."""
    name = hello.world.encode()
    return _HELLO.pack(*hello[:-1], len(name)) + name


def unpack_hello(data: bytes) -> Hello:
    """Decode a HELLO."""
    if len(data) < _HELLO.size or len(data) != _HELLO.size + data[_HELLO.size - 1]:
        raise ProtocolError(f"invalid HELLO of {len(data)} bytes")
    purpose, epoch, rank, size, port, heartbeat_port, heartbeat, nonce, _ = _HELLO.unpack_from(data)
    if purpose not in (1, 2) or not 0 < rank < size <= MAX_SIZE:
        raise ProtocolError(f"invalid HELLO: purpose {purpose}, rank {rank} of {size}")
    world = _text(data[_HELLO.size :])
    return Hello(Purpose(purpose), epoch, rank, size, port, heartbeat_port, heartbeat, nonce, world)


def pack_welcome(welcome: Welcome) -> bytes:
    """Encode a WELCOME."""
    data = _WELCOME.pack(welcome.epoch, welcome.nonce, len(welcome.members))
    for host, port, heartbeat_port, heartbeat in welcome.members:
        data += _MEMBER.pack(port, heartbeat_port, heartbeat, len(host.encode())) + host.encode()
    return data


def unpack_welcome(data: bytes) -> Welcome:
    """Decode a WELCOME."""
    members = []
    try:
        epoch, nonce, count = _WELCOME.unpack_from(data)
        at = _WELCOME.size
        if count > MAX_SIZE:
            raise ProtocolError(f"invalid WELCOME: {count} members")
        for _ in range(count):
            port, heartbeat_port, heartbeat, length = _MEMBER.unpack_from(data, at)
            at += _MEMBER.size + length
            members.append(MemberAddress(_text(data[at - length : at]), port, heartbeat_port, heartbeat))
    except struct.error as error:
        raise ProtocolError("truncated WELCOME") from error
    if at != len(data):
        raise ProtocolError(f"invalid WELCOME: {len(data)} bytes, expected {at}")
    return Welcome(epoch, nonce, tuple(members))


def pack_waiting(missing: int) -> bytes:
    """Encode a WAITING with the lowest rank that is missing, or 0."""
    return _RANK.pack(missing)


def unpack_waiting(data: bytes) -> int:
    """Decode a WAITING."""
    if len(data) != _RANK.size:
        raise ProtocolError(f"invalid WAITING of {len(data)} bytes")
    return int(_RANK.unpack(data)[0])


def pack_ended(accused: int, words: str) -> bytes:
    """Encode an ENDED with the rank at fault and the reason, cut to 1 KiB."""
    return _RANK.pack(accused) + words.encode()[:_MAX_WORDS]


def unpack_ended(data: bytes) -> tuple[int, str]:
    """Decode an ENDED."""
    if not _RANK.size <= len(data) <= _RANK.size + _MAX_WORDS:
        raise ProtocolError(f"invalid ENDED of {len(data)} bytes")
    return int(_RANK.unpack_from(data)[0]), data[_RANK.size :].decode(errors="replace")


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ProtocolError("invalid UTF-8") from error
