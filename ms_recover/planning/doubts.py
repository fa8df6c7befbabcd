"""Whether layouts are believed, where slices that should hold the same by them do not."""

from __future__ import annotations

from collections.abc import Iterable

from ms_recover.model.slices import Parameter
from ms_recover.planning.holdings import Holdings


class Doubts:
    """Answer why what a strategy file tells, or what a majority holds, is not believed.

    Parameters
    ----------
    holdings : Holdings
        Who holds what.
    """

    def __init__(self, holdings: Holdings) -> None:
        self._holdings = holdings
        self._doubts: dict[tuple[int, str], str | None] = {}
        self._told: dict[int, bool] = {}

    def why(self, rank: int, name: str) -> str | None:
        """Return why a layout is not believed: mostly, ranks that hold the same by it hold different contents.

        That is a strategy file of another layout, or damage; where manifests name the strategy file it is known.
        """
        held = self._holdings
        stage = held.stages.of(rank)
        layout = held.layout(stage, name)
        if layout is None or self._is_told(stage) or not held.are_read or held.situation.tolerance.covers(name):
            return None
        key = (stage, name)
        if key not in self._doubts:
            alike, unlike = 0, []
            for ranks in held.cells_of(stage, layout).values():
                digests = {one: held.digest(one, name) for one in ranks if held.find(one, name) is not None}
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
                    f"by the layouts in {held.stages.paths[stage]} ranks {one} and {other} hold the same of it, and do "
                    "not: it is not the strategy file of these slices, or they are damaged"
                )
            self._doubts[key] = text
        return self._doubts[key]

    def outvoted(self, rank: int, taken: Iterable[tuple[Parameter, int]]) -> str | None:
        """Return why majorities are not believed: who is outvoted over one parameter is in the majority over others.

        A damaged slice or two are outvoted; where half of the holders are, the layouts are of other slices.

        Parameters
        ----------
        rank : int
            Whose slice is wanted.
        taken : iterable of (Parameter, int)
            Parameters of it that a layout tells of, and a rank of the side that is right about each.
        """
        held = self._holdings
        stage = held.stages.of(rank)
        if self._is_told(stage) or not held.are_read:
            return None
        holders: set[int] = set()
        odd: set[int] = set()
        for parameter, giver in taken:
            right = held.digest(giver, parameter.name)
            others = held.holders(rank, parameter)
            holders.update(others)
            odd.update(one for one in others if held.digest(one, parameter.name) not in (None, right))
        if not odd or 2 * len(odd) < len(holders):
            return None
        return (
            f"of ranks {sorted(holders)}, which hold the same by the layouts in {held.stages.paths[stage]}, each of "
            f"{sorted(odd)} holds something else somewhere: it is not the strategy file of these slices, or they are "
            "damaged"
        )

    def _is_told(self, stage: int) -> bool:
        """Whether a manifest says that slices of a stage were saved under the strategy file that is used."""
        if stage not in self._told:
            held = self._holdings
            known = held.stages.digests.get(stage, frozenset())
            manifests = (held.files[rank].manifest for rank in held.by_stage.get(stage, ()))
            self._told[stage] = any(told is not None and told.strategy_digest in known for told in manifests)
        return self._told[stage]
