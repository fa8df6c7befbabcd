"""Where ranks live: hosts, racks, power domains."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Topology"]


@dataclass(frozen=True, slots=True)
class Topology:
    """The domain of each rank, at each level.

    Parameters
    ----------
    levels : tuple of str
        Names of levels, the finest first: ``("host", "rack")``. The first is the host.
    domains : tuple of tuple of str
        For each level the domain of each rank, by rank: ``domains[0][3]`` is the host of rank 3.
    source : str
        What said so: a file, an option, the manifests.
    """

    levels: tuple[str, ...]
    domains: tuple[tuple[str, ...], ...]
    source: str

    @property
    def world_size(self) -> int:
        """Return how many ranks are placed."""
        return len(self.domains[0])
