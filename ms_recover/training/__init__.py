"""The MindSpore side: saving each rank's slice, and resuming from slices.

Names load on use, so that importing this package does not import mindspore.
"""

from __future__ import annotations

import importlib
from typing import Any

_HOMES = {
    "Resumption": "ms_recover.training.recover",
    "SliceCheckpoint": "ms_recover.training.slice_checkpoint",
    "Stall": "ms_recover.training.slice_checkpoint",
    "cut": "ms_recover.training.layouts",
    "recover_train": "ms_recover.training.recover",
    "write_strategy": "ms_recover.training.layouts",
}

__all__ = ["Resumption", "SliceCheckpoint", "Stall", "cut", "recover_train", "write_strategy"]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'ms_recover.training' has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
