"""The handshake's messages (pure): how two members prove to each other that they belong to the same world.

::

    guest                                            host
      HELLO  who am I, to which world, a nonce  -->
                                                <--  CHALLENGE  a nonce, HMAC(key, "host", HELLO, nonce)
      PROOF  HMAC(key, "guest", HELLO, nonce)   -->
                                                <--  WELCOME or REFUSED

Each message is ``MSRH``, version, type and a length of at most 64 KiB; a host reads at most 1 KiB from a stranger.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import NamedTuple

from ms_recover.worlds.wire import VERSION, WireError

NONCE = 32
MAX_FROM_STRANGER = 1024
MAX_MESSAGE = 1 << 16
MAX_NAME = 255
MAX_SIZE = 1024
_MAGIC = b"MSRH"
_PREAMBLE = struct.Struct("!4sBBH")
_HELLO = struct.Struct("!BIIIHHI32sB")
_MEMBER = struct.Struct("!HHIB")
PREAMBLE_SIZE = _PREAMBLE.size


class Type(IntEnum):
    """What a handshake message is."""

    HELLO = 1
    CHALLENGE = 2
    PROOF = 3
    WELCOME = 4
    REFUSED = 5


class Purpose(IntEnum):
    """What a guest comes for."""

    MEETING = 1
    """To meet the others at rank 0."""
    PEER = 2
    """To be connected with another member after the meeting."""


class Hello(NamedTuple):
    """What a guest says of itself; ``heartbeat`` is in milliseconds."""

    purpose: Purpose
    epoch: int
    """The lowest epoch it accepts; to a peer the epoch itself."""
    rank: int
    size: int
    port: int
    """Where it listens for peers."""
    beat_port: int
    """Where its heartbeats are to be sent."""
    heartbeat: int
    nonce: bytes
    world: str


class Member(NamedTuple):
    """Where a member is to be found; ``heartbeat`` is in milliseconds."""

    host: str
    port: int
    beat_port: int
    heartbeat: int


class Welcome(NamedTuple):
    """What rank 0 tells everybody once all are there; members are in the order of their ranks."""

    epoch: int
    nonce: bytes
    members: tuple[Member, ...]


def pack(kind: Type, body: bytes) -> bytes:
    """Put a message in its envelope."""
    return _PREAMBLE.pack(_MAGIC, VERSION, kind, len(body)) + body


def unpack_preamble(data: bytes, limit: int) -> tuple[Type, int]:
    """Read what a message is and how long.

    Raises
    ------
    WireError
        When it is none of this version, or longer than `limit`.
    """
    magic, version, kind, length = _PREAMBLE.unpack(data)
    if magic != _MAGIC:
        raise WireError("not a handshake")
    if version != VERSION:
        raise WireError(f"handshake of version {version}, this side speaks {VERSION}")
    if not 1 <= kind <= 5 or length > limit:
        raise WireError(f"handshake message of type {kind} and {length} bytes")
    return Type(kind), length


def pack_hello(hello: Hello) -> bytes:
    """Turn a greeting into bytes."""
    name = hello.world.encode()
    return _HELLO.pack(*hello[:-1], len(name)) + name


def unpack_hello(data: bytes) -> Hello:
    """Read a greeting.

    Raises
    ------
    WireError
        When a field is out of its bounds.
    """
    if len(data) < _HELLO.size or len(data) != _HELLO.size + data[_HELLO.size - 1]:
        raise WireError(f"greeting of {len(data)} bytes")
    purpose, epoch, rank, size, port, beat_port, heartbeat, nonce, _ = _HELLO.unpack_from(data)
    if purpose not in (1, 2) or not 0 < rank < size <= MAX_SIZE:
        raise WireError(f"greeting for purpose {purpose} of rank {rank} of {size}")
    world = _text(data[_HELLO.size :])
    return Hello(Purpose(purpose), epoch, rank, size, port, beat_port, heartbeat, nonce, world)


def pack_welcome(welcome: Welcome) -> bytes:
    """Turn a welcome into bytes."""
    parts = [struct.pack("!I32sI", welcome.epoch, welcome.nonce, len(welcome.members))]
    for host, port, beat_port, heartbeat in welcome.members:
        parts.append(_MEMBER.pack(port, beat_port, heartbeat, len(host.encode())) + host.encode())
    return b"".join(parts)


def unpack_welcome(data: bytes) -> Welcome:
    """Read a welcome.

    Raises
    ------
    WireError
        When it is cut short, too long or out of bounds.
    """
    members = []
    try:
        epoch, nonce, count = struct.unpack_from("!I32sI", data)
        at = struct.calcsize("!I32sI")
        if count > MAX_SIZE:
            raise WireError(f"a world of {count} members")
        for _ in range(count):
            port, beat_port, heartbeat, length = _MEMBER.unpack_from(data, at)
            at += _MEMBER.size + length
            members.append(Member(_text(data[at - length : at]), port, beat_port, heartbeat))
    except struct.error as error:
        raise WireError("a welcome that is cut short") from error
    if at != len(data):
        raise WireError(f"a welcome of {len(data)} bytes where {at} are meant")
    return Welcome(epoch, nonce, tuple(members))


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise WireError("text that is not UTF-8") from error
