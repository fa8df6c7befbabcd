"""What an optimizer trains that a function of the user's makes for a part, found by trying it with small weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import nn, ops

from ms_recover.errors import UsageError
from ms_recover.model.manifest import Manifest
from ms_recover.model.slices import Parameter as SliceParameter
from ms_recover.splitting.stages import MARK, Stage, parameters_of
from ms_recover.splitting.training.part_state import name_in_slice, values_of

Function = Callable[[list[Any]], Any]
_FIRST, _SECOND = 1.0, -1.0
"""The gradients of two steps: what divides by its own size or takes signs alone shows in the second."""
_HUGE = (float("inf"), 1e10)
"""Gradients of other weights beside which a common norm leaves nothing of these; some clips leave infinite ones out."""
_MOST_ERRORS = 100
"""Most errors of operators that one trial can leave behind."""


def own_weights(optimizer: Any, trainable: Sequence[Any], function: Any) -> list[Any]:
    """Return the parameters that an optimizer expects gradients of, in its order; `function` has made it.

    Raises UsageError when it made none, or one that does not train these.
    """
    name = name_of(function)
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


def name_of(function: Any) -> str:
    """Return the argument that a function of the user's is, in words."""
    return f"optimizer={getattr(function, '__qualname__', type(function).__name__)}"


def try_optimizer(function: Function, parts: Sequence[Sequence[Stage]], saved: Sequence[Manifest | None] = ()) -> None:
    """Raise a UsageError when a function makes no optimizer of the weights of a part, before any process starts.

    Nor may it make another one than that whose state was `saved`, or let the update of a weight depend on the gradient
    of another, where these may be in several parts. It is tried with small weights of the same names, types and numbers
    of dimensions. Where it raises with these, the worker says so, which has the weights themselves. `parts` are the
    stages of each part, none where workers make them.
    """
    known = [[each for each in parameters_of(stages).values() if each.requires_grad] for stages in parts]
    for weights, manifest in zip(known, saved or [None] * len(known), strict=True):
        made, trial = None, _small(weights if any(parts) or manifest is None else _weights_in(manifest))
        with suppress(Exception):
            made = [function(list(trial))] if trial else None
        if made is None:
            continue
        own_weights(made[0], trial, function)
        if manifest is not None:
            _check_state(function, values_of(made[0], trial), manifest, whole=any(parts))
    if len(parts) > 1:
        several = [weights for weights in known if len(weights) > 1]
        every = [weight for weights in known for weight in weights] or _dense()
        _check_apart(function, min(several, key=len) if several else every[:2])


def _check_state(function: Function, values: Mapping[str, Any], manifest: Manifest, *, whole: bool) -> None:
    """Refuse an optimizer whose state is not that in a slice; unless `whole` it may have more, of weights not trained.

    The axes of weights have a length of 1 here.
    """
    weights, saved = _halves(manifest)
    if not saved:
        return
    made = {name_in_slice(name, [each.name for each in weights]): value for name, value in values.items()}
    wrong = [each.name for each in saved if each.name not in made or not _fits(made[each.name], each)]
    wrong += sorted(set(made) - {each.name for each in saved}) if whole else []
    if wrong:
        raise UsageError(
            f"the saved slices hold the state of another optimizer than {name_of(function)} makes: {wrong[0]} is in "
            "one of them alone, or has another type or shape; give the optimizer of the training that goes on, or "
            "another directory"
        )


def _fits(value: Any, saved: SliceParameter) -> bool:
    here, there = tuple(value.shape), tuple(saved.shape)
    return str(value.dtype) == saved.dtype and (here == there or (len(here) == len(there) and set(here) == {1}))


def _halves(manifest: Manifest) -> tuple[Sequence[SliceParameter], Sequence[SliceParameter]]:
    """Return the weights in a slice, and the state of the optimizer behind the mark."""
    listed = manifest.parameters
    mark = next(place for place, each in enumerate(listed) if each.name.startswith(MARK))
    return listed[:mark], listed[mark + 1 :]


def _weights_in(manifest: Manifest) -> list[Any]:
    """Return stand-ins of the weights in a slice, those that are not trained included."""
    floats = [each for each in _halves(manifest)[0] if each.dtype in ("Float16", "Float32", "Float64")]
    return [_zeros(each.name, (1,) * len(each.shape), getattr(ms, each.dtype.lower())) for each in floats]


def _check_apart(function: Function, weights: Sequence[Any]) -> None:
    """Refuse an optimizer that lets the update of a weight depend on the gradient of another."""
    count = len(weights)
    usual = _stepped(function, weights, [_SECOND] * count)
    if usual is None:
        return
    for turn, huge in enumerate(_HUGE):
        found = _stepped(function, weights, [huge if place % 2 == turn else _SECOND for place in range(count)])
        others = range(1 - turn, count, 2)
        if found is None or all(found[place] == usual[place] for place in others):
            continue
        if _stepped(function, weights, [_SECOND] * count) != usual:
            return  # it draws random numbers, or counts its calls: nothing is shown
        raise UsageError(
            f"{name_of(function)} lets the update of a weight depend on the gradient of another one, as a clip by the "
            'common norm does, and under split="layers" each part has gradients of its own weights alone: give the '
            'splitter clip_norm= and leave the clip out of the function, or use split="batch"'
        )


def _stepped(function: Function, weights: Sequence[Any], second: Sequence[float]) -> list[bytes] | None:
    """Return the bytes of small weights behind two steps with these gradients in the second; None where that raises."""
    trial = _small(weights)
    with suppress(Exception), _pynative():
        optimizer = function(list(trial))
        own = own_weights(optimizer, trial, function)
        values = {id(weight): value for weight, value in zip(trial, second, strict=True)}
        for gradients in ([_FIRST] * len(own), [values[id(weight)] for weight in own]):
            optimizer(tuple(_full(weight, value) for weight, value in zip(own, gradients, strict=True)))
        return [weight.asnumpy().tobytes() for weight in trial]
    return None


@contextmanager
def _pynative() -> Iterator[None]:
    """Have the mode in which workers step, and leave no error of an operator behind: the next one would raise it."""
    mode = ms.get_context("mode")
    ms.set_context(mode=ms.PYNATIVE_MODE)
    try:
        yield
    except BaseException:
        for _ in range(_MOST_ERRORS):
            with suppress(Exception):
                ops.square(ms.Tensor([0.0])).asnumpy()
                break
        raise
    finally:
        ms.set_context(mode=mode)


def _small(weights: Sequence[Any]) -> list[Any]:
    return [_zeros(weight.name, (1,) * len(weight.shape), weight.dtype) for weight in weights]


def _dense() -> list[Any]:
    """Return the weights of a layer, in place of those that workers make."""
    return [_zeros("0.weight", (1, 1), ms.float32), _zeros("0.bias", (1,), ms.float32)]


def _zeros(name: str, shape: tuple[int, ...], dtype: Any) -> Any:
    return ms.Parameter(ms.Tensor(np.zeros(shape, np.float32)).astype(dtype), name=name)


def _full(weight: Any, value: float) -> Any:
    return ms.Tensor(np.full(tuple(weight.shape), value, np.float32)).astype(weight.dtype)
