"""What disks, memories, interrupted writes and careless hands do to the bytes of a slice.

Every kind is a function from the bytes of a sound slice to those of a damaged one, the same every time. They are made
for slices of `ms_recover.testing.trees` with `STRUCK`, of which one parameter is saved in `STRUCK_PIECES` pieces.
"""

from __future__ import annotations

import gzip
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ms_recover.formats.ckpt import parse_header
from ms_recover.formats.proto import message_class
from ms_recover.formats.strategy import encode_strategy
from ms_recover.formats.wire import encode_varint
from ms_recover.model.strategy import Layout, Strategy
from ms_recover.testing.trees import crc_trailer, record

STRUCK = {"embedding": 48, "dense.weight": 96, "bn.moving_mean": 8, "moment1.dense.weight": 96, "global_step": 1}
"""Parameters that every kind of damage finds a place in; one of them may differ between peers by default."""

STRUCK_PIECES = {"dense.weight": 3}


def strategy_bytes(device_matrix: Sequence[int], parameters: Iterable[str]) -> bytes:
    """Return a strategy file of one stage in which no parameter is split."""
    layouts = tuple(Layout(name, tuple(device_matrix), ((),)) for name in parameters)
    return encode_strategy(Strategy((0,), 1, layouts, 1))


def struck_layout_bytes(data_parallel: int, model_parallel: int) -> bytes:
    """Return the strategy file of a tree with `STRUCK`: every parameter is cut over the model-parallel ranks."""
    strategy = message_class("ParallelStrategyMap")()
    strategy.ParseFromString(strategy_bytes([data_parallel, model_parallel], STRUCK))
    for item in strategy.parallel_layout_item:
        item.parallel_layouts.tensor_map[0].dim[:] = [0]
    data: bytes = strategy.SerializeToString()
    return data


_TYPE = b"\x12\x07Float32"


@dataclass(frozen=True, slots=True)
class Piece:
    """One record of a slice.

    Parameters
    ----------
    name : str
        Of its parameter.
    elements : int
        Of the whole parameter.
    at : int
        Offset of the record.
    start, end : int
        Offsets of its contents; the record ends with them.
    """

    name: str
    elements: int
    at: int
    start: int
    end: int


