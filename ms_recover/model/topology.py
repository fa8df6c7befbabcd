"""Where ranks live: hosts, racks, power domains."""

from __future__ import annotations

from dataclasses import dataclass, field

from ms_recover.model.texts import many

__all__ = ["UNKNOWN", "Host", "Topology", "short_name"]


@dataclass(frozen=True, slots=True)
class Host:
    """A host in a list of hosts."""

    name: str
    slots: int | None = None
    """How many ranks run on it, None where the list does not say it."""
    line: int = 0
    """Line of the list, from 1; 0 where it has no lines."""


UNKNOWN = ""
"""The domain of a rank of which nothing says where it lives."""


@dataclass(frozen=True, slots=True)
class Topology:
    """The domain of each rank, at each level.

    Parameters
    ----------
    levels : tuple of str
        Names of levels, the finest first: ``("host", "rack")``. The first is the host.
    domains : tuple of tuple of str
        For each level the domain of each rank, by rank: ``domains[0][3]`` is the host of rank 3. `UNKNOWN` where
        nothing says it, which an audit does not take.
    source : str
        What said so: a file, an option, the manifests.
    lines : tuple of int
        The line of the source that places each rank, by rank, from 1; empty where it has no lines.
    """

    RECORD = "levels domains source"

    levels: tuple[str, ...]
    domains: tuple[tuple[str, ...], ...]
    source: str
    lines: tuple[int, ...] = field(default=(), compare=False, repr=False)

    @property
    def world_size(self) -> int:
        """Return how many ranks are placed."""
        return len(self.domains[0])

    @property
    def hosts(self) -> tuple[str, ...]:
        """Return the host of each rank, by rank."""
        return self.domains[0]

    @property
    def is_whole(self) -> bool:
        """Whether the host of every rank is known."""
        return UNKNOWN not in self.domains[0]

    def host_of(self, rank: int) -> str:
        """Return the host of any rank of the job, `UNKNOWN` where nothing says it."""
        return self.domains[0][rank] if rank < self.world_size else UNKNOWN

    def unplaced(self, world_size: int) -> tuple[int, ...]:
        """Return the ranks of a job of so many whose hosts are not known."""
        return tuple(rank for rank in range(world_size) if self.host_of(rank) == UNKNOWN)

    def summary(self, world_size: int) -> str:
        """Return in words how many hosts are known of a job of so many ranks, and what names them."""
        count, lost = len({*self.domains[0]} - {UNKNOWN}), len(self.unplaced(world_size))
        rest = f"; {many(lost, 'rank')} on hosts unknown" if lost else ""
        return f"{many(count, 'host')}, by {self.source}{rest}"

    def place(self, rank: int) -> str:
        """Return what places a rank, in words: the source, and the line where it has one."""
        return f"{self.source}, line {self.lines[rank]}" if self.lines else self.source


def short_name(host: str) -> str:
    """Return a host name in lower case without its domain; an address as it is."""
    if ":" in host or host.replace(".", "").isdigit():
        return host
    return host.partition(".")[0].lower()
