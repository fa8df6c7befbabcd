"""Where ranks live: the options that say it, and the topology that follows from them or from manifests."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import click

from ms_recover.cli.fields import field_option, takes
from ms_recover.errors import UsageError

if TYPE_CHECKING:
    from ms_recover.model.inventory import Inventory
    from ms_recover.model.options import PlanOptions
    from ms_recover.model.topology import Topology


SLURM_NODES = "SLURM_JOB_NODELIST"
SLURM_TASKS = "SLURM_TASKS_PER_NODE"


@dataclass(frozen=True, slots=True, kw_only=True)
class TopologyOptions:
    """Where ranks live, as the operator states it; at most one of the first four.

    Parameters
    ----------
    rank_table : str or None
        Path of an Ascend rank table.
    scheduler_log : str or None
        Path of the log of MindSpore's scheduler.
    hostfile : str or None
        Path of a list of hosts, or of a rankfile.
    nodelist : str or None
        Slurm's list of nodes, or ``SLURM_JOB_NODELIST`` for the value of that variable.
    ranks_per_host : int or None
        How many ranks a host takes; alone, or for a list without numbers.
    topology : str or None
        Path of a topology in YAML or JSON; alone, or for what is above the hosts of another source.
    ignore_hosts : bool
        Whether hosts in manifests do not count.
    """

    rank_table: str | None = None
    scheduler_log: str | None = None
    hostfile: str | None = None
    nodelist: str | None = None
    ranks_per_host: int | None = None
    topology: str | None = None
    ignore_hosts: bool = False


_topology = partial(field_option, "topology")

RANK_TABLE = _topology(
    "--rank-table",
    metavar="FILE",
    type=click.Path(),
    help="Ranks live where this Ascend rank table (hccl.json) has them.",
)
SCHEDULER_LOG = _topology(
    "--scheduler-log",
    metavar="FILE",
    type=click.Path(),
    help="Ranks live where the scheduler has registered them: scheduler.log in the --log_dir of msrun.",
)
HOSTFILE = _topology(
    "--hostfile",
    metavar="FILE",
    type=click.Path(),
    help="Hosts in the order in which ranks fill them, one a line: HOST, HOST slots=8 or HOST:8; or a rankfile of Open "
    "MPI.",
)
NODELIST = _topology(
    "--nodelist",
    metavar="TEXT",
    help=f"The same as Slurm writes it, for example node[1-3,07-09]; {SLURM_NODES} takes the value of that variable. "
    f"In the job's environment {SLURM_TASKS} says how many ranks a node takes.",
)
RANKS_PER_HOST = _topology(
    "--ranks-per-host",
    metavar="N",
    type=click.IntRange(1, 1 << 16),
    help="N neighbouring ranks share a host; also for lists of hosts that state no number.",
)
TOPOLOGY = _topology(
    "--topology",
    metavar="FILE",
    type=click.Path(),
    help="Hosts with their racks, power domains or other levels, as YAML or JSON: see docs/topology.md. Alone, or for "
    "the hosts that another option or the manifests name.",
)
IGNORE_HOSTS = _topology(
    "--ignore-hosts",
    is_flag=True,
    help="Hosts in manifests do not count: for a placement that is to come.",
)

topology_options = takes(
    "topology",
    f"{__name__}:TopologyOptions",
    RANK_TABLE,
    SCHEDULER_LOG,
    HOSTFILE,
    NODELIST,
    RANKS_PER_HOST,
    TOPOLOGY,
    IGNORE_HOSTS,
)
"""Add the options that say where ranks live, and give the command ``topology: TopologyOptions``."""


def find_topology(
    inventory: Inventory | None,
    chosen: TopologyOptions,
    world_size: int | None = None,
    nodes: Callable[[int], Topology | None] | None = None,
    *,
    whole: bool = True,
) -> Topology | None:
    """Return where ranks live: as the options say, else where their files lie, else as manifests do; None without any.

    Parameters
    ----------
    inventory : Inventory or None
        What a scan found; None before the first checkpoint.
    chosen : TopologyOptions
    world_size : int, optional
        Number of ranks, where the caller knows it; by default that of the inventory.
    nodes : callable, optional
        Returns the nodes on which the files of so many ranks lie, of a tree on the disks of nodes.
    whole : bool
        Whether manifests count only where they name the host of every rank, as the gate of an audit needs it; a host
        that died with its folders is missing from a picture alone.

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
    from ms_recover.formats.topology.topology_file import decode_topology, place_by, with_domains
    from ms_recover.planning.audit.hosts import check_hosts, hosts_in_manifests, topology_of_manifests

    ranks, tree = _world(inventory, world_size)
    hosts = hosts_in_manifests(inventory) if inventory is not None and not chosen.ignore_hosts else {}
    topology = _named(chosen, ranks, tree)
    saved = nodes(ranks) if nodes is not None and ranks and topology is None and chosen.ranks_per_host is None else None
    saved = saved or topology_of_manifests(hosts, ranks or 0)
    if whole and saved is not None and not saved.is_whole:
        saved = None
    if chosen.topology is not None:
        file = decode_topology(_read(chosen.topology, "a topology"), chosen.topology)
        if topology is None and file.places_ranks:
            topology = place_by(file, ranks, tree=tree)
        elif topology is None and saved is not None and chosen.ranks_per_host is None:
            return with_domains(saved, file)
        elif topology is None:
            topology = place_by(file, ranks, chosen.ranks_per_host, tree)
        else:
            topology = with_domains(topology, file)
    elif topology is None and chosen.ranks_per_host is not None:
        topology = _shared(chosen.ranks_per_host, ranks)
    if topology is None:
        return saved
    check_hosts(topology, hosts)
    return topology


