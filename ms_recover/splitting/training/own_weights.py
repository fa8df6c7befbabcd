"""What an optimizer trains that a function of the user's makes for a part."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import nn

from ms_recover.errors import UsageError
from ms_recover.splitting.stages import Stage, parameters_of


def own_weights(optimizer: Any, trainable: Sequence[Any], function: Any) -> list[Any]:
    """Return the parameters that an optimizer expects gradients of, in its order; `function` has made it.

    Raises UsageError when it made none, or one that does not train these.
    """
    name = f"optimizer={getattr(function, '__qualname__', type(function).__name__)}"
    if optimizer is None:
        raise UsageError(f"{name} returned None, so that nothing would be trained: it has to return the optimizer")
    if not isinstance(optimizer, nn.Cell) or not hasattr(optimizer, "parameters"):
        raise UsageError(f"{name} returned {type(optimizer).__name__}: it has to return one of MindSpore's optimizers")
    weights = list(optimizer.parameters)
    known = {id(parameter) for parameter in trainable}
    if any(id(weight) not in known for weight in weights):
        raise UsageError(f"{name} made an optimizer of other parameters than those that it was given")
    for weight in weights:
        if weight.dtype == ms.bfloat16:
            raise UsageError(f"{weight.name} is bfloat16, whose gradients numpy cannot add: train it as float32")
    return weights


def try_optimizer(function: Callable[[list[Any]], Any], parts: Sequence[Sequence[Stage]]) -> None:
    """Raise a UsageError when a function makes no optimizer of the weights of a part, before any process starts.

    It is tried with small weights of the same names, types and numbers of dimensions. Where it raises with these, the
    worker says so, which has the weights themselves.
    """
    for stages in parts:
        weights = [_small(weight) for weight in parameters_of(stages).values() if weight.requires_grad]
        made = None
        with suppress(Exception):
            made = [function(list(weights))] if weights else None
        if made is not None:
            own_weights(made[0], weights, function)


def _small(weight: Any) -> Any:
    value = ms.Tensor(np.zeros((1,) * len(weight.shape), np.float32)).astype(weight.dtype)
    return ms.Parameter(value, name=weight.name)
