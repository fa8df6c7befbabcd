"""The run id: one for all ranks of a launch, so that slices of two runs are never mixed."""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Callable, Mapping

from ms_recover.errors import UsageError
from ms_recover.training.world import World

RUN_ID = "MS_RECOVER_RUN_ID"
"""Environment variable that launchers set to the same new value for all ranks."""

_BYTES = 16


def agree_run_id(
    world: World,
    environ: Mapping[str, str] = os.environ,
    draw: Callable[[int], bytes] = secrets.token_bytes,
) -> str:
    """Return the id of this run: what the launcher set, else what rank 0 draws.

    All ranks call it.

    Parameters
    ----------
    world : World
        The ranks.
    environ : mapping
        Where `RUN_ID` may stand.
    draw : callable
        Gives so many random bytes.

    Returns
    -------
    str
        Empty when nothing is set and the ranks cannot talk.

    Raises
    ------
    UsageError
        When ranks were given different ids.
    """
    given = environ.get(RUN_ID, "")
    if world.size > 1 and not world.connected:
        return given
    own = hashlib.blake2b(given.encode(), digest_size=_BYTES).digest() if given else draw(_BYTES)
    told = world.gather([bool(given), *to_numbers(own)])
    if given and len(set(told)) == 1:
        return given
    if any(set_there for set_there, *_ in told):
        ranks = [str(rank) for rank, numbers in enumerate(told) if numbers != told[world.rank]]
        raise UsageError(
            f"rank {world.rank} has {RUN_ID}={given!r}, which is not what rank(s) {', '.join(ranks)} have: "
            "set it to the same value for all ranks, or for none"
        )
    return to_bytes(told[0][1:]).hex()


def to_numbers(data: bytes) -> list[int]:
    """Return bytes as signed 32-bit numbers, as `World.gather` takes them; the length is a multiple of four."""
    return [int.from_bytes(data[start : start + 4], "big", signed=True) for start in range(0, len(data), 4)]


def to_bytes(numbers: tuple[int, ...]) -> bytes:
    """Undo `to_numbers`."""
    return b"".join(number.to_bytes(4, "big", signed=True) for number in numbers)
