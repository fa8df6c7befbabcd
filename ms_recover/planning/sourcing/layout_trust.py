"""Decide whether a strategy file or a majority can be trusted, and say why not."""

from __future__ import annotations

from collections.abc import Iterable

from ms_recover.model.slices import Parameter
from ms_recover.planning.sourcing.parameters import ParameterIndex


class LayoutTrust:
    """Tells whether the layouts of a step's slices are those of their strategy files.

    Parameters
    ----------
    index : ParameterIndex
        The parameters of the step.
    """

    def __init__(self, index: ParameterIndex) -> None:
        self._index = index
        self._doubts: dict[tuple[int, str], str | None] = {}
        self._named: dict[int, bool] = {}

    def why_not(self, rank: int, name: str) -> str | None:
        """Return a reason to distrust the layout of a parameter: usually that ranks it calls replicas differ.

        The strategy file is of another layout then, or slices are damaged; where manifests name it, it is trusted.
        """
        index = self._index
        stage = index.stages.of(rank)
        layout = index.layout(stage, name)
        if layout is None or self._is_named(stage) or not index.are_read or index.facts.tolerance.covers(name):
            return None
        key = (stage, name)
        if key not in self._doubts:
            alike, unlike = 0, []
            for ranks in index.cells_of(stage, name, layout).values():
                digests = {one: index.digest(one, name) for one in ranks if index.find(one, name) is not None}
                known = [one for one, digest in digests.items() if digest is not None]
                odd = next((one for one in known if digests[one] != digests[known[0]]), None)
                if odd is not None:
                    unlike.append((known[0], odd))
                elif len(known) > 1:
                    alike += 1
            text = None
            if len(unlike) > alike:
                one, other = unlike[0]
                text = (
                    f"by the layouts in {index.stages.paths[stage]} ranks {one} and {other} hold the same of it, but "
                    "their contents differ: it is not the strategy file of these slices, or they are damaged"
                )
            self._doubts[key] = text
        return self._doubts[key]

    def why_outvoted(self, rank: int, taken: Iterable[tuple[Parameter, int]]) -> str | None:
        """Return a reason to distrust the votes: if half of the holders lose some vote, the layouts belong elsewhere.

        Parameters
        ----------
        rank : int
            Whose slice is wanted.
        taken : iterable of (Parameter, int)
            Parameters of it that have a layout, and a rank of the side that won each.
        """
        index = self._index
        stage = index.stages.of(rank)
        if self._is_named(stage) or not index.are_read:
            return None
        holders: set[int] = set()
        odd: set[int] = set()
        for parameter, source in taken:
            right = index.digest(source, parameter.name)
            others = index.sources(rank, parameter)
            holders.update(others)
            odd.update(one for one in others if index.digest(one, parameter.name) not in (None, right))
        if not odd or 2 * len(odd) < len(holders):
            return None
        return (
            f"of ranks {sorted(holders)}, which hold the same by the layouts in {index.stages.paths[stage]}, each of "
            f"{sorted(odd)} differs somewhere: it is not the strategy file of these slices, or they are damaged"
        )

    def _is_named(self, stage: int) -> bool:
        """Whether a manifest says that slices of a stage were saved under the strategy file that is used."""
        if stage not in self._named:
            index = self._index
            known = index.stages.digests.get(stage, frozenset())
            manifests = (index.slices[rank].manifest for rank in index.by_stage.get(stage, ()))
            self._named[stage] = any(one is not None and one.strategy_digest in known for one in manifests)
        return self._named[stage]
