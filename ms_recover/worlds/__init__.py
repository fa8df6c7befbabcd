"""Communication that confines a fault to the processes that share a world; public names load on use."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ms_recover.errors import BrokenWorldError
    from ms_recover.worlds.communicator import WorldCommunicator
    from ms_recover.worlds.manager import WorldManager
    from ms_recover.worlds.security import Security
    from ms_recover.worlds.sync import SyncWorldManager
    from ms_recover.worlds.watchdog import WatchDog

_MODULES = {
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
    if name not in _MODULES:
        raise AttributeError(f"module 'ms_recover.worlds' has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
