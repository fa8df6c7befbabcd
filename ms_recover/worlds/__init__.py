"""Communication that confines a fault to those who share it; public names load on use."""

from __future__ import annotations

import importlib
from typing import Any

_HOMES = {
    "BrokenWorldError": "ms_recover.errors",
    "Security": "ms_recover.worlds.security",
    "SyncWorldManager": "ms_recover.worlds.sync",
    "WatchDog": "ms_recover.worlds.watchdog",
    "WorldCommunicator": "ms_recover.worlds.communicator",
    "WorldManager": "ms_recover.worlds.manager",
}

__all__ = [
    "BrokenWorldError",
    "Security",
    "SyncWorldManager",
    "WatchDog",
    "WorldCommunicator",
    "WorldManager",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'ms_recover.worlds' has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
