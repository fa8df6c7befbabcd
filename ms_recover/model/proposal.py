"""Another placement of the same ranks, for the loss of any one host."""

from __future__ import annotations

from dataclasses import dataclass

from ms_recover.model.topology import Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A placement with the same hosts, the same ranks and the same parallel strategy; or why there is none.

    Parameters
    ----------
    topology : Topology or None
        Where ranks might live; None when no placement survives the loss of any one host, or none was found.
    reason : str
        What it survives and what stays together, or why there is none, as one clause.
    survives : tuple of str
        The levels of which any one domain may be lost.
    moved : int
        How many ranks would live on another host than now.
    together : int
        As many neighbouring ranks stay on one host, where they are on one now.
    """

    topology: Topology | None
    reason: str
    survives: tuple[str, ...] = ()
    moved: int = 0
    together: int = 1
