"""A clip of gradients by the norm of all of them, with the bits of `mindspore.ops.clip_by_global_norm` (in a worker).

Each part adds up the squares of its own gradients. With the sums of all parts, in forward order, each has the norm of
all gradients, and multiplies and divides its own by what one process would. That is so below the limit, too, where
MindSpore multiplies and divides by the limit itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import ops

from ms_recover.tensors.memory import host_bytes


def square_sums(gradients: Iterable[Any]) -> list[float]:
    """Return for each tensor the sum of the squares of its elements.

    MindSpore's operators add in the type of the tensor, in an order of their own that is the same for any number of
    threads; the sums are numbers of float32.
    """
    add = ops.ReduceSum()
    return [float(add(ops.square(each), ()).astype(ms.float32).asnumpy()) for each in gradients]


def clip(gradients: Iterable[Any], limit: float, sums: Sequence[float]) -> None:
    """Clip tensors in place, by the norm that follows from the sums of the squares of all gradients, in order.

    A norm that is no number clips nothing, and an infinite one leaves zeros, as in MindSpore.
    """
    bound = np.array([limit], np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        norm = np.sqrt(np.add.accumulate(np.asarray(sums, np.float32))[-1:])  # one after the other, as AddN adds
    divisor, factor = ms.Tensor(np.where(norm >= bound, norm, bound)), ms.Tensor(bound)
    for each in gradients:
        clipped = (each * factor / divisor).astype(each.dtype)
        np.copyto(host_bytes(each), host_bytes(clipped))
