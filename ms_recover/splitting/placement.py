"""Where work is: the worker of a device, and the chunks of a forward."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from ms_recover.errors import BrokenWorldError
from ms_recover.splitting.events import Rows
from ms_recover.splitting.process import Worker

_EXIT_POLLS = 50
_EXIT_POLL_S = 0.001
"""The end of a connection is seen before the end of its process: so often, so long is waited for the latter."""


@dataclass
class Placement:
    """The worker of a device."""

    device: int
    generation: int
    worker: Worker
    ready_at: float
    """When it was connected."""
    since: float | None = None
    """When its current chunk began; None while it has none."""
    proof: float = 0.0
    """Seconds spent on proving the bytes of its slices."""


@dataclass
class Chunk:
    """The rows of a chunk, and the value that it carries to its next part."""

    rows: Rows
    skeleton: Any
    leaves: list[Any]


async def exit_reason(worker: Worker, error: BrokenWorldError) -> str:
    """Return how a local worker's process ended; empty when it runs or nothing is known."""
    for _ in range(_EXIT_POLLS):
        if worker.remote or error.cause not in ("eof", "reset") or worker.exit_reason:
            break
        await asyncio.sleep(_EXIT_POLL_S)
    return worker.exit_reason
