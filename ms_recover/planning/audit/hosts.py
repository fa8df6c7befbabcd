"""Hosts of ranks by their manifests, and what contradicts them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from ms_recover.errors import ContradictionError
from ms_recover.model.inventory import Inventory, OrphanManifest, SliceFile
from ms_recover.model.steps import Step
from ms_recover.model.topology import UNKNOWN, Topology, short_name

BY_MANIFESTS = "the hosts in manifests"


def hosts_in_manifests(inventory: Inventory) -> dict[int, str]:
    """Return the host of each rank in the run that began last, for the ranks whose manifests name one.

    Of runs that state no start that is the one with the newest step. Older runs say where the other ranks are, as long
    as they agree with it. Manifests whose slices are gone count.
    """
    files: tuple[SliceFile | OrphanManifest, ...] = (*inventory.slices, *inventory.orphans)
    manifests = [(file.rank, file.manifest) for file in files if file.manifest is not None]
    runs: dict[tuple[int, str], dict[int, tuple[str, str | None]]] = defaultdict(dict)
    newest: dict[tuple[int, str], Step] = {}
    for rank, manifest in sorted(manifests, key=lambda stated: stated[1].step):
        training = manifest.training
        if training is not None and training.host:
            run = (training.started or 0, manifest.run_id)
            runs[run][rank] = training.host, training.machine
            newest[run] = manifest.step
    hosts: dict[int, str] = {}
    for run in sorted(runs, key=lambda run: (run[0], newest[run], run[1]), reverse=True):
        named = name_hosts(runs[run])
        if any(hosts.get(rank, host) != host for rank, host in named.items()):
            break
        hosts |= named
    return dict(sorted(hosts.items()))


def name_hosts(stated: Mapping[int, tuple[str, str | None]]) -> dict[int, str]:
    """Return a name of the host of each rank, of the name and the machine that each states.

    Ranks of one machine have one host, whatever their containers are called: that of the first of them. One name on
    several machines is several hosts.
    """
    first: dict[str, str] = {}
    machines: dict[str, set[str]] = defaultdict(set)
    for _, (host, machine) in sorted(stated.items()):
        key = machine or f"named {host}"
        machines[first.setdefault(key, host)].add(key)
    names = {}
    for rank, (host, machine) in stated.items():
        name = first[machine or f"named {host}"]
        names[rank] = f"{name} ({machine[:13]})" if machine and len(machines[name]) > 1 else name
    return names


def topology_of_manifests(hosts: Mapping[int, str], world_size: int) -> Topology | None:
    """Return the topology that manifests state, which need not name the host of every rank; None without any host."""
    named = tuple([hosts.get(rank, UNKNOWN) for rank in range(world_size)])
    return Topology(("host",), (named,), BY_MANIFESTS) if any(named) else None


def check_hosts(topology: Topology, hosts: Mapping[int, str]) -> None:
    """Compare a topology with the hosts in manifests.

    Names may be of two kinds, addresses and host names: then ranks that share a host must be the same in both.

    Raises
    ------
    ContradictionError
        When a rank is on another host, or shares its host with other ranks.
    """
    named = {short_name(name) for name in topology.hosts}
    # The first rank of each host by its manifest, and by the topology: others must share their host with it in both.
    first_of: dict[str, int] = {}
    here: dict[str, int] = {}
    advice = (
        "is it the file of another launch? with --ignore-hosts the hosts in manifests do not count, for a placement "
        "that is to come"
    )
    for rank, host in hosts.items():
        if rank >= topology.world_size:
            continue
        given = topology.hosts[rank]
        if short_name(given) != short_name(host) and short_name(host) in named:
            raise ContradictionError(
                f"{topology.place(rank)}: rank {rank} is on {given}, and on {host} by its manifest; {advice}"
            )
        first, other = first_of.setdefault(host, rank), here.setdefault(given, rank)
        if topology.hosts[first] != given:
            raise ContradictionError(
                f"{topology.place(rank)}: rank {rank} is on {given} and rank {first} on {topology.hosts[first]}, and "
                f"both are on {host} by their manifests; {advice}"
            )
        if hosts[other] != host:
            raise ContradictionError(
                f"{topology.place(rank)}: ranks {other} and {rank} are on {given}, and on {hosts[other]} and {host} by "
                f"their manifests; {advice}"
            )