def topology_of_tree(
    inventory: Inventory,
    chosen: TopologyOptions,
    plan: PlanOptions,
    nodes: Callable[[int], Topology | None] | None = None,
    *,
    whole: bool = True,
) -> Topology | None:
    """Return where the ranks of a tree live, as many as the plan's options and the tree say; as `find_topology`."""
    from ms_recover.verbs.audit import count_ranks_of_claims

    ranks = None if inventory.iterations else count_ranks_of_claims(inventory, plan)
    return find_topology(inventory, chosen, ranks, nodes, whole=whole)


def write_placement(path: str, topology: Topology, chosen: TopologyOptions) -> str:
    """Write a placement, and return what was written, in words.

    A path that ends in ``.json`` gets a rank table: that of ``--rank-table`` with other ranks on its devices, where it
    was given. Any other path gets a hostfile, or a rankfile where a hostfile cannot say it.

    Raises
    ------
    UsageError
        When the file is there already.
    StorageError
        When it cannot be written.
    """
    from ms_recover.formats.topology.hostfile import encode_hosts
    from ms_recover.formats.topology.rank_table import encode_rank_table, rewrite_rank_table
    from ms_recover.stores.atomic import write_small

    if os.path.lexists(path):
        raise UsageError(f"{path} is there already, and nothing is replaced: name another file, or remove it")
    if path.lower().endswith(".json"):
        table = chosen.rank_table
        data = (
            encode_rank_table(topology)
            if table is None
            else rewrite_rank_table(_read(table, "a rank table"), table, topology)
        )
        kind = "rank table"
    else:
        data = encode_hosts(topology)
        kind = "rankfile" if data.startswith(b"rank ") else "hostfile"
    write_small(os.path.abspath(path), data)
    return kind


def _world(inventory: Inventory | None, given: int | None) -> tuple[int | None, str]:
    """Return the number of ranks and its ground in words; None where nothing says it."""
    if given is not None:
        return given, ""
    if inventory is None or not (inventory.ranks or inventory.part.steps):
        return None, ""
    from ms_recover.planning.tree.world_size import find_world_size

    world = find_world_size(inventory)
    return world.ranks, world.source


def _named(chosen: TopologyOptions, ranks: int | None, tree: str) -> Topology | None:
    """Return the topology of the option that names hosts; None without one."""
    given = {
        "--rank-table": chosen.rank_table,
        "--scheduler-log": chosen.scheduler_log,
        "--hostfile": chosen.hostfile,
        "--nodelist": chosen.nodelist,
    }
    names = [name for name, value in given.items() if value is not None]
    if len(names) > 1:
        raise UsageError(f"{' and '.join(names)}: each says where ranks live; give one")
    if names and chosen.ranks_per_host is not None and names[0] in ("--rank-table", "--scheduler-log"):
        raise UsageError(f"{names[0]} and --ranks-per-host: each says where ranks live; give one")
    if chosen.rank_table is not None:
        from ms_recover.formats.topology.rank_table import decode_rank_table

        return decode_rank_table(_read(chosen.rank_table, "a rank table"), chosen.rank_table, ranks, tree)
    if chosen.scheduler_log is not None:
        from ms_recover.formats.topology.scheduler_log import MAX_LOG, decode_scheduler_log

        data = _read(chosen.scheduler_log, "a scheduler's log", MAX_LOG)
        return decode_scheduler_log(data, chosen.scheduler_log, ranks, tree)
    if chosen.hostfile is not None:
        return _of_hostfile(chosen.hostfile, chosen.ranks_per_host, ranks, tree)
    if chosen.nodelist is not None:
        return _of_nodelist(chosen.nodelist, chosen.ranks_per_host, ranks, tree)
    return None


def _of_hostfile(path: str, per_host: int | None, ranks: int | None, tree: str) -> Topology:
    from ms_recover.formats.topology.hostfile import decode_hostfile
    from ms_recover.formats.topology.placing import Place, fill_hosts, place_ranks

    listed = decode_hostfile(_read(path, "a hostfile"), path)
    places = [one for one in listed if isinstance(one, Place)]
    if places:
        return place_ranks(places, ranks, path, tree)
    hosts = [one for one in listed if not isinstance(one, Place)]
    return fill_hosts(hosts, ranks, path, per_host=per_host, tree=tree)


def _of_nodelist(text: str, per_host: int | None, ranks: int | None, tree: str) -> Topology:
    from ms_recover.formats.topology.nodelist import decode_nodelist, decode_tasks, nodes_with_tasks
    from ms_recover.formats.topology.placing import fill_hosts

    source, own = "--nodelist", os.environ.get(SLURM_NODES, "")
    if text == SLURM_NODES:
        if not own:
            raise UsageError(f"--nodelist {SLURM_NODES}: the variable is not set here; give the list itself")
        source, text = SLURM_NODES, own
    tasks = os.environ.get(SLURM_TASKS) if text == own and per_host is None else None
    counts = decode_tasks(tasks, SLURM_TASKS) if tasks else None
    hosts = nodes_with_tasks(decode_nodelist(text, source), counts, source)
    return fill_hosts(hosts, ranks, source, per_host=per_host, tree=tree)


def _shared(per_host: int, ranks: int | None) -> Topology:
    from ms_recover.formats.topology.placing import share_hosts

    if ranks is None:
        raise UsageError("--ranks-per-host leaves the number of ranks open: give --world-size")
    return share_hosts(per_host, ranks, "--ranks-per-host")


def _read(path: str, what: str, limit: int | None = None) -> bytes:
    from ms_recover.formats.reading import read_small
    from ms_recover.formats.topology.placing import MAX_SIZE

    return read_small(path, what, limit or MAX_SIZE)
