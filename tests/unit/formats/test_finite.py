"""NaN and Inf in tensors, compared with struct."""

import math
import random
import struct

import pytest

from ms_recover.formats.finite import FLOATING, Counts, FiniteCounter

FORMATS = {"Float16": "e", "Float32": "f", "Float64": "d", "Complex64": "f", "Complex128": "d"}


def counted(dtype, data, piece=None):
    counter = FiniteCounter(dtype)
    for start in range(0, len(data), piece or max(len(data), 1)):
        counter.update(memoryview(data)[start : start + (piece or len(data))])
    return counter.counts()


def expected(code, data):
    values = struct.unpack(f"<{len(data) // struct.calcsize(code)}{code}", data)
    return Counts(sum(map(math.isnan, values)), sum(map(math.isinf, values)), all(value == 0 for value in values))


@pytest.mark.parametrize("dtype", sorted(FORMATS))
@pytest.mark.parametrize("piece", [None, 7, 65537])
def test_random_bits_are_counted_as_struct_counts_them(dtype, piece):
    source = random.Random(f"{dtype}{piece}")
    data = source.randbytes(3000 if piece in (7,) else 70_000)
    assert counted(dtype, data, piece) == expected(FORMATS[dtype], data)


@pytest.mark.parametrize("dtype", sorted(FORMATS))
@pytest.mark.parametrize("value", [-0.0, 65504.0, -math.inf, math.nan, 6e-8])
@pytest.mark.parametrize("place", [0, 16383, 16999])
def test_one_odd_value_among_many(dtype, value, place):
    code = FORMATS[dtype]
    data = bytearray(struct.calcsize(code) * 17_000)
    struct.pack_into(f"<{code}", data, place * struct.calcsize(code), value)
    assert counted(dtype, bytes(data)) == expected(code, bytes(data))


def test_bfloat16_is_the_upper_half_of_float32():
    for bits in range(1 << 16):
        (value,) = struct.unpack("<f", b"\0\0" + bits.to_bytes(2, "little"))
        wanted = Counts(int(math.isnan(value)), int(math.isinf(value)), value == 0)
        if math.isfinite(value) and bits % 97:
            continue  # all that are not finite, and some of the others
        assert counted("BFloat16", bits.to_bytes(2, "little")) == wanted, hex(bits)


def test_nothing_is_zero_and_a_rest_is_not_counted():
    assert counted("Float32", b"") == Counts(0, 0, True)
    assert counted("Float32", struct.pack("<f", math.nan) + b"\xff\xff\xff") == Counts(1, 0, False)
    assert set(FORMATS) | {"BFloat16"} == FLOATING
