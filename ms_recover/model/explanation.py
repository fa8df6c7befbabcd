"""Why a slice can or cannot be had, parameter by parameter."""

from __future__ import annotations

from dataclasses import dataclass

from ms_recover.model.compose import MissingRegion
from ms_recover.model.slices import Parameter
from ms_recover.model.steps import Step


@dataclass(frozen=True, slots=True)
class ExplainedParameter:
    """Who holds one parameter's part, and what was chosen."""

    parameter: Parameter
    """As the rank's slice lists it."""
    region: tuple[tuple[int, int], ...] | None
    """First index and the one behind the last for each dimension of the global tensor; None where no layout states
    and all ranks of the stage hold the same.
    """
    holders: tuple[int, ...]
    """Ranks with a sound slice that hold this region, the rank itself among them; at most 64."""
    chosen: tuple[int, ...]
    """Ranks it is taken from."""
    missing: tuple[MissingRegion, ...] = ()
    note: str = ""


@dataclass(frozen=True, slots=True)
class Explanation:
    """One rank's slice of one step, parameter by parameter."""

    rank: int
    step: Step
    parameters: tuple[ExplainedParameter, ...] = ()
    """In the order of the slice; empty when `problem` is set."""
    layouts: str | None = None
    """The strategy file with the layouts, relative to the root."""
    problem: str | None = None
    """The reason why there is no explanation by parameter."""
