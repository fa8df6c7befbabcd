"""Slices of a training that has diverged: every value is NaN, so that all ranks hold the same bytes.

The digests of contents show it: that of a tensor of nothing but one NaN can be computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from xxhash import xxh3_128

from ms_recover.model.manifest import DIGEST, Digests
from ms_recover.model.slices import Parameter

_PATTERNS = {
    "Float16": (2, ("7e00", "fe00", "7fff", "ffff")),
    "BFloat16": (2, ("7fc0", "ffc0", "7fff", "ffff")),
    "Float32": (4, ("7fc00000", "ffc00000", "7fffffff", "ffffffff")),
    "Float64": (8, ("7ff8000000000000", "fff8000000000000", "7fffffffffffffff", "ffffffffffffffff")),
}
"""Bytes of an element, and the NaN that operations give: quiet ones of both signs, without payload or with all."""
_BLOCK = 1 << 16


def is_nan_everywhere(parameters: Sequence[Parameter], digests: Digests) -> bool:
    """Whether every floating-point parameter of more than one element is a NaN all over; some must be there."""
    first: dict[tuple[str, int], str] = {}
    for parameter, digest in zip(parameters, digests.parameters, strict=False):
        if parameter.dtype not in _PATTERNS or parameter.is_counter:
            continue
        if first.setdefault((parameter.dtype, parameter.nbytes), digest) != digest:
            return False  # of one size, and not the same: there is no need to compute anything
    return bool(first) and all(digest in _digests_of_nan(*size) for size, digest in first.items())


@lru_cache(maxsize=256)
def _digests_of_nan(dtype: str, nbytes: int) -> frozenset[str]:
    size, patterns = _PATTERNS[dtype]
    found = set()
    for pattern in patterns:
        block = int(pattern, 16).to_bytes(size, "little") * (_BLOCK // size)
        digest = xxh3_128()
        for _ in range(nbytes // _BLOCK):
            digest.update(block)
        digest.update(block[: nbytes % _BLOCK])
        found.add(f"{DIGEST}:{digest.hexdigest()}")
    return frozenset(found)
