"""Where ranks live, for the pictures that commands print."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from ms_recover.cli.topology import TopologyOptions, find_topology
from ms_recover.errors import MsRecoverError

if TYPE_CHECKING:
    from ms_recover.model.inventory import Inventory
    from ms_recover.model.topology import Topology


def picture_topology(inventory: Inventory, chosen: TopologyOptions, world_size: int | None = None) -> Topology | None:
    """Return where ranks live, for a picture: what manifests say is no reason to fail, what the operator says is.

    Errors are those of `find_topology`, where an option names hosts.
    """
    if chosen != TopologyOptions():
        return find_topology(inventory, chosen, world_size, whole=False)
    with suppress(MsRecoverError):
        return find_topology(inventory, chosen, world_size, whole=False)
    return None
