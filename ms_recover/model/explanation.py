"""Why a slice can or cannot be had, parameter by parameter."""

from __future__ import annotations

from dataclasses import dataclass

from ms_recover.model.compose import MissingRegion
from ms_recover.model.slices import Parameter
from ms_recover.model.steps import Step


@dataclass(frozen=True, slots=True)
class ExplainedParameter:
    """Who holds one parameter's part, and what was chosen.

    Parameters
    ----------
    parameter : Parameter
        As the rank's slice lists it.
    region : tuple of (int, int) or None
        First index and the one behind the last for each dimension of the global tensor; None where no layout tells
        and all ranks of the stage hold the same.
    holders : tuple of int
        Ranks with a sound slice that hold this region, the rank itself among them; at most 64.
    chosen : tuple of int
        Ranks it is taken from.
    missing : tuple of MissingRegion
        What nobody holds.
    note : str
        What else there is to know.
    """

    parameter: Parameter
    region: tuple[tuple[int, int], ...] | None
    holders: tuple[int, ...]
    chosen: tuple[int, ...]
    missing: tuple[MissingRegion, ...] = ()
    note: str = ""


@dataclass(frozen=True, slots=True)
class Explanation:
    """One rank's slice of one step, parameter by parameter.

    Parameters
    ----------
    rank : int
        The rank.
    step : Step
        The step.
    parameters : tuple of ExplainedParameter
        In the order of the slice; empty when `problem` is set.
    layouts : str or None
        The strategy file that tells the layouts, relative to the root.
    problem : str or None
        Why nothing can be told by parameter.
    """

    rank: int
    step: Step
    parameters: tuple[ExplainedParameter, ...] = ()
    layouts: str | None = None
    problem: str | None = None
