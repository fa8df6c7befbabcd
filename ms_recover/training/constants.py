"""Tensors that are no parameters are constants for what MindSpore compiles: a resumed training compiles with the same.

In graph mode a tensor that is read is one with the values that it had when the network was compiled, also where the
network writes to its memory later. So values that are restored are out of sight while a network is compiled.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ms_recover.training.mindspore_inside import without_gradient
from ms_recover.training.snapshot import values_of
from ms_recover.training.state_values import from_state, to_state

Kept = tuple[Any, Any]
"""A tensor, and a copy of the values that it had."""


def keep(tensor: Any) -> Kept:
    """Return a tensor with a copy of its values."""
    return tensor, from_state(to_state(tensor, "a tensor"))


def is_as_before(kept: Kept) -> bool:
    """Whether a tensor has the values of the copy."""
    tensor, before = kept
    return values_of(tensor) == values_of(before)


def compile_with(network: Any, begun: Iterable[Kept]) -> None:
    """Have a network compiled once with other values in some tensors than they have before and behind it."""
    kept, compile_it = list(begun), network.compile
    if not kept:
        return

    def compiled(*inputs: Any, **options: Any) -> Any:
        del network.__dict__["compile"]
        now = [keep(tensor) for tensor, _ in kept]
        _write(kept)
        try:
            return compile_it(*inputs, **options)
        finally:
            _write(now)

    network.__dict__["compile"] = compiled


def _write(values: Iterable[Kept]) -> None:
    with without_gradient():
        for tensor, value in values:
            tensor.copy_(value)
