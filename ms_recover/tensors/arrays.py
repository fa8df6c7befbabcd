"""Tensors as numpy arrays on the host, and back, on one memory where that can be.

Importing it imports no MindSpore. bfloat16, which numpy lacks, stays a tensor.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ms_recover.tensors.memory import is_tensor


def array_of(leaf: Any) -> Any:
    """Return a tensor as numpy array without copying it, or None if numpy lacks its element type."""
    if isinstance(leaf, np.ndarray):
        return leaf
    try:
        return leaf.asnumpy()
    except TypeError:
        if str(leaf.dtype).lower() != "bfloat16":
            raise
        return None


def to_host(leaf: Any) -> Any:
    """Return a tensor as contiguous numpy array, once it is computed; unchanged if numpy lacks its element type.

    An operator that failed raises here: MindSpore computes in the background.
    """
    array = array_of(leaf)
    if array is None:
        leaf.get_bytes()
        return leaf
    return np.asarray(array, order="C")


def to_tensor(leaf: Any) -> Any:
    """Return a numpy array as ``mindspore.Tensor`` on its memory, if that is writable; a tensor unchanged."""
    if is_tensor(leaf):
        return leaf
    import mindspore as ms

    return ms.Tensor.from_numpy(np.require(leaf, requirements=["C", "W"]))
