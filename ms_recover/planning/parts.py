"""Who holds which part of which parameter at one step, parameter by parameter."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from ms_recover.model.actions import FileState, Replica
from ms_recover.model.inventory import SliceFile
from ms_recover.model.slices import Parameter
from ms_recover.planning.doubts import Doubts
from ms_recover.planning.holdings import Holdings
from ms_recover.planning.redundancy.regions import Box
from ms_recover.planning.situation import Situation


@dataclass(frozen=True, slots=True)
class Part:
    """Ranks that hold the same region of a parameter.

    Parameters
    ----------
    region : Box or None
        Of the global tensor; None where no layout tells, and every rank of the stage holds all of it.
    ranks : tuple of int
        Ranks whose slices give it, ascending; at most `MOST_COMPARED`.
    problem : str or None
        Why it cannot be taken from anyone.
    disputed : bool
        It is held, but the holders differ and nothing says who is right.
    tolerated : bool
        The holders differ, as they may.
    """

    region: Box | None
    ranks: tuple[int, ...]
    problem: str | None = None
    disputed: bool = False
    tolerated: bool = False


def replica_of(situation: Situation, file: SliceFile) -> Replica:
    """Return a slice as something to take bytes from."""
    read = situation.contents.digests.get(file.path)
    digests = file.manifest.digests if file.manifest is not None else read
    return Replica(file.rank, file.path, FileState(file.size, file.mtime_ns), digests.file if digests else None)


class Parts(Holdings):
    """Answer who holds a parameter's parts, and who of them is believed."""

    @cached_property
    def _doubts(self) -> Doubts:
        return Doubts(self)

    def part(self, rank: int, parameter: Parameter) -> Part:
        """Return who holds what a rank's slice should hold of a parameter.

        Parameters
        ----------
        rank : int
            Whose slice it is.
        parameter : Parameter
            As that slice lists it.
        """
        stage, name = self.stages.of(rank), parameter.name
        local = self.layout(stage, name) is None
        ranks = self.holders(rank, parameter)
        if local and name in self.stages.layouts.get(stage, {}):
            return Part(None, (), "its layout in the strategy file does not fit the slices")
        if local and len(ranks) == 1 and ranks != (rank,) and not self._is_common(parameter):
            return Part(None, (), f"no layout tells how it is cut, and rank {ranks[0]} alone has it: it may be its own")
        return self._settle(rank, parameter, self.region(rank, parameter), ranks, local=local)

    def _is_common(self, parameter: Parameter) -> bool:
        """Whether a parameter without layout is of a kind that all ranks have alike, such as a learning rate."""
        return not parameter.shape or self.situation.tolerance.covers(parameter.name)

    def outvoted(self, rank: int, wanted: Iterable[tuple[Parameter, Part]]) -> str | None:
        """Return why parts of a rank's slice that majorities settled are not believed; see `Doubts.outvoted`."""
        settled = (
            (parameter, part.ranks[0])
            for parameter, part in wanted
            if part.ranks and part.region is not None and not part.tolerated
        )
        return self._doubts.outvoted(rank, settled)

    def _settle(
        self, rank: int, parameter: Parameter, region: Box | None, ranks: tuple[int, ...], *, local: bool
    ) -> Part:
        """Compare holders' contents; a majority wins, and a side of which alone a manifest speaks."""
        if rank in ranks:  # salvaged from the rank's own damaged slice, by its manifest
            return Part(region, (rank,))
        if not self.are_read:
            return Part(region, ranks)
        sides: dict[str, list[int]] = defaultdict(list)
        unknown: list[int] = []
        for other in ranks:
            digest = self.digest(other, parameter.name)
            (unknown if digest is None else sides[digest]).append(other)
        if len(sides) < 2:
            doubt = self._doubts.why(rank, parameter.name) if ranks else None
            return Part(region, (), doubt, disputed=True) if doubt is not None else Part(region, ranks)
        if self.situation.tolerance.covers(parameter.name):
            return Part(region, ranks, tolerated=True)
        proven = [side for side in sides.values() if any(self.files[other].manifest for other in side)]
        best = max(sides.values(), key=len)
        if len(proven) == 1:
            return Part(region, tuple(proven[0]))
        if local:  # what no layout tells of is the same everywhere or each rank's own; a majority does not tell
            return Part(region, (), "it differs from rank to rank, and only the rank itself had its own")
        if 2 * len(best) > len(ranks) - len(unknown):
            return Part(region, tuple(best))
        parts = " and ".join(f"rank {side[0]}" for side in list(sides.values())[:2])
        problem = f"{parts} hold different contents, and nothing says who is right"
        return Part(region, (), problem, disputed=True)
