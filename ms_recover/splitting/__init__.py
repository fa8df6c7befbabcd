"""A model over several devices that keeps answering when one fails; its public names load on use."""

from __future__ import annotations

import importlib
from typing import Any

_HOMES = {
    "DeviceLostError": "ms_recover.errors",
    "Event": "ms_recover.splitting.events",
    "FaultTolerantModelSplitter": "ms_recover.splitting.fault_tolerant_splitter",
    "ForwardReport": "ms_recover.splitting.events",
    "Missing": "ms_recover.splitting.events",
    "ModelSplitter": "ms_recover.splitting.splitter",
    "NoDeviceLeftError": "ms_recover.errors",
    "PartError": "ms_recover.errors",
    "Shared": "ms_recover.splitting.batches",
    "Span": "ms_recover.splitting.events",
}

__all__ = [
    "DeviceLostError",
    "Event",
    "FaultTolerantModelSplitter",
    "ForwardReport",
    "Missing",
    "ModelSplitter",
    "NoDeviceLeftError",
    "PartError",
    "Shared",
    "Span",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'ms_recover.splitting' has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
