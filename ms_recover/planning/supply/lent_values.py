"""Values of other ranks in a slice, of parameters of which each rank has its own; and what a new slice lacks."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from fnmatch import fnmatchcase

from ms_recover.model.actions import CopyAction
from ms_recover.model.plan import Action, StepAssessment
from ms_recover.model.rank_local import RESUME_CHOICE, borrowed_text, own_values
from ms_recover.model.steps import Step
from ms_recover.model.texts import list_some
from ms_recover.planning.judging.judgement import Comparison
from ms_recover.planning.tree.facts import Facts, SliceFacts

_MOST_NAMED = 8
_NO_RECORD = "; taken for rank-local without a record; if they are no rank's own, a device or its memory is faulty"


def borrowed_from(source: SliceFacts, differing: Iterable[str]) -> tuple[str, ...]:
    """Return the parameters of a source that are its own: those in which replicas differ, and rank-local ones."""
    own = source.rank_local.union(differing)
    return tuple(one.name for one in source.listed if one.name in own)


def text_of_kept(one: SliceFacts) -> str:
    """Return a clause about the values of other ranks in a slice that was recovered earlier; empty without any."""
    if one.manifest is None or not one.manifest.provenance.borrowed:
        return ""
    provenance = one.manifest.provenance
    return borrowed_text(provenance.borrowed, [source.rank for source in provenance.sources if source.rank is not None])


def lost_values(facts: Facts, assessment: StepAssessment, rank: int) -> tuple[str, ...]:
    """Return the rank-local parameters of which a rank's slice has, or is to get, the values of another rank, sorted.

    Those that manifests record and no replica can stand in for; parameters that the operator tolerates are none.
    """
    return _lost(
        facts, assessment.step, [name for one, names, _ in _lent(facts, assessment) if one == rank for name in names]
    )


def name_lent_values(facts: Facts, assessment: StepAssessment) -> list[str]:
    """Name the ranks whose slices have, or are to get, values of other ranks, and the choice that a resume asks for."""
    lent = list(_lent(facts, assessment))
    texts = [f"rank {rank}: {text}" for rank, _, text in lent[:_MOST_NAMED]]
    texts += [f"{len(lent) - _MOST_NAMED} more ranks have values of others"] if len(lent) > _MOST_NAMED else []
    lost = _lost(facts, assessment.step, {name for _, names, _ in lent for name in names})
    shown = (why_not_shown(facts, assessment, action.rank) for action in assessment.actions)
    unshown = [text for text in shown if text is not None]
    texts += unshown[:_MOST_NAMED]
    texts += [f"so it is with {len(unshown) - _MOST_NAMED} more ranks"] if len(unshown) > _MOST_NAMED else []
    return [*texts, *_name_seen(facts, assessment.step), *([RESUME_CHOICE] if lost else [])]


def why_not_shown(facts: Facts, assessment: StepAssessment, rank: int) -> str | None:
    """Return that nothing shows whether values that a rank gets from another one were its own; None where it is so."""
    action = next((action for action in assessment.actions if action.rank == rank), None)
    if action is None or action.borrowed:
        return None
    lenders = _source_ranks(action)
    lending = [slice_ for lender in lenders for slice_ in facts.at(assessment.step, lender) if rank in slice_.group]
    if all(slice_.seen_local.compared for slice_ in lending):
        return None
    return (
        f"rank {rank}: its values are those of rank {list_some(lenders)}, and nothing shows whether some were its own: "
        "no manifest records a comparison of the ranks, and no step has slices of two of them"
    )


def _name_seen(facts: Facts, step: Step) -> list[str]:
    """Name the parameters that manifests show as rank-local, where none of the step records it."""
    held = facts.counted_at(step)
    recorded = frozenset[str]().union(*(one.recorded_local for one in held))
    shown = {one.seen_local for one in held}
    seen = [replace(one, names=_of_choice(facts, own_values(one.names - recorded))) for one in shown]
    return sorted(f"{one}{_NO_RECORD}" for one in seen if one.names)


def _lost(facts: Facts, step: Step, names: Collection[str]) -> tuple[str, ...]:
    if not names:
        return ()
    recorded = frozenset[str]().union(*(one.rank_local for one in facts.counted_at(step)))
    return tuple(sorted(_of_choice(facts, (name for name in own_values(names) if name in recorded))))


def _of_choice(facts: Facts, names: Iterable[str]) -> frozenset[str]:
    """Return the parameters that the operator does not tolerate."""
    chosen = facts.options.tolerate
    return frozenset(name for name in names if not any(fnmatchcase(name, pattern) for pattern in chosen))


def _lent(facts: Facts, assessment: StepAssessment) -> Iterator[tuple[int, tuple[str, ...], str]]:
    """Yield the ranks with values of others, the parameters, and a clause about them."""
    actions = {action.rank: action for action in assessment.actions}
    for verdict in assessment.ranks:
        action = actions.get(verdict.rank)
        if action is not None and action.borrowed:
            yield verdict.rank, action.borrowed, borrowed_text(action.borrowed, action.lenders)
        kept = (slice_ for slice_ in facts.at(assessment.step, verdict.rank) if slice_.path == verdict.path)
        slice_ = next(kept, None) if verdict.verdict == "keep" else None
        if slice_ is not None and slice_.manifest is not None and (text := text_of_kept(slice_)):
            yield verdict.rank, slice_.manifest.provenance.borrowed, text


def name_guessed(compared: Comparison, assessment: StepAssessment) -> list[str]:
    """Say where slices that a plan writes may lack something that nothing names any more."""
    step, doubt = assessment.step, compared.structure.doubtful.get(assessment.step)
    if doubt is not None and assessment.actions:
        text = f"step {step}: {doubt}; if remove_redundancy=True dealt it out, it is lost, and the new slices lack it"
        return [text]
    if not assessment.guessed:
        return []
    ranks = list_some(assessment.guessed, _MOST_NAMED)
    text = (
        f"step {step} was saved with remove_redundancy=True, and nothing states what the lost slice(s) of rank(s) "
        f"{ranks} listed: parameters without a layout that only they had cannot be named, and the new slices lack them"
    )
    return [text]


def name_lost_states(facts: Facts, assessment: StepAssessment) -> list[str]:
    """Name the ranks that random generators and callbacks do not come back for, and what a resume does then."""
    by_path = {slice_.path: slice_ for rank in facts.steps.get(assessment.step, {}).values() for slice_ in rank}
    actions = {action.rank: action for action in assessment.actions}
    wrong, recovered, own = [], [], []
    for verdict in assessment.ranks:
        slice_ = by_path.get(verdict.path or "")
        if verdict.verdict == "keep" and slice_ is not None and slice_.state_problem is not None:
            wrong.append(f"rank {verdict.rank}: {slice_.state_problem}")
        sources = _source_ranks(actions[verdict.rank]) if verdict.rank in actions else ()
        givers = [slice_ for rank in sources for slice_ in facts.at(assessment.step, rank) if _has_state(slice_)]
        differ = {_states_differ(slice_) for slice_ in givers}
        if True in differ:  # another rank's state is not this rank's: that weighs more than an unknown one
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


def _states_differ(one: SliceFacts) -> bool | None:
    """Whether the states of a slice's group differed, None where nobody compared them."""
    training = one.manifest.training if one.manifest is not None else None
    return training.states_differ if training is not None else None


def _has_state(one: SliceFacts) -> bool:
    training = one.manifest.training if one.manifest is not None else None
    return training is not None and training.state_digest is not None and one.state_problem is None
