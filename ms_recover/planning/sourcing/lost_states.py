"""State files that a recovered tree lacks: what lies beside a slice, and is no part of it."""

from __future__ import annotations

from ms_recover.model.actions import CopyAction
from ms_recover.model.plan import Action, StepAssessment
from ms_recover.model.texts import list_some
from ms_recover.planning.facts import Facts, SliceFacts

_MOST_NAMED = 8


def name_lost_states(facts: Facts, assessment: StepAssessment) -> list[str]:
    """Name the ranks that random generators and callbacks do not come back for, and what a resume does then."""
    held = {one.path: one for rank in facts.steps.get(assessment.step, {}).values() for one in rank}
    actions = {action.rank: action for action in assessment.actions}
    wrong, recovered, own = [], [], []
    for verdict in assessment.ranks:
        one = held.get(verdict.path or "")
        if verdict.verdict == "keep" and one is not None and one.state_problem is not None:
            wrong.append(f"rank {verdict.rank}: {one.state_problem}")
        sources = _source_ranks(actions[verdict.rank]) if verdict.rank in actions else ()
        givers = [one for rank in sources for one in facts.at(assessment.step, rank) if _has_state(one)]
        differ = {_differ(one) for one in givers}
        if True in differ:
            own.append(verdict.rank)
        elif None in differ:
            recovered.append(verdict.rank)
    texts = []
    if wrong:
        texts.append(
            f"state files are wrong ({list_some(wrong, _MOST_NAMED, separator='; ')}): training resumes with these "
            "slices, but random generators and callbacks begin anew"
        )
    if recovered:
        texts.append(
            f"the state files of rank(s) {list_some(recovered, _MOST_NAMED)} are lost with their slices: training "
            "resumes with the random generators and callbacks of the ranks that the slices come from, where their "
            "files are in reach, else these begin anew; it says which"
        )
    if own:
        texts.append(
            f"the state files of rank(s) {list_some(own, _MOST_NAMED)} are lost with their slices, and differ from "
            "those of other ranks in random generators, callbacks or values of the program: unless a rank's own state "
            "file is still there, training resumes one step back, where every rank has its own; rank_local='peer' "
            "resumes at this step with another rank's"
        )
    return texts


def _source_ranks(action: Action) -> tuple[int, ...]:
    return (action.source_rank,) if isinstance(action, CopyAction) else action.source_ranks


def _differ(one: SliceFacts) -> bool | None:
    """Whether the states of a slice's group differed, None where nobody compared them."""
    training = one.manifest.training if one.manifest is not None else None
    return training.states_differ if training is not None else None


def _has_state(one: SliceFacts) -> bool:
    training = one.manifest.training if one.manifest is not None else None
    return training is not None and training.state_digest is not None and one.state_problem is None
