import struct

import pytest

from ms_recover.worlds import wire
from ms_recover.worlds.handshake import (
    MAX_UNAUTHENTICATED,
    Hello,
    MemberAddress,
    MessageType,
    Purpose,
    Welcome,
    pack,
    pack_hello,
    pack_welcome,
    unpack_hello,
    unpack_preamble,
    unpack_welcome,
)
from ms_recover.worlds.wire import FrameKind, Header, ProtocolError

GOOD = Header(FrameKind.MESSAGE, "float32", (2, 3), wire.world_id("w"), 7, 0, 9, 5, 24, 0)
HELLO = Hello(Purpose.RENDEZVOUS, 3, 1, 4, 1000, 2000, 3000, b"n" * 32, "wörld")


def read(data):
    return wire.decode(memoryview(data), 0, len(data))


@pytest.mark.parametrize(
    "header",
    [
        GOOD,
        GOOD._replace(shape=(), length=4),
        GOOD._replace(shape=(0, 5), length=0),
        GOOD._replace(dtype="bfloat16", shape=(1 << 30,), length=1 << 31),
        GOOD._replace(kind=FrameKind.PART, length=8, call=2**32 - 1, tag=2**63 - 1, detail=1 << 40),
        GOOD._replace(kind=FrameKind.ABORT, dtype="", shape=(), length=0, call=3, detail=6),
        GOOD._replace(kind=FrameKind.LEAVE, dtype="", shape=(), length=0),
    ],
)
def test_a_header_survives_the_wire(header):
    assert read(wire.encode(header)) == header


def test_header_is_read_where_it_starts_once_it_is_whole():
    data = wire.encode(GOOD)
    around = memoryview(b"before" + data + b"behind")
    for end in range(len(data)):
        assert wire.decode(around, 6, 6 + end) is None
    assert wire.decode(around, 6, 6 + len(data)) == wire.decode(around, 6, len(around)) == GOOD


def damaged(offset, value):
    data = bytearray(wire.encode(GOOD))
    data[offset : offset + len(value)] = value
    return data


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (damaged(0, b"HTTP"), "starts with"),
        (damaged(4, b"\x02"), "version 2"),
        (damaged(5, b"\x00"), "kind 0"),
        (damaged(5, b"\x05"), "kind 5"),
        (damaged(6, b"\x0f"), "element type 15"),
        (damaged(7, b"\x11"), "17 dimensions"),
        (damaged(40, struct.pack("!Q", 23)), "payload of 23"),
        (damaged(40, struct.pack("!Q", 25)), "payload of 25"),
        (damaged(40, struct.pack("!Q", 2**64 - 1)), "payload of"),
        (damaged(56, struct.pack("!QQ", 2**63, 2**63)), "payload of"),
    ],
)
def test_hostile_header_is_refused(data, words):
    with pytest.raises(ProtocolError, match=words):
        read(data)


def test_too_many_dimensions_are_refused_before_they_come():
    with pytest.raises(ProtocolError, match="17 dimensions"):
        wire.decode(memoryview(damaged(7, b"\x11")), 0, wire.FIXED_SIZE)


def test_length_beyond_any_tensor_is_refused():
    huge = GOOD._replace(shape=(1 << 40,), length=1 << 42)
    with pytest.raises(ProtocolError, match="payload"):
        read(wire.encode(huge))


def test_a_hello_survives_the_wire():
    assert unpack_hello(pack_hello(HELLO)) == HELLO
    kind, length = unpack_preamble(pack(MessageType.HELLO, pack_hello(HELLO))[:8], MAX_UNAUTHENTICATED)
    assert (kind, length) == (MessageType.HELLO, len(pack_hello(HELLO)))


def test_a_welcome_survives_the_wire():
    welcome = Welcome(4, b"x" * 32, (MemberAddress("127.0.0.1", 1, 2, 3000), MemberAddress("::1", 65535, 4, 1000)))
    data = pack_welcome(welcome)
    assert unpack_welcome(data) == welcome
    for cut in range(len(data)):
        with pytest.raises(ProtocolError):
            unpack_welcome(data[:cut])
    with pytest.raises(ProtocolError):
        unpack_welcome(data + b"\0")


@pytest.mark.parametrize(
    "change",
    [{"rank": 0}, {"rank": 4}, {"size": 5000}, {"purpose": 3}],
)
def test_hostile_hello_is_refused(change):
    with pytest.raises(ProtocolError):
        unpack_hello(pack_hello(HELLO._replace(**change)))


def test_hello_of_wrong_length_or_text_is_refused():
    data = pack_hello(HELLO)
    for wrong in (b"", data[:-1], data + b"x", data[:-1] + b"\xff"):
        with pytest.raises(ProtocolError):
            unpack_hello(wrong)


@pytest.mark.parametrize(
    "preamble", [b"GET / HT", b"MSRH\x02\x01\x00\x10", b"MSRH\x01\x09\x00\x10", b"MSRH\x01\x01\xff\xff"]
)
def test_hostile_preamble_is_refused(preamble):
    with pytest.raises(ProtocolError):
        unpack_preamble(preamble, MAX_UNAUTHENTICATED)
