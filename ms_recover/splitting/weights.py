"""A part's weights: to a slice, and from a slice into the part."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import mindspore

from ms_recover.errors import FormatError
from ms_recover.splitting.nested import to_tensor
from ms_recover.splitting.stages import ModelPart, parameters_of

_MARK = "split.part."
"""With the part's number, the name of a value in every slice: slices of parts without parameters hold something, and of
those whose lists of parameters begin alike none looks like the other cut off."""


def names(part: ModelPart, number: int) -> Collection[str]:
    """Return what the slice of a part holds."""
    return {*parameters_of(part.stages), f"{_MARK}{number}"}


def save(part: ModelPart, number: int, path: str) -> None:
    """Write a part's slice."""
    held = {**parameters_of(part.stages), f"{_MARK}{number}": mindspore.Tensor(number, mindspore.int32)}
    mindspore.save_checkpoint([{"name": name, "data": value} for name, value in held.items()], path)


def load(part: ModelPart, path: str) -> None:
    """Give a part the weights of its slice.

    Raises
    ------
    FormatError
        When the slice is of something else.
    """
    held = read(path)
    _set(part, held, path)


def read(path: str) -> dict[str, Any]:
    """Return the weights of a slice by name."""
    loaded: dict[str, Any] = mindspore.load_checkpoint(path)
    return {name: value for name, value in loaded.items() if not name.startswith(_MARK)}


def take(part: ModelPart, names: Sequence[str], tensors: Sequence[Any]) -> None:
    """Give a part weights that came over a world.

    Raises
    ------
    FormatError
        When they are of something else.
    """
    _set(part, dict(zip(names, map(to_tensor, tensors), strict=True)), "what the splitter sent")


def _set(part: ModelPart, held: Mapping[str, Any], where: str) -> None:
    wanted = parameters_of(part.stages)
    if set(held) != set(wanted):
        raise FormatError(f"{where} holds {len(held)} parameters, and not those {len(wanted)} of this part")
    for name, parameter in wanted.items():
        if tuple(held[name].shape) != tuple(parameter.shape):
            raise FormatError(f"{where} has {name} of shape {held[name].shape}, this part of {parameter.shape}")
        parameter.set_data(held[name])
