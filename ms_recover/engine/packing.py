"""Values as bytes between the processes of a cluster.

Who can connect to a scheduler or a worker of dask can run any code on it: nothing is lost by reading its pickles.
"""

from __future__ import annotations

import pickle
from typing import Any


def pack(value: object) -> bytes:
    """Return a value as bytes."""
    return pickle.dumps(value)


def unpack(data: bytes) -> Any:
    """Return a value from bytes."""
    return pickle.loads(data)  # noqa: S301
