"""Where ranks live: the options that say it, and the topology that follows from them or from manifests."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import click

from ms_recover.cli.fields import field_option, takes

if TYPE_CHECKING:
    from ms_recover.model.inventory import Inventory
    from ms_recover.model.topology import Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class TopologyOptions:
    """Where ranks live, as the operator states it; at most one of them names hosts.

    Parameters
    ----------
    hostfile : str or None
        Path of a list of hosts, or of a rankfile.
    ranks_per_host : int or None
        How many ranks a host takes; alone, or for a list without numbers.
    ignore_hosts : bool
        Whether hosts in manifests do not count.
    """

    hostfile: str | None = None
    ranks_per_host: int | None = None
    ignore_hosts: bool = False


_topology = partial(field_option, "topology")

HOSTFILE = _topology(
    "--hostfile",
    metavar="FILE",
    type=click.Path(),
    help="Hosts in the order in which ranks fill them, one a line: HOST, HOST slots=8 or HOST:8; or a rankfile of Open "
    "MPI.",
)
RANKS_PER_HOST = _topology(
    "--ranks-per-host",
    metavar="N",
    type=click.IntRange(1, 1 << 16),
    help="N neighbouring ranks share a host; also for lists of hosts that state no number.",
)
IGNORE_HOSTS = _topology(
    "--ignore-hosts",
    is_flag=True,
    help="Hosts in manifests do not count: for a placement that is to come.",
)

topology_options = takes("topology", f"{__name__}:TopologyOptions", HOSTFILE, RANKS_PER_HOST, IGNORE_HOSTS)
"""Add the options that say where ranks live, and give the command ``topology: TopologyOptions``."""


def find_topology(
    inventory: Inventory | None, chosen: TopologyOptions, world_size: int | None = None
) -> Topology | None:
    """Return where ranks live: as the options say, else as manifests do; None where neither does.

    Parameters
    ----------
    inventory : Inventory or None
        What a scan found; None before the first checkpoint.
    chosen : TopologyOptions
    world_size : int, optional
        Number of ranks, where the caller knows it; by default that of the inventory.

    Raises
    ------
    UsageError
        When options exclude each other, or leave the number of ranks open.
    FormatError
        When a file is malformed; it names the line.
    ContradictionError
        When a source contradicts itself, the number of ranks, or the hosts in manifests; it names rank and line.
    MissingInputError, StorageError
        When a file cannot be read.
    """
    from ms_recover.planning.hosts import check_hosts, hosts_in_manifests, topology_of_manifests

    ranks, tree = _world(inventory, world_size)
    hosts = hosts_in_manifests(inventory) if inventory is not None and not chosen.ignore_hosts else {}
    topology = _chosen(chosen, ranks, tree)
    if topology is None:
        return topology_of_manifests(hosts, ranks or 0)
    check_hosts(topology, hosts)
    return topology


def _world(inventory: Inventory | None, given: int | None) -> tuple[int | None, str]:
    """Return the number of ranks and its ground in words; None where nothing says it."""
    if given is not None:
        return given, ""
    if inventory is None or not (inventory.ranks or inventory.part):
        return None, ""
    from ms_recover.planning.world_size import find_world_size

    world = find_world_size(inventory)
    return world.ranks, world.source


def _chosen(chosen: TopologyOptions, ranks: int | None, tree: str) -> Topology | None:
    """Return the topology that the options state."""
    from ms_recover.errors import UsageError
    from ms_recover.formats.topology.placing import share_hosts

    if chosen.hostfile is not None:
        return _of_hostfile(chosen.hostfile, chosen.ranks_per_host, ranks, tree)
    if chosen.ranks_per_host is None:
        return None
    if ranks is None:
        raise UsageError("--ranks-per-host leaves the number of ranks open: give --world-size")
    return share_hosts(chosen.ranks_per_host, ranks, "--ranks-per-host")


def _of_hostfile(path: str, per_host: int | None, ranks: int | None, tree: str) -> Topology:
    from ms_recover.formats.reading import read_small
    from ms_recover.formats.topology.hostfile import decode_hostfile
    from ms_recover.formats.topology.placing import MAX_SIZE, Place, fill_hosts, place_ranks

    listed = decode_hostfile(read_small(path, "a hostfile", MAX_SIZE), path)
    places = [one for one in listed if isinstance(one, Place)]
    if places:
        return place_ranks(places, ranks, path, tree)
    hosts = [one for one in listed if not isinstance(one, Place)]
    return fill_hosts(hosts, ranks, path, per_host=per_host, tree=tree)
