"""Gradients end at a splitter: those that would have to pass through its forward raise."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from ms_recover.errors import UsageError
from ms_recover.splitting.nested import flatten, unflatten

F = TypeVar("F", bound=Callable[..., Any])
_ADVICE = (
    "no gradient passes through forward, which computes in other processes: train with train_step, or wrap the output "
    "in ops.stop_gradient if it is a constant of this loss"
)


def outside_graphs(method: F) -> F:
    """Have MindSpore's compiler refuse a method by its name, which it would otherwise compile into a graph."""
    setattr(method, "__jit_forbidden__", True)  # noqa: B010 (no attribute of functions for mypy)
    return method


def without_gradients(output: Any, given: Iterable[Any], weights: Iterable[Any]) -> Any:
    """Return an output of a forward whose gradient raises UsageError, by what was `given` and by the `weights`.

    A gradient that does not need it, such as that of a head behind the output, is computed.
    """
    from mindspore.common.api import _pynative_executor

    if not _pynative_executor.requires_grad():
        return output
    from mindspore.common import _Function

    class Barrier(_Function):  # type: ignore[misc]
        """A function that has no derivative."""

        @staticmethod
        def forward(context: Any, leaves: tuple[Any, ...], *_: Any) -> Any:
            return leaves

        @staticmethod
        def backward(context: Any, *_: Any) -> Any:
            raise UsageError(_ADVICE)

    skeleton, leaves = flatten(output)
    real = [index for index, leaf in enumerate(leaves) if leaf.dtype.is_floating_point or leaf.dtype.is_complex]
    if not real:
        return output
    stopped = Barrier.apply(tuple(leaves[index] for index in real), *given, *weights)
    for index, leaf in zip(real, stopped, strict=True):
        leaves[index] = leaf
    return unflatten(skeleton, leaves)
