"""Tell for one rank who holds which of its parameters, and put a full slice together for it."""

from __future__ import annotations

from collections import Counter

from ms_recover.model.explanation import ExplainedParameter, Explanation
from ms_recover.model.steps import Step
from ms_recover.planning.assess import sound_slices
from ms_recover.planning.compose import Choice, choose
from ms_recover.planning.expected import NotComposableError, expected_parameters
from ms_recover.planning.parts import Parts
from ms_recover.planning.rebuild import Rebuilt, complete, parts_at
from ms_recover.planning.situation import Situation


def explain_rank(situation: Situation, step: Step, rank: int, run_id: str | None = None) -> Explanation:
    """Say for each parameter of a rank's slice who holds it and whom it would be taken from.

    Parameters
    ----------
    situation : Situation
        What is known.
    step : Step
        The step.
    rank : int
        The rank, whether its slice is there or not.
    run_id : str or None
        The run whose slices count; by default the one with most slices of the step.
    """
    parts = _parts(situation, step, run_id)
    unknown = parts.stages.why_unknown(rank)
    if unknown is not None:
        return Explanation(rank, step, problem=unknown)
    try:
        expected = parts.files[rank].parameters if parts.is_sound(rank) else expected_parameters(parts, rank, step)
    except NotComposableError as error:
        return Explanation(rank, step, problem=str(error))
    if not expected:
        return Explanation(rank, step, problem="its slice is encrypted, so that its parameters are not known")
    choices = choose(parts, rank, expected, Counter())
    items = tuple(_explained(parts, rank, choice) for choice in choices)
    return Explanation(rank, step, items, parts.stages.paths[parts.stages.of(rank)])


def complete_slice(situation: Situation, step: Step, rank: int) -> Rebuilt:
    """Say how a slice with every parameter of a rank's stage can be put together, as ``remove_redundancy`` left it out.

    Parameters
    ----------
    situation, step, rank
        As for `explain_rank`.
    """
    return complete(_parts(situation, step, None), step, rank)


def _parts(situation: Situation, step: Step, run_id: str | None) -> Parts:
    run_id = situation.runs(step)[0] if run_id is None else run_id
    return parts_at(situation, step, sound_slices(situation, step, run_id), run_id)


def _explained(parts: Parts, rank: int, choice: Choice) -> ExplainedParameter:
    parameter, part = choice.parameter, choice.part
    holders = parts.holders(rank, parameter)
    notes = []
    if part.region is None:
        notes.append("no layout: the same on all ranks of the stage")
    if part.tolerated:
        notes.append("holders differ, as they may")
    if part.problem is not None:
        notes.append(part.problem)
    if choice.pieces:
        notes.append("put together from pieces that are cut another way")
    return ExplainedParameter(parameter, part.region, holders, choice.ranks, choice.missing, "; ".join(notes))
