"""Explain for one rank who holds which of its parameters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ms_recover.model.compose import ComposeAction
from ms_recover.model.explanation import ExplainedParameter, Explanation
from ms_recover.model.slices import Parameter
from ms_recover.model.steps import Step
from ms_recover.planning.choice import Judged
from ms_recover.planning.judging.judgement import Comparison
from ms_recover.planning.plan.planner import Planned
from ms_recover.planning.supply.compose import Composition, complete_slice
from ms_recover.planning.supply.expected_parameters import NotComposableError, expected_parameters
from ms_recover.planning.supply.parameters import ParameterIndex
from ms_recover.planning.supply.pieces import Giving, choose_parameters
from ms_recover.planning.supply.supply import Supply, supply_of
from ms_recover.planning.tree.runs import Run
from ms_recover.planning.tree.world_size import check_rank

_UNKNOWN = "unknown"


def explain_planned(planned: Planned, rank: int) -> Explanation:
    """Explain one rank of a plan by the evidence it was made from; errors as for `ms_recover.api.explain`."""
    check_rank(rank, planned.facts.world)
    step = planned.plan.considered
    assert step is not None  # plans of trees are of a step
    return join_explanations([_explain_rank(part.supply, step, rank) for part in planned.step.parts])


def _explain_rank(supply: Supply, step: Step, rank: int) -> Explanation:
    """Return for each parameter of a rank's slice who holds it and what it would be taken from.

    The slice need not be there.
    """
    index = supply.index
    unknown = index.stages.why_unknown(rank)
    if unknown is not None:
        return Explanation(rank, step, problem=unknown)
    try:
        expected = index.slices[rank].listed if index.is_sound(rank) else expected_parameters(index, rank)
    except NotComposableError as error:
        return Explanation(rank, step, problem=str(error))
    if not expected:
        return Explanation(rank, step, problem="its slice is encrypted, so that its parameters are not known")
    choices = choose_parameters(supply, rank, expected, {})
    items = [_explained(index, rank, choice) for choice in choices]
    for gone in () if index.is_sound(rank) else supply.unlisted(rank):
        listed = Parameter(gone.parameter, _UNKNOWN, (), gone.bytes)
        items.append(ExplainedParameter(listed, None, (), (), (gone,), gone.reason))
    return Explanation(rank, step, tuple(items), index.stages.paths[index.stages.of(rank)])


def join_explanations(parts: Sequence[Explanation]) -> Explanation:
    """Return the explanation of a slice that lies in several files, the parts."""
    problems = [part.problem for part in parts if part.problem is not None]
    return replace(
        parts[0],
        parameters=tuple(item for part in parts for item in part.parameters),
        layouts=next((part.layouts for part in parts if part.layouts is not None), None),
        problem="; ".join(dict.fromkeys(problems)) if len(problems) == len(parts) else None,
    )


def find_complete_slice(supply: Supply, rank: int) -> Composition:
    """Return how a slice with every parameter of a rank's stage, as ``remove_redundancy`` leaves none, is composed.

    Where it cannot be, replicas that differ with nothing to settle who is right are a dispute about it. So they are
    where the rank has no slice of its own: what says who holds the same as it may be wrong for it as for them.
    """
    composed = complete_slice(supply, rank)
    differ = next(iter(supply.judgement.disagreements.values()), None)
    if differ is not None and composed.action is not None and rank not in {*supply.sound, *supply.kept}:
        return Composition(reason=differ, dispute=differ)
    return composed if composed.action is not None else replace(composed, dispute=composed.dispute or differ)


def judge_complete(
    parts: Sequence[Comparison], step: Step, run: Run, rank: int, wanted: int
) -> Judged[tuple[ComposeAction, ...]]:
    """Judge how the files of a rank's slice of a step are composed with every parameter, as slices of one run.

    Raises
    ------
    UsageError
        When the rank is not in the world.
    """
    every: list[Composition] = []
    for compared in parts:
        check_rank(rank, compared.facts.world)
        every.append(find_complete_slice(supply_of(compared, step, run), rank))
    actions = tuple(composed.action for composed in every if isinstance(composed.action, ComposeAction))
    lacking = [composed for composed in every if not isinstance(composed.action, ComposeAction)]
    if lacking:  # a file that nobody holds does not hide that replicas of another differ
        reasons = "; ".join(dict.fromkeys(composed.reason for composed in lacking))
        disputed = any(composed.dispute is not None for composed in lacking)
        return Judged(step=step, run=run, value=(), why=reasons, disputed=disputed)
    why = None if len(actions) == wanted else "not all of its files are there"
    return Judged(step=step, run=run, value=actions, why=why)


def _explained(index: ParameterIndex, rank: int, choice: Giving) -> ExplainedParameter:
    parameter, settled = choice.parameter, choice.settled
    notes = []
    if settled.region is None:
        notes.append("no layout: the same on all ranks of the stage")
    if settled.tolerated:
        notes.append("holders differ, as they may")
    if settled.problem is not None:
        notes.append(settled.problem)
    if settled.parts:
        notes.append("composed from pieces that are cut another way")
    holders = index.sources(rank, parameter)
    return ExplainedParameter(parameter, settled.region, holders, choice.ranks, settled.missing, "; ".join(notes))
