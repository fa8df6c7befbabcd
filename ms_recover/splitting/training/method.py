"""How the parts of a model are trained, on its way to the workers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Method:
    """What every part needs to be trained; pickled for the workers."""

    loss_fn: Any
    optimizer: Any
    recompute: bool
    clip_norm: float | None = None
