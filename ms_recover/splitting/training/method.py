"""How the parts of a model are trained, on its way to the workers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ms_recover.model.manifest import Manifest
from ms_recover.splitting import pickling
from ms_recover.splitting.options import Options
from ms_recover.splitting.stages import Stage
from ms_recover.splitting.training.options import check_trainable
from ms_recover.splitting.training.own_weights import try_optimizer


@dataclass(frozen=True)
class Method:
    """What every part needs to be trained; pickled for the workers."""

    loss_fn: Any
    optimizer: Any
    recompute: bool
    clip_norm: float | None = None


def pickled_method(options: Options, parts: Sequence[Sequence[Stage]], saved: Sequence[Manifest]) -> bytes:
    """Return the method of a training for its workers, empty without one.

    `parts` are the stages of each part, none where workers make them, `saved` are the slices that it goes on from.
    Raises UsageError when these parts cannot be trained like this.
    """
    if options.optimizer is None:
        return b""
    check_trainable(parts, options)
    try_optimizer(options.optimizer, parts, saved)
    return pickling.dump_method(Method(options.loss_fn, options.optimizer, options.recompute, options.clip_norm))
