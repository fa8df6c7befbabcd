"""Floating-point values in another type: rounded to the nearest, ties to even, as IEEE 754 has it.

NaN stays NaN, infinities and signed zeros stay, subnormals are rounded like other values. ``BFloat16``, which numpy
does not have, is the upper half of a ``Float32``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ms_recover.errors import UsageError
from ms_recover.formats.dtypes import ITEM_SIZES

if TYPE_CHECKING:
    import numpy as np

_NUMPY = {"Float16": "<f2", "BFloat16": "<u2", "Float32": "<f4", "Float64": "<f8"}


def check_castable() -> None:
    """Raise a UsageError unless values can be cast here: that needs numpy."""
    try:
        import numpy  # noqa: F401
    except ImportError:
        raise UsageError("--dtype needs numpy, which is not installed: pip install numpy") from None


class Caster:
    """Casts the contents of one parameter, a window of whole elements at a time.

    Parameters
    ----------
    source, target : str
        MindSpore's names of two types of `ms_recover.model.reshard.FLOATS`, the target not ``Float64``.

    Attributes
    ----------
    lost : float or None
        A finite value that the target cannot hold, so that it became infinite; None while there is none.
    """

    def __init__(self, source: str, target: str) -> None:
        self._source, self._target = source, target
        self.lost: float | None = None

    def cast(self, window: memoryview) -> memoryview:
        """Return the same values in the target's type; the memory is its own."""
        import numpy as np

        values = np.frombuffer(window, _NUMPY[self._source])
        if self._source == "BFloat16":
            values = (values.astype("<u4") << 16).view("<f4")
        with np.errstate(all="ignore"):
            if self._target == "BFloat16":
                cast = _rounded_to_bfloat16(values)
                infinite = (cast & 0x7FFF) == 0x7F80
            else:
                cast = values.astype(_NUMPY[self._target])
                infinite = np.isinf(cast)
            if self.lost is None and infinite.any():
                lost = values[infinite & np.isfinite(values)]
                self.lost = float(lost[0]) if lost.size else None
        return cast.view("u1").data


def _rounded_to_bfloat16(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    import numpy as np

    if values.dtype.itemsize == ITEM_SIZES["Float64"]:
        values = _rounded_to_odd(values)
    bits = np.ascontiguousarray(values, "<f4").view("<u4")
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    nan = (bits & 0x7FFFFFFF) > 0x7F800000
    return np.where(nan, (bits >> 16) | 0x40, rounded).astype("<u2")


def _rounded_to_odd(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return Float64 as Float32 that rounds to BFloat16 as the value would: what is cut off sets the last bit."""
    import numpy as np

    near = values.astype("<f4")
    bits = near.view("<u4").copy()
    finite = np.isfinite(values)
    bits -= (finite & (np.abs(near.astype("<f8")) > np.abs(values))).astype("<u4")
    exact = bits.view("<f4").astype("<f8") == values
    bits |= (finite & ~exact).astype("<u4")
    return bits.view("<f4")
