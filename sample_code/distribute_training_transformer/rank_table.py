"""The rank table that starts a job on Ascend: which device each rank has."""

from __future__ import annotations

import json
from pathlib import Path

from ms_recover.errors import UsageError


def device_of(table: str, rank: int) -> int:
    """Return the device of a rank, a number within its host.

    Parameters
    ----------
    table : str
        Path of the rank table: JSON, ``server_list`` of hosts, each with ``device``, a list of ``device_id`` and
        ``rank_id``, as texts.
    rank : int
        Global rank.

    Raises
    ------
    UsageError
        When the file is no rank table, or has no such rank.
    """
    try:
        servers = json.loads(Path(table).read_text(encoding="utf-8"))["server_list"]
        devices = {int(one["rank_id"]): int(one["device_id"]) for server in servers for one in server["device"]}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"RANK_TABLE_FILE={table} is no rank table ({error!r}); see rank_table_8pcs.json") from error
    if rank not in devices:
        listed = ", ".join(map(str, sorted(devices)))
        raise UsageError(f"RANK_TABLE_FILE={table} has no rank {rank}, only {listed}: put it in")
    return devices[rank]