def pieces_of(data: bytes) -> tuple[Piece, ...]:
    """Return the records of a sound slice of `ms_recover.testing.trees` without a CRC trailer, in file order."""
    header = parse_header(lambda offset, length: data[offset : offset + length], len(data))
    found: list[Piece] = []
    for parameter, ranges in zip(header.parameters, header.contents, strict=True):
        for piece in ranges:
            at = found[-1].end if found else 0
            found.append(Piece(parameter.name, parameter.nbytes // 4, at, piece.start, piece.end))
    return tuple(found)


def piece_of(data: bytes, name: str, number: int = 0) -> Piece:
    """Return one record of the parameter `name`."""
    return [piece for piece in pieces_of(data) if piece.name == name][number]


def flip(data: bytes, offset: int, mask: int = 0x10) -> bytes:
    """Invert bits of one byte."""
    return data[:offset] + bytes([data[offset] ^ mask]) + data[offset + 1 :]


def patch(data: bytes, offset: int, new: bytes) -> bytes:
    """Put `new` over what is at `offset`; the length stays."""
    return data[:offset] + new + data[offset + len(new) :]


def exchange(data: bytes, one: int, other: int, length: int) -> bytes:
    """Exchange two ranges that do not overlap."""
    first, second = data[one : one + length], data[other : other + length]
    return patch(patch(data, one, second), other, first)


def remade(data: bytes, name: str, *, dtype: str = "Float32", shape: tuple[int, ...] | None = None) -> bytes:
    """Give a parameter of one piece another type or shape and leave its contents."""
    piece = piece_of(data, name)
    again = record(name, data[piece.start : piece.end], shape or (piece.elements,), dtype)
    return data[: piece.at] + again + data[piece.end :]


def without(data: bytes, *pieces: Piece) -> bytes:
    """Leave records out."""
    return b"".join(data[piece.at : piece.end] for piece in pieces_of(data) if piece not in pieces)


def noise(length: int, seed: int = 7) -> bytes:
    """Return arbitrary bytes, the same for the same arguments."""
    return random.Random(seed).randbytes(length)


def _in_head(data: bytes, name: str, of: bytes, mask: int, shift: int = 0) -> bytes:
    piece = piece_of(data, name)
    return flip(data, data.index(of, piece.at, piece.start) + shift, mask)


def _swap_parameters(data: bytes) -> bytes:
    first, second = piece_of(data, "embedding"), piece_of(data, "bn.moving_mean")
    middle = data[first.end : second.at]
    return data[second.at : second.end] + middle + data[first.at : first.end] + data[second.end :]


def _shifted(data: bytes) -> bytes:
    piece = piece_of(data, "moment1.dense.weight")
    return data[: piece.start] + b"\0" + data[piece.start : piece.end - 1] + data[piece.end :]


CONTENT_DAMAGE: Mapping[str, Callable[[bytes], bytes]] = {
    "bit flip in the first parameter": lambda data: flip(data, piece_of(data, "embedding").start + 7),
    "bit flip in the last byte": lambda data: flip(data, len(data) - 1),
    "bit flip in a piece": lambda data: flip(data, piece_of(data, "dense.weight", 1).start + 3, 1),
    "zero tail": lambda data: data[:-4] + bytes(4),
    "zero tail of a parameter": lambda data: patch(data, piece_of(data, "moment1.dense.weight").end - 200, bytes(200)),
    "zero hole in the middle": lambda data: patch(data, piece_of(data, "moment1.dense.weight").start + 64, bytes(128)),
    "all contents of a parameter zero": lambda data: patch(data, piece_of(data, "embedding").start, bytes(192)),
    "all contents of a parameter ff": lambda data: patch(data, piece_of(data, "embedding").start, b"\xff" * 192),
    "two blocks exchanged": lambda data: exchange(
        data, piece_of(data, "embedding").start, piece_of(data, "moment1.dense.weight").start, 128
    ),
    "contents of two parameters exchanged": lambda data: exchange(
        data, piece_of(data, "dense.weight").start, piece_of(data, "moment1.dense.weight").start, 128
    ),
    "contents of two pieces exchanged": lambda data: exchange(
        data, piece_of(data, "dense.weight", 0).start, piece_of(data, "dense.weight", 1).start, 128
    ),
    "contents moved by one byte": _shifted,
    "noise of a sector's size": lambda data: patch(data, piece_of(data, "moment1.dense.weight").start, noise(256)),
}
"""Damage to contents alone: every parameter is still there, in its type and shape."""

TOLERATED_DAMAGE: Mapping[str, Callable[[bytes], bytes]] = {
    "bit flip in a batch statistic": lambda data: flip(data, piece_of(data, "bn.moving_mean").start),
}
"""Damage to contents in which peers may differ rightfully."""

STRUCTURE_DAMAGE: Mapping[str, Callable[[bytes], bytes]] = {
    "bit flip in the first byte": lambda data: flip(data, 0, 1),
    "bit flip in the first byte of a later record": lambda data: flip(data, piece_of(data, "global_step").at, 1),
    "bit flip in a record's length": lambda data: flip(data, piece_of(data, "embedding").at + 1, 4),
    "bit flip in a content's length": lambda data: flip(data, piece_of(data, "moment1.dense.weight").start - 1, 1),
    "bit flip in the last content's length": lambda data: flip(data, piece_of(data, "global_step").start - 1, 1),
    "bit flip in a name's length": lambda data: _in_head(data, "embedding", b"\x0a\x09", 2, 1),
    "bit flip in a name": lambda data: _in_head(data, "moment1.dense.weight", b"moment1", 0x20),
    "bit flip in a piece's name": lambda data: flip(data, data.index(b"dense", piece_of(data, "dense.weight", 1).at)),
    "name not UTF-8": lambda data: _in_head(data, "embedding", b"embedding", 0x80),
    "bit flip in a dim": lambda data: _in_head(data, "embedding", _TYPE, 1, -1),
    "bit flip in a piece's dim": lambda data: flip(
        data, data.index(_TYPE, piece_of(data, "dense.weight", 2).at) - 1, 1
    ),
    "bit flip in a type": lambda data: _in_head(data, "embedding", _TYPE, 1, 8),
    "unknown type": lambda data: data.replace(b"Float32", b"Float99", 1),
    "another type of the same size": lambda data: remade(data, "embedding", dtype="Int32"),
    "another shape of the same size": lambda data: remade(data, "embedding", shape=(4, 12)),
    "absurd length": lambda data: b"\x0a" + encode_varint(2**63) + data[2:],
    "content shorter than its dims": lambda data: remade(data, "embedding", shape=(60,)),
    "content longer than its dims": lambda data: remade(data, "embedding", shape=(40,)),
    "a record twice": lambda data: data + data[piece_of(data, "global_step").at :],
    "a record again further on": lambda data: data + data[: piece_of(data, "embedding").end],
    "a record missing": lambda data: without(data, piece_of(data, "bn.moving_mean")),
    "the first record missing": lambda data: without(data, piece_of(data, "embedding")),
    "two records exchanged": _swap_parameters,
    "a piece missing": lambda data: without(data, piece_of(data, "dense.weight", 1)),
    "a piece twice": lambda data: (
        data[: piece_of(data, "dense.weight", 1).end] + data[piece_of(data, "dense.weight", 1).at :]
    ),
    "a foreign record behind": lambda data: data + record("stranger", noise(16), (4,)),
    "cut in the first record's head": lambda data: data[:3],
    "cut in the first name": lambda data: data[: data.index(b"embedding") + 4],
    "cut in a later record's head": lambda data: data[: piece_of(data, "global_step").at + 5],
    "cut inside contents": lambda data: data[: piece_of(data, "moment1.dense.weight").start + 100],
    "cut before the last byte": lambda data: data[:-1],
    "cut between two parameters": lambda data: data[: piece_of(data, "bn.moving_mean").end],
    "cut before the last parameter": lambda data: data[: piece_of(data, "global_step").at],
    "cut between two pieces": lambda data: data[: piece_of(data, "dense.weight", 1).end],
    "cut at half and filled with zeros": lambda data: data[: len(data) // 2] + bytes(len(data) - len(data) // 2),
    "cut between two parameters and filled with zeros": lambda data: (
        data[: piece_of(data, "bn.moving_mean").end] + bytes(len(data) - piece_of(data, "bn.moving_mean").end)
    ),
    "one byte behind": lambda data: data + b"\0",
    "junk behind": lambda data: data + noise(100),
    "zeros behind": lambda data: data + bytes(2000),
    "written twice": lambda data: data + data,
    "empty": lambda data: b"",
    "all zeros": lambda data: bytes(len(data)),
    "garbage": lambda data: noise(len(data)),
    "compressed": lambda data: gzip.compress(data, mtime=0),
    "an error page": lambda data: b"<html><head><title>503 Service Unavailable</title></head></html>\n" * 20,
    "JSON": lambda data: b'{"error": "no such object"}\n',
    "line ends translated": lambda data: data.replace(b"\n", b"\r\n"),
}
"""Damage that changes what a slice lists, or that it lists anything."""

CRC_DAMAGE: Mapping[str, Callable[[bytes], bytes]] = {
    "bit flip under a CRC": lambda data: flip(data, piece_of(data, "dense.weight", 2).start + 5) + crc_trailer(data),
    "zero hole under a CRC": lambda data: patch(data, piece_of(data, "embedding").start, bytes(64)) + crc_trailer(data),
    "CRC of other bytes": lambda data: data + crc_trailer(data + b"x"),
    "CRC beyond 32 bits": lambda data: data + b"crc_num" + b"\xff" * 10,
    "cut in the CRC trailer": lambda data: (data + crc_trailer(data))[:-4],
    "CRC trailer twice": lambda data: data + crc_trailer(data) * 2,
    "nothing but a CRC trailer": lambda data: crc_trailer(b""),
}
"""Damage to a slice with a CRC trailer, or in it."""
