"""Recovery of sharded MindSpore checkpoints that one can trust.

Public names load on use; importing the package pulls in nothing.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_HOMES = {
    "SliceCheckpoint": "ms_recover.training",
    "apply": "ms_recover.api",
    "check": "ms_recover.api",
    "complete": "ms_recover.api",
    "explain": "ms_recover.api",
    "inspect": "ms_recover.api",
    "plan": "ms_recover.api",
    "recover_train": "ms_recover.training",
    "scan": "ms_recover.api",
    "seal": "ms_recover.api",
    "verify": "ms_recover.api",
}

__all__ = [
    "SliceCheckpoint",
    "apply",
    "check",
    "complete",
    "explain",
    "inspect",
    "plan",
    "recover_train",
    "scan",
    "seal",
    "verify",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'ms_recover' has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
