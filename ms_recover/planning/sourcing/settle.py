"""Decide which ranks may give a parameter of a slice."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from ms_recover.model.slices import Parameter
from ms_recover.planning.judging.votes import Ballot, hold_vote
from ms_recover.planning.redundancy.regions import Box
from ms_recover.planning.sourcing.layout_trust import LayoutTrust
from ms_recover.planning.sourcing.parameters import ParameterIndex


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """The ranks that may give a region of a parameter.

    Parameters
    ----------
    region : Box or None
        Of the global tensor; None without a layout, when every rank of the stage holds all of it.
    ranks : tuple of int
        Ranks whose slices give it, ascending; at most `MOST_COMPARED`.
    problem : str or None
        The reason why it cannot be taken from anyone.
    disputed : bool
        It is held, but the sources differ and nothing settles who is right.
    tolerated : bool
        The sources differ, as they may.
    """

    region: Box | None
    ranks: tuple[int, ...] = ()
    problem: str | None = None
    disputed: bool = False
    tolerated: bool = False


class Settlement:
    """Settles, parameter by parameter, which slices of a step are right.

    Parameters
    ----------
    index : ParameterIndex
        The parameters of the step.
    """

    def __init__(self, index: ParameterIndex) -> None:
        self.index = index
        self._trust = LayoutTrust(index)

    def settle(self, rank: int, parameter: Parameter) -> Settled:
        """Return the ranks that may give what a rank's slice should hold of a parameter.

        Parameters
        ----------
        rank : int
            Whose slice it is.
        parameter : Parameter
            As that slice lists it.
        """
        index = self.index
        stage, name = index.stages.of(rank), parameter.name
        local = index.layout(stage, name) is None
        ranks = index.sources(rank, parameter)
        if local and name in index.stages.layouts.get(stage, {}):
            return Settled(region=None, problem="its layout in the strategy file does not fit the slices")
        if local and rank not in ranks:
            replicas = tuple(one for one in ranks if one in index.facts.groups.of(rank))
            ranks = replicas or ranks  # a rank list claims more than that ranks are of one stage
        if local and len(ranks) == 1 and ranks != (rank,) and not self._is_common(rank, ranks[0], parameter):
            why = f"no layout states how it is cut, and rank {ranks[0]} alone has it: it may be its own"
            return Settled(region=None, problem=why)
        return self._compare(rank, parameter, index.region(rank, parameter), ranks, local=local)

    def _is_common(self, rank: int, source: int, parameter: Parameter) -> bool:
        """Whether a parameter without layout is one that both ranks have alike, such as a learning rate."""
        listed = source in self.index.facts.groups.of(rank)
        return listed or not parameter.shape or self.index.facts.tolerance.covers(parameter.name)

    def why_outvoted(self, rank: int, wanted: Iterable[tuple[Parameter, Settled]]) -> str | None:
        """Return a reason to distrust the majorities that settled parts of a slice; see `LayoutTrust`."""
        settled = (
            (parameter, part.ranks[0])
            for parameter, part in wanted
            if part.ranks and part.region is not None and not part.tolerated
        )
        return self._trust.why_outvoted(rank, settled)

    def _compare(
        self, rank: int, parameter: Parameter, region: Box | None, ranks: tuple[int, ...], *, local: bool
    ) -> Settled:
        """Compare the sources' contents; a majority wins, and so does the only side with a proven manifest."""
        index, name = self.index, parameter.name
        if rank in ranks:  # good in the rank's own damaged slice
            return Settled(region=region, ranks=(rank,))
        if not index.are_read:
            return Settled(region=region, ranks=ranks)
        sides: dict[str, list[int]] = defaultdict(list)
        for other in ranks:
            digest = index.digest(other, name)
            if digest is not None:
                sides[digest].append(other)
        if len(sides) < 2:
            doubt = self._trust.why_not(rank, name) if ranks else None
            if doubt is not None:
                return Settled(region=region, problem=doubt, disputed=True)
            return Settled(region=region, ranks=ranks)
        if index.facts.tolerance.covers(name):
            return Settled(region=region, ranks=ranks, tolerated=True)
        ballots = [
            Ballot(one.file, one.digests)
            for side in sides.values()
            for other in side
            if (one := index.slices[other]).digests is not None
        ]
        vote = hold_vote([ballot for ballot in ballots if ballot.digests is not None], index.facts.tolerance, (name,))
        proven = any(ballot.proven for ballot in ballots)
        winners = tuple(other for other in ranks if index.slices[other].path in vote.winners)
        if vote.disagreement is None and (not local or proven):
            return Settled(region=region, ranks=winners)
        if local:  # without a layout it is the same everywhere or each rank's own; a majority does not show which
            return Settled(region=region, problem="it differs from rank to rank, and only the rank itself had its own")
        parts = " and ".join(f"rank {side[0]}" for side in list(sides.values())[:2])
        problem = f"{parts} hold different contents, and nothing settles who is right"
        return Settled(region=region, problem=problem, disputed=True)
