"""Casts against exact arithmetic: the nearest value of the target, ties to even."""

import struct
from fractions import Fraction
from math import copysign, inf, isinf, isnan, nan

import numpy as np
import pytest

from ms_recover.formats.cast import Caster

NUMPY = {"Float16": "<f2", "Float32": "<f4", "Float64": "<f8"}
SHAPES = {"Float16": (11, -14, 15), "BFloat16": (8, -126, 127), "Float32": (24, -126, 127)}
"""Bits of precision, least and greatest exponent of normal values."""

SPECIAL = [0.0, -0.0, inf, -inf, nan, 1.0, -1.0, 65504.0, 65519.99, 65520.0, -65520.0, 65536.0, 6e-8, 2**-24, 2**-25]
SPECIAL += [1.5 * 2**-25, 2**-149, 2**-133, 2**-134, 1.0000001 * 2**-134, 3.3895313892515355e38, 3.39e38, 3.4e38]
SPECIAL += [1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-40, 1 + 2**-11, 1 + 3 * 2**-11, 1 + 2**-24, 1 + 2**-24 + 2**-50]


def nearest(value, kind):
    """Return the value of a type that is nearest to a number."""
    if isnan(value) or isinf(value) or value == 0:
        return value
    precision, least, most = SHAPES[kind]
    exact = Fraction(abs(value))
    exponent = max(len(bin(exact.numerator)) - len(bin(exact.denominator)) - 1, least)
    while Fraction(2) ** (exponent + 1) <= exact:
        exponent += 1
    step = Fraction(2) ** (exponent - precision + 1)
    rounded = round(exact / step) * step  # round() takes ties to even
    if rounded >= Fraction(2) ** (most + 1):
        return copysign(inf, value)
    return copysign(float(rounded), value)


def values_of(data, kind):
    if kind == "BFloat16":
        return (np.frombuffer(data, "<u2").astype("<u4") << 16).view("<f4").tolist()
    return np.frombuffer(data, NUMPY[kind]).tolist()


def numbers(kind):
    """Return values of a type: the special ones, and random bits."""
    random = np.random.default_rng(11)
    if kind == "BFloat16":
        bits = random.integers(0, 1 << 16, 4000, np.uint16)
        return bits.tobytes()
    special = np.array(SPECIAL).astype(NUMPY[kind])
    bits = np.frombuffer(random.bytes(4000 * special.itemsize), NUMPY[kind])
    usual = random.normal(0, 1, 4000).astype(NUMPY[kind])
    return np.concatenate([special, bits, usual]).tobytes()


@pytest.mark.parametrize("target", ["BFloat16", "Float16", "Float32"])
@pytest.mark.parametrize("source", ["Float16", "BFloat16", "Float32", "Float64"])
@pytest.mark.filterwarnings("ignore:(invalid value|overflow):RuntimeWarning")
def test_every_value_is_the_nearest_of_the_target(source, target):
    data = numbers(source)
    caster = Caster(source, target)
    found = values_of(caster.cast(memoryview(data)), target)
    before = values_of(data, source)
    expected = [nearest(value, target) for value in before]
    assert len(found) == len(expected) > 3999
    for value, one, other in zip(before, found, expected, strict=True):
        assert struct.pack("<d", one) == struct.pack("<d", other) or (isnan(one) and isnan(other)), (value, one, other)
    lost = [value for value, other in zip(before, expected, strict=True) if isinf(other) and not isinf(value)]
    assert caster.lost == (lost[0] if lost else None)


def test_float16_of_the_interpreter_agrees():
    wide = np.random.default_rng(1).normal(0, 100, 2000).astype("<f4")
    data = Caster("Float32", "Float16").cast(memoryview(wide.tobytes()))
    assert bytes(data) == b"".join(struct.pack("<e", value) for value in wide.tolist())


def test_what_is_lost_is_the_first_finite_value():
    caster = Caster("Float32", "Float16")
    caster.cast(memoryview(np.array([1, inf, nan], "<f4").tobytes()))
    assert caster.lost is None
    for values in ([2, -70000], [80000]):
        caster.cast(memoryview(np.array(values, "<f4").tobytes()))
    assert caster.lost == -70000


def test_no_value_at_all():
    assert bytes(Caster("Float32", "BFloat16").cast(memoryview(b""))) == b""
