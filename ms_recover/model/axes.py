"""The parallel axes of a job as its operator names them, and the order in which ranks count them."""

from __future__ import annotations

import re
from dataclasses import dataclass

AXES = {
    "tp": "tensor parallel: each rank holds its part of the weights",
    "cp": "context parallel: each rank holds the same",
    "ep": "expert parallel: each rank holds its own experts and the same of everything else",
    "dp": "data parallel: each rank holds the same",
    "pp": "pipeline parallel: each rank holds its own layers",
}
"""The axes, by the names of Megatron."""

DEFAULT_ORDER = ("tp", "cp", "ep", "dp", "pp")
"""The axis that neighbouring ranks differ in comes first. This is the default of ``initialize_model_parallel`` of
Megatron and of MindFormers; MindSpore's stages own consecutive ranks, so that pp comes last there too.
"""

_ALIASES = {
    "mp": "tp",
    "model_parallel": "tp",
    "tensor_parallel": "tp",
    "context_parallel": "cp",
    "expert_parallel": "ep",
    "data_parallel": "dp",
    "pipeline_stage": "pp",
    "pipeline_parallel": "pp",
}
_SIZE = re.compile(r"\s*([A-Za-z_]+)\s*=\s*([0-9]{1,7})\s*\Z", re.ASCII)


@dataclass(frozen=True, slots=True)
class Axes:
    """The sizes of the parallel axes of a job; an axis that is not named has the size 1.

    Parameters
    ----------
    sizes : tuple of (str, int)
        Names as they were given, and sizes.
    """

    sizes: tuple[tuple[str, int], ...]

    @classmethod
    def parse(cls, text: str) -> Axes:
        """Parse ``dp=2,mp=4``; mp is another name of tp, and the names in MindFormers' YAML files are understood too.

        A ValueError names the part that is wrong.
        """
        sizes: list[tuple[str, int]] = []
        for part in text.split(","):
            match = _SIZE.match(part)
            if match is None or int(match[2]) < 1:
                raise ValueError(f"{part!r} is no axis with its size: write for example dp=2,mp=4")
            name = axis_of(match[1])
            if any(axis_of(given) == name for given, _ in sizes):
                raise ValueError(f"axis {name} is given twice")
            sizes.append((match[1], int(match[2])))
        return cls(tuple(sizes))

    def size(self, axis: str) -> int:
        """Return the size of an axis by Megatron's name."""
        return next((size for name, size in self.sizes if axis_of(name) == axis), 1)

    def __str__(self) -> str:
        """Return the text that `parse` reads."""
        return ",".join(f"{name}={size}" for name, size in self.sizes)


def axis_of(name: str) -> str:
    """Return Megatron's name of an axis; a ValueError lists the names when there is no such axis."""
    known = _ALIASES.get(name.lower(), name.lower())
    if known not in AXES:
        raise ValueError(f"axis {name!r} is none of {', '.join(AXES)} (mp is another name of tp)")
    return known


def parse_order(text: str) -> tuple[str, ...]:
    """Parse ``tp,cp,ep,dp,pp`` or ``tp-cp-ep-dp-pp``; a ValueError says what is wrong."""
    order = tuple(axis_of(part.strip()) for part in re.split(r"[,-]", text))
    if len(set(order)) != len(order):
        raise ValueError(f"{text!r} names an axis twice")
    return order
