"""A placement that survives the loss of any one host, with the same hosts and the same parallel strategy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from math import gcd

from ms_recover.model.proposal import Proposal
from ms_recover.model.texts import list_some
from ms_recover.model.topology import Topology
from ms_recover.planning.audit.units import Arrangement, exists, make_units

SOURCE = "a proposed placement"
_FEW_UNITS = 16


def propose_placement(
    fatal: Collection[frozenset[int]], topology: Topology, keep: Collection[frozenset[int]] = ()
) -> Proposal:
    """Return a placement in which no host, and where that is possible no rack, has all ranks of a set of holders.

    Ranks change places with ranks of other hosts: a host takes as many as now. Neighbouring ranks stay on one host
    where they are on one now: as many as can, so that a tensor-parallel group, which neighbours are, is not torn apart;
    where such groups are known, they are given as `keep`, and none of them is. What is on one host anyway moves as one.

    Parameters
    ----------
    fatal : collection of frozenset of int
        The sets of ranks whose loss leaves no step to recover; the inclusion-minimal ones are enough.
    topology : Topology
        Where ranks live now.
    keep : collection of frozenset of int, optional
        Groups of ranks that stay on one host where they are on one now.
    """
    refusal = _refusal(fatal, topology, keep)
    if refusal:
        return Proposal(topology=None, reason=refusal)
    sets = sorted({tuple(sorted(ranks)) for ranks in fatal})
    names = list(dict.fromkeys(topology.hosts))
    counts = Counter(topology.hosts)
    number = {name: at for at, name in enumerate(names)}
    domains = [_of_hosts(level, topology.hosts, names) for level in topology.domains]
    usable = [at for at, level in enumerate(domains) if at == 0 or len(set(level)) > 1]
    # As many neighbours together as can be, and with these as many levels, before fewer neighbours are tried.
    unit_sizes = _divisors(gcd(*counts.values()))
    for size in unit_sizes:
        units = make_units(topology, size, keep)
        goals = [usable[:end] for end in range(len(usable), 0, -1)]
        for goal in goals:
            hosts = _arrange(
                units, sets, [number[topology.hosts[unit[0]]] for unit in units], [domains[at] for at in goal]
            )
            if hosts is not None:
                return _improved(_proposal(topology, units, hosts, sets, size), topology)
    # Exchanges found nothing: for few units all placements are tried, which shows as well that there is none.
    units = make_units(topology, 1, keep)
    by_units = _by_units(units, sets)
    if len(units) <= _FEW_UNITS and by_units is not None:
        placed = exists(units, [counts[name] for name in names], [domains[0]], by_units)
        if isinstance(placed, list):
            return _proposal(topology, units, placed, sets, 1)
        if placed is None:
            return Proposal(topology=None, reason=f"no placement on these {len(names)} hosts keeps all holders apart")
    return Proposal(
        topology=None, reason=f"none was found on these {len(names)} hosts: more hosts or more copies are needed"
    )


def _improved(proposal: Proposal, topology: Topology) -> Proposal:
    """Return a proposal, or none where it changes nothing although some level is not survived."""
    missing = [name for name in topology.levels if name not in proposal.survives]
    if proposal.moved or not missing:
        return proposal
    single = [name for name, level in zip(topology.levels, topology.domains, strict=True) if len(set(level)) == 1]
    if missing[0] in single:
        why = f"all ranks are in one {missing[0]}, so that only another {missing[0]} mends it"
    else:
        why = f"none was found that also survives any 1 {missing[0]}: it takes other hosts or more copies"
    return replace(proposal, topology=None, reason=why)


def _refusal(fatal: Collection[frozenset[int]], topology: Topology, keep: Collection[frozenset[int]]) -> str:
    """Return why no placement can survive, as far as that is plain; empty where it is not."""
    hosts, ranks = Counter(topology.hosts), topology.world_size
    if any(not members for members in fatal):
        return "no step can be recovered even now"
    if any(max(members) >= ranks for members in fatal):
        raise ValueError(f"holders beyond the {ranks} ranks that are placed")
    alone = sorted(rank for members in fatal if len(members) == 1 for rank in members)
    if alone:
        who = f"rank {alone[0]} has" if len(alone) == 1 else f"ranks {list_some(alone)} each have"
        return f"{who} the single copy of a block: no placement survives the loss of its host, only more copies do"
    if len(hosts) == 1 and fatal:
        return f"all ranks are on one host, {topology.hosts[0]}: it takes a second one"
    for members in sorted(fatal, key=sorted):
        for group in keep:
            if members <= group and len({topology.hosts[rank] for rank in group}) == 1:
                return (
                    f"ranks {list_some(sorted(members))} hold all copies of a block and stay on one host, because "
                    f"they work as one tensor-parallel group"
                )
    # Sets without a rank in common each need a rank on another host than the largest one.
    disjoint, seen = 0, set[int]()
    for members in sorted(fatal, key=lambda members: (len(members), sorted(members))):
        if seen.isdisjoint(members):
            disjoint, seen = disjoint + 1, seen | members
    name, most = hosts.most_common(1)[0]
    if disjoint > ranks - most:
        return (
            f"{name} has {most} of {ranks} ranks, and {disjoint} blocks each need a copy elsewhere: place fewer ranks "
            f"on it"
        )
    return ""


def _arrange(
    units: Sequence[tuple[int, ...]],
    sets: Sequence[tuple[int, ...]],
    hosts: Sequence[int],
    levels: Sequence[Sequence[int]],
) -> list[int] | None:
    by_units = _by_units(units, sets)
    if by_units is None:
        return None
    arrangement = Arrangement(units, hosts, levels, by_units)
    if arrangement.improve():
        return arrangement.hosts
    arrangement.deal()
    return arrangement.hosts if arrangement.improve() else None


def _by_units(units: Sequence[tuple[int, ...]], sets: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]] | None:
    """Return the units that hold each set; None where one unit has a whole set."""
    unit_of = {rank: at for at, unit in enumerate(units) for rank in unit}
    found = {tuple(sorted({unit_of[rank] for rank in members})) for members in sets}
    return None if any(len(members) == 1 for members in found) else sorted(found)


def _proposal(
    topology: Topology,
    units: Sequence[tuple[int, ...]],
    hosts: Sequence[int],
    sets: Sequence[tuple[int, ...]],
    size: int,
) -> Proposal:
    """Return the proposal of units on hosts, which are numbered as they come first."""
    by_rank = [0] * topology.world_size
    for unit, host in zip(units, hosts, strict=True):
        for rank in unit:
            by_rank[rank] = host
    number = {name: at for at, name in enumerate(dict.fromkeys(topology.hosts))}
    label = [{number[host]: at for host, at in zip(topology.hosts, level, strict=True)} for level in topology.domains]
    placed = tuple([tuple([level[host] for host in by_rank]) for level in label])
    survives = tuple(
        name
        for name, level in zip(topology.levels, placed, strict=True)
        if all(len({level[rank] for rank in members}) > 1 for members in sets)
    )
    moved = sum(host != now for host, now in zip(placed[0], topology.hosts, strict=True))
    made = replace(topology, domains=placed, source=SOURCE, lines=()) if moved else topology
    losses = " and ".join(f"any 1 {name}" for name in survives)
    stay = f"; {size} neighbouring ranks each stay together" if size > 1 else ""
    reason = f"survives {losses}, with {moved:,} of {topology.world_size:,} ranks on another host{stay}"
    return Proposal(topology=made, reason=reason, survives=survives, moved=moved, together=size)


def _of_hosts(level: Sequence[str], by_rank: Sequence[str], names: Sequence[str]) -> list[int]:
    """Return the number of the domain of each host."""
    number = {domain: at for at, domain in enumerate(dict.fromkeys(level))}
    found = dict(zip(by_rank, level, strict=True))
    return [number[found[name]] for name in names]


def _divisors(number: int) -> list[int]:
    return [one for one in range(number, 0, -1) if number % one == 0]
