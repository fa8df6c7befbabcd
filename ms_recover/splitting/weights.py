"""The weights of a part: saved to a slice, and loaded from one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import mindspore

from ms_recover.errors import FormatError
from ms_recover.splitting.stages import ModelPart, parameters_of

_MARK = "split.part."
"""Start of the name of an extra value in every slice; the part's number ends it. It gives parts without parameters a
slice, and keeps the list of a short part from looking like the truncated list of a long one."""


def values(part: ModelPart, number: int) -> dict[str, Any]:
    """Return the values of a part's slice by name."""
    return {**parameters_of(part.stages), f"{_MARK}{number}": mindspore.Tensor(number, mindspore.int32)}


def save(held: Mapping[str, Any], path: str) -> None:
    """Write a slice of these values to this path."""
    mindspore.save_checkpoint([{"name": name, "data": value} for name, value in held.items()], path)


def read(path: str) -> dict[str, Any]:
    """Return the weights of a slice by name."""
    loaded: dict[str, Any] = mindspore.load_checkpoint(path)
    return {name: value for name, value in loaded.items() if not name.startswith(_MARK)}


def load(part: ModelPart, held: Mapping[str, Any], where: str) -> None:
    """Load weights into a part; those that do not fit raise FormatError, which names their place."""
    wanted = parameters_of(part.stages)
    if set(held) != set(wanted):
        raise FormatError(
            f"{where} does not fit this part: {len(held)} parameters, expected {len(wanted)} with other names"
        )
    for name, parameter in wanted.items():
        if tuple(held[name].shape) != tuple(parameter.shape):
            raise FormatError(f"{where} has {name} of shape {held[name].shape}, expected {parameter.shape}")
        parameter.set_data(held[name])
