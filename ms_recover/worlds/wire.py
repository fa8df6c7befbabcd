"""Frames on the wire (pure): headers, bounded and checked.

A frame is a header and, for messages and parts of collectives, a payload of ``length`` bytes. The header is 56 bytes
and eight more for each dimension::

    magic 4  version 1  kind 1  dtype 1  dimensions 1  world 8  epoch 4  call 4  sequence 8  tag 8  length 8  detail 8

All numbers are big-endian. ``docs/worlds-protocol.md`` describes the fields.
"""

from __future__ import annotations

import hashlib
import math
import struct
from enum import IntEnum
from functools import partial
from typing import NamedTuple

from ms_recover.errors import InputError

VERSION = 1
MAGIC = b"MSRW"
MAX_DIMENSIONS = 16
MAX_LENGTH = 1 << 40
CAUSES = ("eof", "reset", "heartbeat", "timeout", "protocol", "closed", "peer_reported", "cut")
"""Why a world broke; the code on the wire is the position here.

`heartbeat` repeats them: the helper process runs that file alone, without importing any of ms_recover.
"""
DTYPES = {
    "bool": 1,
    "int8": 1,
    "int16": 2,
    "int32": 4,
    "int64": 8,
    "uint8": 1,
    "uint16": 2,
    "uint32": 4,
    "uint64": 8,
    "float16": 2,
    "float32": 4,
    "float64": 8,
    "complex64": 8,
    "complex128": 16,
    "bfloat16": 2,
}
"""Element types and their sizes in bytes; the code on the wire is the position here, 255 stands for none."""

_FIXED = struct.Struct("!4sBBBB8sIIQqQQ")
_PREFIX = struct.Struct("!4sBBBB")
_FIELDS = struct.Struct("!8s8sIIQqQQ")
_WHOLE = [struct.Struct(f"{_FIXED.format}{dimensions}Q") for dimensions in range(MAX_DIMENSIONS + 1)]
_SHAPES = [struct.Struct(f"!{dimensions}Q") for dimensions in range(MAX_DIMENSIONS + 1)]
_ELEMENTS = dict(enumerate(DTYPES.items())) | {255: ("", 0)}
_CODES = {name: code for code, (name, _) in _ELEMENTS.items()}
FIXED_SIZE = _FIXED.size


class ProtocolError(InputError):
    """Invalid bytes: no frame or handshake of this protocol."""


class FrameKind(IntEnum):
    """The kind of a frame."""

    MESSAGE = 1
    PART = 2
    """A part of a collective call."""
    ABORT = 3
    """The world is broken: ``call`` is the rank at fault, ``detail`` the code of the cause."""
    LEAVE = 4
    """The sender leaves in good order; no frame follows."""


_MESSAGE, _ABORT = FrameKind.MESSAGE, FrameKind.ABORT  # an enumeration looks its members up slowly before Python 3.12

Fields = tuple[FrameKind, str, tuple[int, ...], bytes, int, int, int, int, int, int]
"""The fields of a `Header`."""


class Header(NamedTuple):
    """The header of a frame."""

    kind: FrameKind
    dtype: str
    """Element type, a key of ``DTYPES``, or empty."""
    shape: tuple[int, ...]
    """Shape of the tensor; of the whole tensor also when the frame has a part of it."""
    world: bytes
    """Eight bytes, see `world_id`."""
    epoch: int
    call: int
    """Number of the collective call on its tag; in an abort the rank at fault."""
    sequence: int
    """Number of the frame on its connection, from 0, per direction."""
    tag: int
    length: int
    """Bytes of the payload."""
    detail: int
    """The collective, its root and its operation; in an abort the cause."""


_PREFIXES = {
    _PREFIX.pack(MAGIC, VERSION, kind, code, dimensions): (kind, *element, sizes, FIXED_SIZE + sizes.size)
    for kind in FrameKind
    for code, element in _ELEMENTS.items()
    for dimensions, sizes in enumerate(_SHAPES)
}
"""Kind, element type and its size, the sizes of dimensions, and the bytes of a header, by its first eight bytes."""
_header = partial(tuple.__new__, Header)  # in half the time, because it takes the fields by position only


def world_id(name: str) -> bytes:
    """Return the eight bytes that identify a world in every frame."""
    return hashlib.blake2b(name.encode(), digest_size=8).digest()


def encode(header: Fields) -> bytes:
    """Encode a header, or a tuple of its fields, which is made sooner for each message."""
    kind, dtype, shape, world, epoch, call, sequence, tag, length, detail = header
    dimensions = len(shape)
    return _WHOLE[dimensions].pack(
        MAGIC, VERSION, kind, _CODES[dtype], dimensions, world, epoch, call, sequence, tag, length, detail, *shape
    )


def decode(data: memoryview, start: int, end: int) -> Header | None:
    """Decode the header at `start`; None when `end` comes before the end of the header.

    Raises `ProtocolError` when it is no header of this version, or a field is out of bounds.
    """
    if end - start < FIXED_SIZE:
        return None
    prefix, world, epoch, call, sequence, tag, length, detail = _FIELDS.unpack_from(data, start)
    known = _PREFIXES.get(prefix)
    if known is None:
        raise _unknown(prefix)
    kind, dtype, width, sizes, size = known
    if end - start < size:
        return None
    shape: tuple[int, ...] = sizes.unpack_from(data, start + FIXED_SIZE)
    whole = math.prod(shape) * width
    if length > MAX_LENGTH or (length != whole and (length > whole or kind is _MESSAGE)):
        raise ProtocolError(f"payload of {length} bytes for {dtype or 'no'} elements in shape {shape}")
    if kind is _ABORT and detail >= len(CAUSES):
        raise ProtocolError(f"unknown cause {detail}")
    return _header((kind, dtype, shape, world, epoch, call, sequence, tag, length, detail))


def _unknown(prefix: bytes) -> ProtocolError:
    """Return the error for a header that begins like none of this version."""
    magic, version, kind, code, dimensions = _PREFIX.unpack(prefix)
    if magic != MAGIC:
        return ProtocolError(f"a frame starts with {magic!r}, expected {MAGIC!r}")
    if version != VERSION:
        return ProtocolError(f"frame of version {version}, expected {VERSION}")
    if dimensions > MAX_DIMENSIONS:
        return ProtocolError(f"tensor of {dimensions} dimensions, the limit is {MAX_DIMENSIONS}")
    if code not in _ELEMENTS:
        return ProtocolError(f"unknown element type {code}")
    return ProtocolError(f"frame of unknown kind {kind}")
