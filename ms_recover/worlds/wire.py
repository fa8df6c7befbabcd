"""Frames on the wire (pure): headers, bounded and checked.

A frame is a header and, for messages and parts of collectives, a payload of ``length`` bytes. The header is 56 bytes
and eight more for each dimension::

    magic 4  version 1  kind 1  dtype 1  dimensions 1  world 8  epoch 4  call 4  sequence 8  tag 8  length 8  detail 8

All numbers are big-endian. ``docs/worlds-protocol.md`` tells what the fields are for.
"""

from __future__ import annotations

import hashlib
import math
import struct
from enum import IntEnum
from typing import NamedTuple

from ms_recover.errors import InputError

VERSION = 1
MAGIC = b"MSRW"
MAX_DIMENSIONS = 16
MAX_LENGTH = 1 << 40
CAUSES = ("eof", "reset", "heartbeat", "timeout", "protocol", "closed", "peer_reported")
"""Why a world broke; a code on the wire is the position in this list."""
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
"""Names of element types and their sizes in bytes; a code on the wire is the position in this table, 255 is none."""

_FIXED = struct.Struct("!4sBBBB8sIIQqQQ")
_NAMES = tuple(DTYPES)
_CODES = {name: code for code, name in enumerate(_NAMES)} | {"": 255}
FIXED_SIZE = _FIXED.size
LARGEST_HEADER = FIXED_SIZE + 8 * MAX_DIMENSIONS


class WireError(InputError):
    """Bytes that are no frame or handshake of this protocol."""


class Kind(IntEnum):
    """What a frame is."""

    MESSAGE = 1
    PART = 2
    """A part of a collective call."""
    ABORT = 3
    """The world is broken: ``call`` is the rank at fault, ``detail`` the code of the cause."""
    LEAVE = 4
    """The sender leaves in good order; nothing follows."""


class Header(NamedTuple):
    """The header of a frame.

    Parameters
    ----------
    kind : Kind
    dtype : str
        Element type, a key of ``DTYPES``, or empty.
    shape : tuple of int
        Shape of the tensor; of the whole one also when the frame is a part of it.
    world : bytes
        Eight bytes, see `world_id`.
    epoch : int
    call : int
        Number of the collective call on its tag.
    sequence : int
        Number of the frame on its connection, from 0, per direction.
    tag : int
    length : int
        Bytes of payload that follow.
    detail : int
        Which collective with which root and operation.
    """

    kind: Kind
    dtype: str
    shape: tuple[int, ...]
    world: bytes
    epoch: int
    call: int
    sequence: int
    tag: int
    length: int
    detail: int


def world_id(name: str) -> bytes:
    """Return the eight bytes that stand for a world's name in every frame."""
    return hashlib.blake2b(name.encode(), digest_size=8).digest()


def encode(header: Header) -> bytes:
    """Turn a header into bytes."""
    kind, dtype, shape, world, epoch, call, sequence, tag, length, detail = header
    fixed = _FIXED.pack(
        MAGIC, VERSION, kind, _CODES[dtype], len(shape), world, epoch, call, sequence, tag, length, detail
    )
    return fixed + struct.pack(f"!{len(shape)}Q", *shape) if shape else fixed


def header_size(data: memoryview) -> int:
    """Return how many bytes the header has that starts with at least ``FIXED_SIZE`` bytes of `data`.

    Raises
    ------
    WireError
        When it is no header of this version or has too many dimensions.
    """
    if data[:4] != MAGIC:
        raise WireError(f"a frame starts with {bytes(data[:4])!r} instead of {MAGIC!r}")
    if data[4] != VERSION:
        raise WireError(f"frame of version {data[4]}, this side speaks {VERSION}")
    if data[7] > MAX_DIMENSIONS:
        raise WireError(f"tensor of {data[7]} dimensions, at most {MAX_DIMENSIONS} are allowed")
    return FIXED_SIZE + 8 * data[7]


def decode(data: memoryview) -> Header:
    """Read a whole header, of the size that `header_size` said.

    Raises
    ------
    WireError
        When a field is out of its bounds or length and shape disagree.
    """
    _, _, code, dtype_code, dimensions, world, epoch, call, sequence, tag, length, detail = _FIXED.unpack_from(data)
    if not 1 <= code <= 4:
        raise WireError(f"frame of unknown kind {code}")
    kind = Kind(code)
    if dtype_code == 255:
        dtype, size = "", 0
    elif dtype_code < len(_NAMES):
        dtype = _NAMES[dtype_code]
        size = DTYPES[dtype]
    else:
        raise WireError(f"unknown element type {dtype_code}")
    shape: tuple[int, ...] = struct.unpack_from(f"!{dimensions}Q", data, FIXED_SIZE) if dimensions else ()
    whole = math.prod(shape) * size
    if length > MAX_LENGTH or length > whole or (kind is Kind.MESSAGE and length != whole):
        raise WireError(f"payload of {length} bytes for {dtype or 'no'} elements in shape {shape}")
    if kind is Kind.ABORT and detail >= len(CAUSES):
        raise WireError(f"unknown cause {detail}")
    return Header(kind, dtype, shape, world, epoch, call, sequence, tag, length, detail)
