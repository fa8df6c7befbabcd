"""Pieces of a parameter are put together, whatever their runs, and those that are read whole are proven."""

from itertools import pairwise, product
from math import prod
from random import Random

import pytest
import xxhash

from ms_recover.model.compose import Piece
from ms_recover.model.slices import ByteRange
from ms_recover.planning.claims.regions import cover, runs_of
from ms_recover.stores import gather as room
from ms_recover.stores.gather import Contents, gather


def contents(data, reads):
    def read(offset, into):
        part = data[offset : offset + len(into)]
        into[: len(part)] = part
        reads.append(len(part))
        return len(part)

    return Contents(read, [ByteRange(0, len(data))])


def cut(data, shape, box, item):
    out = b""
    for index in product(*(range(*extent) for extent in box)):
        at = 0
        for size, one in zip(shape, index, strict=True):
            at = at * size + one
        out += data[at * item : at * item + item]
    return out


@pytest.mark.parametrize("seed", range(250))
def test_any_part_of_any_cut(seed, monkeypatch):
    source = Random(seed)
    monkeypatch.setattr(room, "WINDOW", source.choice([16, 64, 100, 1 << 20]))
    monkeypatch.setattr(room, "_BYTES_WORTH_A_READ", source.choice([0, 4, 8192]))
    item = source.choice([1, 2, 4, 8])
    shape = [source.randint(1, 12) for _ in range(source.randint(1, 3))]
    data = source.randbytes(prod(shape) * item)
    edges = [sorted({0, size, *(source.randint(0, size) for _ in range(2))}) for size in shape]
    boxes = [tuple(box) for box in product(*(pairwise(one) for one in edges))]
    held = [cut(data, shape, box, item) for box in boxes]
    target = tuple(tuple(sorted(source.sample(range(size + 1), 2))) for size in shape)
    pieces = [
        Piece(number, runs_of(part, boxes[number], target, item), len(held[number]))
        for number, part in cover(target, boxes)[0]
    ]
    proven = {}
    windows = gather(
        pieces,
        len(cut(data, shape, target, item)),
        lambda piece: contents(held[piece.source], []),
        lambda piece, digest: proven.update({piece.source: digest}),
    )
    assert b"".join(map(bytes, windows)) == cut(data, shape, target, item)
    assert proven == {
        piece.source: f"xxh3_128:{xxhash.xxh3_128_hexdigest(held[piece.source])}" for piece in pieces if piece.reads_all
    }


def test_narrow_columns_are_not_read_one_by_one():
    """Columns of four bytes of 4 MiB take some reads, not a million."""
    rows, columns = 1 << 18, 4
    data, reads = bytes(rows * columns * 4), []
    whole, part = ((0, rows), (0, columns)), ((0, rows), (1, 2))
    runs = runs_of(part, whole, part, 4)
    windows = gather([Piece(0, runs, len(data))], rows * 4, lambda piece: contents(data, reads))
    assert sum(map(len, windows)) == rows * 4
    assert len(reads) < 20


def test_what_joins_in_several_dimensions_is_read_together():
    """Parts of the last dimension of three go at one distance, over the second dimension and the first."""
    shape, data, reads = (64, 64, 8), bytes(64 * 64 * 8), []
    whole = tuple((0, size) for size in shape)
    part = (*whole[:2], (2, 4))
    runs = runs_of(part, whole, part, 1)
    assert sum(map(len, gather([Piece(0, runs, len(data))], 64 * 64 * 2, lambda piece: contents(data, reads)))) == 8192
    assert len(reads) == 1
