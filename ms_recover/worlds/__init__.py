"""Communication that confines a fault to the processes that share a world.

Names load on use, so that importing this package imports neither numpy nor asyncio.
"""

from __future__ import annotations

from ms_recover.lazy import lazy_names

TYPE_CHECKING = False  # the name that type checkers know, without the cost of importing typing
if TYPE_CHECKING:
    from ms_recover.errors import BrokenWorldError
    from ms_recover.worlds.communicator import WorldCommunicator
    from ms_recover.worlds.manager import WorldManager
    from ms_recover.worlds.security import Security
    from ms_recover.worlds.sync import SyncWorldManager
    from ms_recover.worlds.watchdog import WatchDog

__all__ = [
    "BrokenWorldError",
    "Security",
    "SyncWorldManager",
    "WatchDog",
    "WorldCommunicator",
    "WorldManager",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "BrokenWorldError": "ms_recover.errors",
            "Security": "ms_recover.worlds.security",
            "SyncWorldManager": "ms_recover.worlds.sync",
            "WatchDog": "ms_recover.worlds.watchdog",
            "WorldCommunicator": "ms_recover.worlds.communicator",
            "WorldManager": "ms_recover.worlds.manager",
        },
    )
