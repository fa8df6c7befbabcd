"""The log of MindSpore's scheduler, which registers the process of each rank (``msrun``: ``scheduler.log``)."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from typing import Final

from ms_recover.errors import FormatError
from ms_recover.formats.topology.placing import MOST_RANKS, Place, place_ranks
from ms_recover.model.topology import Topology

MAX_LOG: Final = 1 << 30
"""Longest log that is read, in bytes."""

_NODE: Final = re.compile(
    rb"The new node: (?P<node>[^\s(]+)\(role: (?P<role>\w+)\), rank id: (?P<rank>\d{1,10})(?:, device id: \d+)?"
    rb"(?:, hostname: (?P<host>[^,\r\n]*))?, ip: (?P<ip>[^\s,]*) is registered successfully"
    rb"(?:[^\r\n]*?expected node number: (?P<expected>\d{1,7}))?"
)
_RANK: Final = re.compile(
    rb"(?:Assign rank id of node id|Reassign rank id from rank table file, node id): (?P<node>[^\s,]+), "
    rb"role: (?P<role>\w+), [^\r\n]*?new rank id: (?P<rank>\d{1,10})"
)


@dataclass(frozen=True, slots=True)
class _Node:
    """A process that has registered."""

    rank: int
    host: str
    address: str
    line: int


def decode_scheduler_log(data: bytes, where: str, world_size: int | None = None, tree: str = "") -> Topology:
    """Decode the log of a scheduler, `where` in messages.

    Two kinds of its lines count (MindSpore 2.10, ``mindspore/ccsrc/cluster/topology/meta_server_node.cc``): ``The new
    node: ID(role: MS_WORKER), rank id: N, device id: D, hostname: H, ip: A is registered successfully``, and ``Assign
    rank id of node id: ID, ... new rank id: N`` (or ``Reassign rank id from rank table file, ...``). The latter have
    the last word about ranks, also where the former come behind them. A host is a host name; one name at several
    addresses is several hosts. Other parameters are those of `ms_recover.formats.topology.placing.place_ranks`.

    Raises
    ------
    FormatError
        When no worker has registered.
    ContradictionError
        As `place_ranks`; also when fewer workers have registered than the scheduler waits for.
    """
    nodes, ranks, expected = dict[str, _Node](), dict[str, tuple[int, int]](), 0
    for line, row in enumerate(data.split(b"\n"), 1):
        found = _NODE.search(row)
        if found is not None and found["role"] == b"MS_WORKER":
            address = _text(found["ip"])
            nodes[_text(found["node"])] = _Node(int(found["rank"]), _text(found["host"] or b""), address, line)
            expected = max(expected, int(found["expected"] or 0))
            continue
        given = _RANK.search(row)
        if given is not None and given["role"] == b"MS_WORKER":
            ranks[_text(given["node"])] = int(given["rank"]), line
    if not nodes:
        raise FormatError(
            f"{where}, line 1 and behind: no worker registers here; is it scheduler.log of msrun, and GLOG_v at most 2?"
        )
    addresses: dict[str, set[str]] = defaultdict(set)
    for node in nodes.values():
        addresses[node.host].add(node.address)
    places = []
    for name, node in nodes.items():
        rank, line = ranks.get(name, (node.rank, node.line))
        if rank >= MOST_RANKS:
            raise FormatError(f"{where}, line {line}: {name} has no rank; did the job start?")
        host = node.host or node.address
        places.append(Place(rank, host if len(addresses[node.host]) == 1 else f"{host} ({node.address})", line))
    expected = min(expected, MOST_RANKS)
    if world_size is None and expected:
        return place_ranks(places, expected, where, "the scheduler")
    return place_ranks(places, world_size, where, tree)


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace").strip()
