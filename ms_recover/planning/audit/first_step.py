"""What the loss of hosts would cost, by the group and the host of each rank alone: for the log of a training."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from ms_recover.model.audit import BEFORE, Audit, LevelAudit
from ms_recover.model.texts import list_some
from ms_recover.model.topology import Topology
from ms_recover.planning.audit.headline import headline_of

_MOST_NAMED = 8


@dataclass(frozen=True, slots=True)
class RankPlace:
    """Where a rank runs, and which ranks hold the same slice."""

    host: str
    """Empty where it is not known."""
    first: int
    """The first rank of its group; -1 where the group is not known."""
    size: int
    """Ranks in its group."""


@dataclass(frozen=True, slots=True)
class FirstAudit:
    """What the loss of hosts would cost.

    Parameters
    ----------
    audit : Audit
        With the smallest fatal losses alone.
    ranks : tuple of int
        Of the first such loss the ranks whose slices nobody else holds.
    where : tuple of str
        The hosts of that loss.
    """

    audit: Audit
    ranks: tuple[int, ...]
    where: tuple[str, ...]

    @property
    def text(self) -> str:
        """The headline of the audit, and the first of the smallest fatal losses."""
        has = "has" if len(self.where) == 1 else "have"
        names, ranks = list_some(self.where, _MOST_NAMED), list_some(self.ranks, _MOST_NAMED)
        return f"{self.audit.headline}: {names} {has} every copy of the slice of rank {ranks}"


def judge_places(places: Sequence[RankPlace]) -> FirstAudit | str:
    """Return what the loss of hosts would cost, or why that is not known, as one clause.

    A loss is fatal that takes all ranks of a group: a slice that is composed of several others is not thought of here.
    """
    unknown = [rank for rank, place in enumerate(places) if not place.host]
    if unknown:
        return f"nothing names the host of rank {list_some(unknown, _MOST_NAMED)}"
    groups: dict[int, list[int]] = defaultdict(list)
    for rank, place in enumerate(places):
        groups[place.first].append(rank)
    for first, ranks in groups.items():
        if first != ranks[0] or any(places[rank].size != len(ranks) for rank in ranks):
            return f"the ranks that hold the same slice as rank {ranks[0]} are not known"
    # Of groups on the same hosts the first one stands for all: their loss is one loss.
    losses: dict[frozenset[str], tuple[int, ...]] = {}
    for ranks in groups.values():
        losses.setdefault(frozenset(places[rank].host for rank in ranks), tuple(ranks))
    smallest = min(map(len, losses))
    fatal = {hosts: ranks for hosts, ranks in losses.items() if len(hosts) == smallest}
    where, lost = next(iter(fatal.items()))
    topology = Topology(("host",), (tuple([place.host for place in places]),), "the ranks themselves")
    hosts = tuple(dict.fromkeys(topology.hosts))
    level = LevelAudit(name="host", domains=hosts, singles=(), losses=(), smallest=smallest, smallest_count=len(fatal))
    audit = Audit(
        root="",
        step=BEFORE,
        world_size=len(places),
        evidence="the groups of the ranks",
        topology=topology,
        levels=(level,),
    )
    return FirstAudit(headline_of(audit), lost, tuple(host for host in hosts if host in where))
