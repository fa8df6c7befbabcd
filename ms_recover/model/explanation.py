"""Why a slice can or cannot be had, parameter by parameter."""

from __future__ import annotations

from dataclasses import dataclass

from ms_recover.model.compose import MissingRegion
from ms_recover.model.slices import Parameter
from ms_recover.model.steps import Step
from ms_recover.model.units import Extent, Rank, Size


@dataclass(frozen=True, slots=True)
class MissingPart:
    """A part of a parameter that no sound slice holds, and why."""

    region: tuple[Extent, ...]
    bytes: Size
    reason: str


@dataclass(frozen=True, slots=True)
class ExplainedParameter:
    """Who holds one parameter's part, and what was chosen."""

    RECORD = "*parameter region holders chosen missing=missing_parts note"

    parameter: Parameter
    """As the rank's slice lists it."""
    region: tuple[Extent, ...] | None
    """First index and the one behind the last for each dimension of the global tensor; None where no layout states
    and all ranks of the stage hold the same.
    """
    holders: tuple[Rank, ...]
    """Ranks with a sound slice that hold this region, the rank itself among them; at most 64."""
    chosen: tuple[Rank, ...]
    """Ranks it is taken from."""
    missing: tuple[MissingRegion, ...] = ()
    note: str = ""

    @property
    def missing_parts(self) -> tuple[MissingPart, ...]:
        """The regions of `missing`."""
        return tuple(MissingPart(one.region, one.bytes, one.reason) for one in self.missing)


@dataclass(frozen=True, slots=True)
class Explanation:
    """One rank's slice of one step, parameter by parameter."""

    RECORD = "rank step layouts problem parameters"

    rank: Rank
    step: Step
    parameters: tuple[ExplainedParameter, ...] = ()
    """In the order of the slice; empty when `problem` is set."""
    layouts: str | None = None
    """The strategy file with the layouts, relative to the root."""
    problem: str | None = None
    """The reason why there is no explanation by parameter."""
