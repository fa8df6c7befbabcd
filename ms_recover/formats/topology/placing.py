"""A topology of what a source states: a host for each rank, or hosts that ranks fill in their order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ms_recover.errors import ContradictionError, FormatError
from ms_recover.model.texts import list_some
from ms_recover.model.topology import Host, Topology

MAX_SIZE = 64 << 20
"""Longest file that is read, in bytes: a rank table of 100,000 devices has 12 MB."""

MOST_RANKS = 1 << 20

_MOST_NAMED = 8


@dataclass(frozen=True, slots=True)
class Place:
    """The host of one rank, as a line of a source states it."""

    rank: int
    host: str
    line: int


def place_ranks(places: Iterable[Place], world_size: int | None, source: str, tree: str = "") -> Topology:
    """Return the topology of a source that names the host of each rank; `source` is its path.

    `world_size` is how many ranks there are, by `tree` in words; None for as many as are placed.

    Raises
    ------
    ContradictionError
        When a rank is placed twice or not at all, or when there are more ranks than in the world.
    """
    found: dict[int, Place] = {}
    for place in places:
        first = found.setdefault(place.rank, place)
        if first is not place:
            raise ContradictionError(
                f"{source}, line {place.line}: rank {place.rank} is on {place.host}, and on {first.host} by line "
                f"{first.line}; a rank runs once, correct the file"
            )
    if world_size is None:
        world_size = max(found, default=-1) + 1
    beyond = next((place for place in found.values() if place.rank >= world_size), None)
    if beyond is not None:
        raise ContradictionError(
            f"{source}, line {beyond.line}: rank {beyond.rank} is on {beyond.host}, but there are {world_size} ranks"
            f"{_by(tree)}; is it of another job? give the file of this one, or --world-size"
        )
    missing = [rank for rank in range(world_size) if rank not in found]
    if missing:
        last = max((place.line for place in found.values()), default=1)
        raise ContradictionError(
            f"{source}, line {last} and before: no host for rank {list_some(missing, _MOST_NAMED)} of {world_size} "
            f"ranks{_by(tree)}; give the file of this job"
        )
    ordered = [found[rank] for rank in range(world_size)]
    hosts = tuple([place.host for place in ordered])
    return Topology(("host",), (hosts,), source, tuple([place.line for place in ordered]))


def fill_hosts(
    hosts: Sequence[Host], world_size: int | None, source: str, *, per_host: int | None = None, tree: str = ""
) -> Topology:
    """Return the topology of ranks that fill hosts in their order, as launchers place them by default.

    Where no host states a number, each takes `per_host` ranks, or all as many. Parameters are those of `place_ranks`.

    Raises
    ------
    FormatError
        When there is no host, or an absurd number of ranks.
    ContradictionError
        When the hosts do not take just as many ranks as there are, or state another number than `per_host`.
    """
    if not hosts:
        raise FormatError(f"{source}, line 1: no host is named; is it the right file?")
    slots = [host.slots if host.slots is not None else per_host for host in hosts]
    if all(count is None for count in slots) and world_size is not None and world_size % len(hosts) == 0:
        slots = [world_size // len(hosts)] * len(hosts)
    last, placed, lines = f"{source}{_at(hosts[-1].line)}", list[str](), list[int]()
    for host, count in zip(hosts, slots, strict=True):
        where = f"{source}{_at(host.line)}"
        if count is None:
            ranks = "" if world_size is None else f", and {world_size} ranks{_by(tree)} do not fill all evenly"
            write = f"write {host.name} slots=8, or " if host.line else ""
            raise ContradictionError(
                f"{where}: {host.name} has no number of ranks{ranks}; {write}give --ranks-per-host"
            )
        if per_host is not None and count != per_host:
            raise ContradictionError(f"{where}: {host.name} takes {count} ranks, --ranks-per-host says {per_host}")
        if len(placed) + count > MOST_RANKS:
            raise FormatError(f"{where}: more than {MOST_RANKS} ranks; correct the numbers")
        placed += [host.name] * count
        lines += [host.line] * count
    if world_size is not None and len(placed) != world_size:
        beyond = f"rank {world_size} would be on {placed[world_size]}" if len(placed) > world_size else ""
        missing = f"no host is left for rank {len(placed)}" if len(placed) < world_size else ""
        raise ContradictionError(
            f"{last} and before: {len(hosts)} hosts take {len(placed)} ranks, but there are {world_size}{_by(tree)}, "
            f"so {beyond}{missing}; give the hosts of this job, or --world-size"
        )
    return Topology(("host",), (tuple(placed),), source, tuple(lines) if any(lines) else ())


def share_hosts(per_host: int, world_size: int, source: str) -> Topology:
    """Return the topology in which each `per_host` neighbouring ranks share a host without a name."""
    hosts = tuple([f"host{rank // per_host}" for rank in range(world_size)])
    return Topology(("host",), (hosts,), f"{source} {per_host}")


def _at(line: int) -> str:
    return f", line {line}" if line else ""


def _by(tree: str) -> str:
    return f" by {tree}" if tree else ""
