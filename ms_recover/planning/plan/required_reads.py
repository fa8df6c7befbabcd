"""What must be read before a plan rests on more than structure."""

from __future__ import annotations

from collections.abc import Sequence

from ms_recover.model.actions import CopyAction
from ms_recover.model.inventory import SliceFile
from ms_recover.model.plan import Action, StepAssessment
from ms_recover.planning.choice import AssessedPart, AssessedStep, Choice
from ms_recover.planning.judging.equal_contents import ranks_without_claim, slices_to_compare
from ms_recover.planning.judging.judgement import Comparison
from ms_recover.planning.judging.trials import bare_at, find_layout_trials, find_trials
from ms_recover.planning.tree.facts import Facts


def required_reads(choice: Choice[AssessedStep]) -> tuple[SliceFile, ...]:
    """Return the slices that must be read before a plan rests on more than structure.

    Of the plan's step: slices with a manifest to compare with, those of ranks that are not alone in their group, in a
    tree of iterations also those that share some parameter with another rank, and all where slices are composed by
    layouts, and of one more step what would be composed there by the same layouts, to see whether these are right.
    Where replicas disagree, these ranks' slices of all steps, to find renamed ones; where a source rests on its
    structure alone, those of its group's older steps that have its size. Where a rank has no source because nothing
    says who holds the same, those that show it; where rank lists and layouts contradict each other, those that show
    which are right; where contents may contradict the operator's word, those that decide
    it.
    """
    wanted = (file for part in choice.shown.value.parts for file in _reads_of(part, choice))
    return tuple({file.path: file for file in wanted}.values())


def _reads_of(part: AssessedPart, choice: Choice[AssessedStep]) -> list[SliceFile]:
    assessed, facts = part.assessment, part.compared.facts
    actions = assessed.actions if choice.found else assessed.partials
    undecided = (
        {rank.rank for rank in assessed.ranks if rank.verdict == "unrecoverable"} if assessed.disagreements else set()
    )
    composed = assessed.step if any(action.evidence == "layout" for action in actions) else None
    alone = {rank.rank for rank in assessed.ranks if rank.evidence == "structure"}
    sizes = {
        action.group: action.bytes
        for action in actions
        if isinstance(action, CopyAction)
        and (action.evidence == "structure" or (action.evidence == "operator" and action.source_rank in alone))
    }
    trial = _trial_reads(facts, assessed, actions)
    alike = facts.stages.replicated if facts.kind is None else facts.stages.sharing
    unclaimed = None if assessed.disagreements else ranks_without_claim(facts, choice.found, choice.rejected)
    wanted = [*facts.trials, *part.compared.unread]
    wanted += slices_to_compare(facts, unclaimed) if unclaimed is not None else ()
    # Reading costs the whole file: only one whose contents can change the verdict is asked for.
    for slice_ in facts.counted:
        file = slice_.file
        older = choice.found and file.step < assessed.step and sizes.get(slice_.group) == file.size
        asked = (choice.found and file.step == assessed.step) or file.rank in undecided or older
        replicas = len(slice_.group) > 1 or slice_.rank in alike
        comparable = file.manifest is not None or (replicas and file.encryption is None)
        if file.problem is None and (file.step == composed or (asked and comparable) or slice_.path in trial):
            wanted.append(file)
    return wanted


def required_reads_of_rank(compared: Comparison, assessment: StepAssessment, rank: int) -> tuple[SliceFile, ...]:
    """Return the slices that one rank must read before its own verdict rests on more than structure.

    Its own slice if a manifest describes it; otherwise every source that has no manifest to be checked by meanwhile.
    """
    facts, verdict = compared.facts, assessment.ranks[rank]
    slices = [slice_.file for of_rank in facts.steps.get(assessment.step, {}).values() for slice_ in of_rank]
    if verdict.verdict == "keep":
        return tuple(file for file in slices if file.path == verdict.path and file.manifest is not None)
    if verdict.verdict == "unrecoverable":
        return ()
    action = next(action for action in assessment.actions if action.rank == rank)
    if verdict.verdict == "copy":
        group = facts.groups.of(rank)
        sources = {file.path for file in slices if file.rank in group and file.encryption is None}
    else:
        sources = {replica.path for replica in action.replicas}
    return tuple(file for file in slices if file.path in sources and file.problem is None and file.manifest is None)


def _trial_reads(facts: Facts, assessed: StepAssessment, actions: Sequence[Action]) -> frozenset[str]:
    """Return the slices that show at another step whether what is inferred at this one is right.

    Those of a target and its sources, where layouts compose it: whether it holds there what they would compose; and of
    its stage, where no slices of the step show whether the layouts are right. Where a slice is replaced or passed over
    that nothing proves damaged, all of the step: whether it differs from the others there as well.
    """
    step = assessed.step
    paths: set[str] = set()
    composed: set[int] = set()
    for action in actions:
        if action.evidence == "layout":
            composed.add(facts.stages.of(action.rank))
            needed = {action.rank, *(replica.rank for replica in action.replicas)}
            paths.update(file.path for file in find_trials(facts, step, action.rank, needed))
    shown = {verdict.rank for verdict in assessed.ranks if verdict.state == "ok"}
    paths.update(file.path for file in find_layout_trials(facts, step, composed, shown))
    for verdict in assessed.ranks:
        if verdict.state == "damaged" and not assessed.disagreements and bare_at(facts, step, verdict.rank):
            paths.update(file.path for file in find_trials(facts, step, verdict.rank))
    return frozenset(paths)
