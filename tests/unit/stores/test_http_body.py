"""Bodies of answers: chunks as RFC 9112 cuts them, lengths, and the end of a connection."""

import http.client
import io
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ms_recover.errors import AnswerError
from ms_recover.stores.http_body import Body

REST = b"HTTP/1.1 200 OK\r\n"
"""What follows on the connection, and is no part of the body."""


def body(sent, length=None, *, chunked=False):
    """Return the body of an answer, and its connection."""
    stream = io.BufferedReader(io.BytesIO(sent))
    return Body(SimpleNamespace(fp=stream, chunked=chunked, length=length), "the server"), stream


def read(one, most=7):
    """Return all bytes of a body."""
    found, buffer = bytearray(), memoryview(bytearray(most))
    while count := one.read_into(buffer):
        found += buffer[:count]
    assert one.read_into(buffer) == 0
    return found


def in_chunks(parts, behind=b""):
    lines = [f"{len(part):x}{';name=value' * (len(part) % 2)}\r\n".encode() + part + b"\r\n" for part in parts if part]
    return b"".join([*lines, b"0\r\n", behind])


@given(st.lists(st.binary(max_size=40), max_size=6), st.integers(1, 50))
def test_a_body_is_the_bytes_that_were_sent(parts, most):
    data = b"".join(parts)
    one, stream = body(data + REST, len(data))
    assert (read(one, most), one.left, one.keeps) == (data, 0, True)
    assert stream.read() == REST
    one, stream = body(in_chunks(parts, b"\r\n") + REST, chunked=True)
    assert (read(one, most), one.left, one.keeps) == (data, 0, True)
    assert stream.read() == REST
    one, _ = body(data)
    assert (read(one, most), one.left) == (data, 0)
    assert not one.keeps


@given(st.lists(st.binary(min_size=1, max_size=40), min_size=1, max_size=4), st.data())
def test_a_body_that_is_cut_off_is_none(parts, data):
    whole, sent = b"".join(parts), in_chunks(parts)
    with pytest.raises(http.client.IncompleteRead):
        read(body(whole[: data.draw(st.integers(0, len(whole) - 1))], len(whole))[0])
    with pytest.raises(http.client.HTTPException):
        read(body(sent[: data.draw(st.integers(0, len(sent) - 4))], chunked=True)[0])


def test_a_connection_is_used_again_only_behind_the_last_line():
    for behind in (b"Trailer: x\r\n\r\n", b"", b"x"):
        one, _ = body(in_chunks([b"abc"], behind), chunked=True)
        assert (read(one), one.keeps) == (b"abc", False)


@pytest.mark.parametrize(
    "sent",
    [
        b"\r\nabc",
        b"g\r\nabc",
        b"-3\r\nabc",
        b"0x3\r\nabc",
        b"3",
        b"1" * 16 + b"\r\n",
        b"3;" + b"x" * 1024 + b"\r\nabc\r\n0\r\n\r\n",
    ]
    + [b"2\r\nabc\r\n0\r\n\r\n", b"3\r\nabc\n\n0\r\n\r\n", b"3\r\nabc0\r\n\r\n"],
)
def test_chunks_that_contradict_themselves_are_refused(sent):
    with pytest.raises(http.client.HTTPException):
        read(body(sent, chunked=True)[0])


def test_a_body_in_tiny_pieces_ends():
    data = bytes(40_000)
    with pytest.raises(AnswerError, match="the server sends an answer in pieces of a few bytes"):
        read(body(data, len(data))[0], 1)
    assert read(body(data, len(data))[0], 3) == data
    large = bytes(20_000 * 200)
    assert read(body(large, len(large))[0], 200) == large
