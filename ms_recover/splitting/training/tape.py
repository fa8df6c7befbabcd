"""Gradients of a part, forward and backward apart, so that other chunks come between (in a worker).

This module replaces `mindspore.value_and_grad`, which goes forward and back within one call: a part has to let other
chunks pass until the gradients of its outputs come back from its neighbour. MindSpore records operators of PyNative
mode, and graphs of ``ms.jit``, in the tensors that they return. So the activations of several chunks are kept at once,
and the backward pass of each begins from its output, by ``ms.vjp``. In graph mode forward and backward are compiled
with ``ms.jit``; both compute what a compiled `mindspore.value_and_grad` computes. Recording is switched on by a private
function of MindSpore; checked with 2.10.0. A version that records nothing is refused in the first step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import mindspore as ms
from mindspore import nn, ops

from ms_recover.errors import UsageError
from ms_recover.splitting import nested
from ms_recover.tensors.arrays import to_host, to_tensor

try:
    from mindspore.graph.api import _pynative_executor
except ImportError:  # its place in older versions
    from mindspore.common.api import _pynative_executor

_FLOATS = frozenset({"float16", "float32", "float64", "bfloat16"})


class Recorded:
    """A chunk that has gone forward, and its way back.

    Gradients are wanted of the weights, and of the first `wanted` leaves, where these are of real type.
    With ``recompute=True`` only the inputs are kept, and `backward` goes forward again.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        weights: Sequence[Any],
        skeleton: Any,
        leaves: Sequence[Any],
        *,
        wanted: int,
        recompute: bool = False,
    ) -> None:
        self._function = function
        self._weights = list(weights)
        self._skeleton = skeleton
        self._leaves = list(leaves)
        self._wanted = wanted
        self._run()
        self.skeleton, self.outputs = nested.flatten(self._value)
        if recompute:
            self.outputs = [to_host(leaf) for leaf in self.outputs]
            self._forget()
        self._recompute = recompute

    def _run(self) -> None:
        """Go forward; inputs whose gradient is wanted become parameters, which are copies."""
        self._given: list[Any] = []
        tensors = [to_tensor(leaf) for leaf in self._leaves]
        for index, tensor in enumerate(tensors[: self._wanted]):
            if is_float(tensor):
                self._given.append(ms.Parameter(tensor, name=f"given.{index}"))
                tensors[index] = self._given[-1]
        _pynative_executor.set_grad_flag(True)
        try:
            # not the parameters themselves: a graph is compiled again for each of those
            tensors = [ops.reshape(each, each.shape) if isinstance(each, ms.Parameter) else each for each in tensors]
            self._value = self._function(*nested.unflatten(self._skeleton, tensors))
        finally:
            _pynative_executor.set_grad_flag(False)
        floats = [leaf for leaf in nested.flatten(self._value)[1] if is_float(leaf)]
        if (self._given or self._weights) and all(getattr(leaf, "_grad_node", None) is None for leaf in floats):
            raise UsageError(
                f"no gradient goes through this part: it stops them, or MindSpore {ms.__version__} does not record "
                "operators outside its own gradient functions (2.10 does)"
            )

    def _forget(self) -> None:
        self._value, self._given = None, []

    def backward(self, sens: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """Return the gradients of the inputs and of the weights, from those of the output tensors of real type."""
        if self._recompute:
            self._run()
        outputs = tuple(leaf for leaf in nested.flatten(self._value)[1] if is_float(leaf))
        if len(outputs) != len(sens):
            raise UsageError(f"{len(sens)} gradients came back for {len(outputs)} outputs")
        wanted = ms.ParameterTuple([*self._given, *self._weights])
        given = [to_tensor(each) for each in sens]
        result = outputs[0] if len(outputs) == 1 else outputs
        _, pull = ms.vjp(lambda *_: result, *given, weights=wanted)
        found = pull(*given)[1]
        inputs = len(self._given)
        self._forget()
        return list(found[:inputs]), list(found[inputs:])


class Jitted(nn.Cell):  # type: ignore[misc]
    """A function compiled once, in training mode."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(auto_prefix=False)
        self.function = function

    @ms.jit  # type: ignore[untyped-decorator]
    def construct(self, *args: Any) -> Any:
        """Return the function's value."""
        return self.function(*args)


def is_float(leaf: Any) -> bool:
    """Whether a tensor or array has gradients."""
    return str(leaf.dtype).lower() in _FLOATS
