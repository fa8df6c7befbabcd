"""Count NaN and Inf in the bytes of a tensor, without numpy.

A block of elements is one large integer with a lane for each element: sums and masks of such integers take a few passes
over memory, whatever the number of lanes. The exponent of an element that is not finite has all bits set; with its
lowest bit added, and the sign masked out, the sum reaches the place of the sign. A mantissa that is not zero does the
same with all ones of a mantissa added. No lane runs over into the next.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

_BLOCK = 64 << 10
"""Bytes of a block; a multiple of every element."""

_EXPONENT_BITS = {
    "Float16": (2, 5),
    "BFloat16": (2, 8),
    "Float32": (4, 8),
    "Float64": (8, 11),
    "Complex64": (4, 8),
    "Complex128": (8, 11),
}
"""Bytes of a real number, and bits of its exponent, as IEEE 754 and bfloat16 have them; little-endian."""

FLOATING = frozenset(_EXPONENT_BITS)
"""The types of which elements may be no finite numbers."""


@dataclass(frozen=True, slots=True)
class Counts:
    """What the elements of a tensor are; of complex ones the real and imaginary parts are counted."""

    nan: int
    inf: int
    zero: bool
    """Every element is zero, of either sign; also of a tensor without elements."""


@dataclass(frozen=True, slots=True)
class _Masks:
    """Bits of all lanes: exponents, their lowest bits, mantissas, signs."""

    exponent: int
    unit: int
    mantissa: int
    sign: int


class FiniteCounter:
    """Counts over the bytes of one tensor, which arrive in order, in pieces of any length.

    Parameters
    ----------
    dtype : str
        MindSpore's name of the type, one of `FLOATING`.
    """

    def __init__(self, dtype: str) -> None:
        self._size, self._bits = _EXPONENT_BITS[dtype]
        self._shift = self._bits  # from the place of the sign to that of the lowest bit of the exponent
        self._rest = b""
        self._nan = self._inf = 0
        self._zero = True

    def update(self, data: memoryview | bytes) -> None:
        """Take the next bytes."""
        view = memoryview(data)
        if self._rest:
            missing = self._size - len(self._rest)
            whole = self._rest + bytes(view[:missing])
            view = view[missing:]
            if len(whole) < self._size:
                self._rest = whole
                return
            self._rest = b""
            self._count(whole)
        end = len(view) - len(view) % self._size
        for start in range(0, end, _BLOCK):
            self._count(view[start : min(start + _BLOCK, end)])
        self._rest = bytes(view[end:])

    def counts(self) -> Counts:
        """Return the counts of the whole elements so far."""
        return Counts(self._nan, self._inf, self._zero)

    def _count(self, block: memoryview | bytes) -> None:
        masks = _masks(self._size, self._bits, len(block) // self._size)
        value = int.from_bytes(block, "little")
        if self._zero and value & ~masks.sign:
            self._zero = False
        odd = ((value & masks.exponent) + masks.unit) & masks.sign
        if not odd:
            return
        with_mantissa = ((value & masks.mantissa) + masks.mantissa) & masks.unit
        nan = ((odd >> self._shift) & with_mantissa).bit_count()
        self._nan += nan
        self._inf += odd.bit_count() - nan


@cache
def _lane_masks(size: int, bits: int) -> tuple[int, int, int, int]:
    sign = 1 << (8 * size - 1)
    unit = sign >> bits
    return sign - unit, unit, unit - 1, sign


_KNOWN: dict[tuple[int, int, int], _Masks] = {}
_MOST_KNOWN = 32


def _masks(size: int, bits: int, lanes: int) -> _Masks:
    """Return the masks of so many lanes; those of whole blocks are made once."""
    found = _KNOWN.get((size, bits, lanes))
    if found is None:
        of_lane = _lane_masks(size, bits)
        found = _Masks(*(int.from_bytes(mask.to_bytes(size, "little") * lanes, "little") for mask in of_lane))
        if len(_KNOWN) < _MOST_KNOWN and lanes * size == _BLOCK:
            _KNOWN[size, bits, lanes] = found
    return found
