"""What the loss of hosts would cost, by the group and the host of each rank alone: for the log of a training."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from math import comb

from ms_recover.model.texts import list_some

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
class HostLosses:
    """What the loss of hosts would cost.

    Parameters
    ----------
    smallest : int
        Hosts in a smallest loss that takes every holder of a slice with it.
    count : int
        How many such losses there are.
    hosts : int
        Hosts of the job.
    ranks : tuple of int
        Of the first such loss the ranks whose slices nobody else holds.
    where : tuple of str
        The hosts of that loss.
    """

    smallest: int
    count: int
    hosts: int
    ranks: tuple[int, ...]
    where: tuple[str, ...]

    @property
    def text(self) -> str:
        """One sentence, as the headline of ``recover-ckpt audit``."""
        names, ranks = list_some(self.where, _MOST_NAMED), list_some(self.ranks, _MOST_NAMED)
        held = f"{names} {'has' if len(self.where) == 1 else 'have'} every slice of rank {ranks}"
        if self.smallest == 1:
            many = f"{self.count} of {self.hosts} hosts" if self.hosts > 1 else "the only host"
            return f"no host may be lost: the loss of {many} would be fatal; {held}"
        survived = self.smallest - 1
        such = {2: "pairs"}.get(self.smallest, "losses")
        return (
            f"survives any {survived} host{'s' * (survived > 1)}; smallest fatal loss: {self.smallest} hosts "
            f"({self.count:,} such {such} of {comb(self.hosts, self.smallest):,}); {held}"
        )


def judge_places(places: Sequence[RankPlace]) -> HostLosses | str:
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
    losses: dict[frozenset[str], tuple[int, ...]] = {}
    for ranks in groups.values():
        losses.setdefault(frozenset(places[rank].host for rank in ranks), tuple(ranks))
    smallest = min(map(len, losses))
    fatal = {hosts: ranks for hosts, ranks in losses.items() if len(hosts) == smallest}
    where, lost = next(iter(fatal.items()))
    order = {place.host: None for place in places}
    return HostLosses(smallest, len(fatal), len(order), lost, tuple(host for host in order if host in where))
