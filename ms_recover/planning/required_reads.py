"""What must be read before a plan rests on more than structure."""

from __future__ import annotations

from ms_recover.model.actions import CopyAction
from ms_recover.model.inventory import SliceFile
from ms_recover.model.plan import Plan, StepAssessment
from ms_recover.planning.facts import Facts
from ms_recover.planning.judging.equal_contents import ranks_without_claim, slices_to_compare
from ms_recover.planning.judging.judgement import Comparison
from ms_recover.planning.judging.trials import bare_at, find_layout_trials, find_trials
from ms_recover.planning.planner import Planned


def required_reads(planned: Planned) -> tuple[SliceFile, ...]:
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
    if planned.parts:
        return tuple(file for part in planned.parts for file in required_reads(part))
    plan, facts = planned.plan, planned.facts
    undecided = {rank.rank for rank in plan.ranks if rank.verdict == "unrecoverable"} if plan.disagreements else set()
    by_layout = any(action.evidence == "layout" for action in (*plan.actions, *plan.partials))
    composed = (plan.step or plan.considered) if by_layout else None
    alone = {rank.rank for rank in plan.ranks if rank.evidence == "structure"}
    sizes = {
        action.group: action.bytes
        for action in plan.actions
        if isinstance(action, CopyAction)
        and (action.evidence == "structure" or (action.evidence == "operator" and action.source_rank in alone))
    }
    trial = _trial_reads(facts, plan)
    alike = facts.stages.replicated if facts.inventory.part is None else facts.stages.sharing
    unclaimed = None if plan.disagreements else ranks_without_claim(facts, plan.recoverable, plan.rejected_steps)
    wanted = [*facts.trials, *planned.compared.unread]
    wanted += slices_to_compare(facts, unclaimed) if unclaimed is not None else ()
    for one in facts.counted:
        file = one.file
        older = plan.step is not None and file.step < plan.step and sizes.get(one.group) == file.size
        asked = file.step == plan.step or file.rank in undecided or older
        replicas = len(one.group) > 1 or one.rank in alike
        comparable = file.manifest is not None or (replicas and file.encryption is None)
        if file.problem is None and (file.step == composed or (asked and comparable) or one.path in trial):
            wanted.append(file)
    return tuple({file.path: file for file in wanted}.values())


def required_reads_of_rank(compared: Comparison, assessment: StepAssessment, rank: int) -> tuple[SliceFile, ...]:
    """Return the slices that one rank must read before its own verdict rests on more than structure.

    Its own slice if a manifest describes it; otherwise every source that has no manifest to be checked by meanwhile.
    """
    facts, verdict = compared.facts, assessment.ranks[rank]
    slices = [one.file for held in facts.steps.get(assessment.step, {}).values() for one in held]
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


def _trial_reads(facts: Facts, plan: Plan) -> frozenset[str]:
    """Return the slices that show at another step whether what a plan infers at its own is right.

    Those of a target and its sources, where layouts compose it: whether it holds there what they would compose; and of
    its stage, where no slices of the step show whether the layouts are right. Where
    a slice is replaced or passed over that nothing proves damaged, all of the step: whether it differs from the others
    there as well.
    """
    planned = plan.step or plan.considered
    if planned is None:
        return frozenset()
    found: set[str] = set()
    composed: set[int] = set()
    for action in (*plan.actions, *plan.partials):
        if action.evidence == "layout":
            composed.add(facts.stages.of(action.rank))
            needed = {action.rank, *(replica.rank for replica in action.replicas)}
            found.update(file.path for file in find_trials(facts, planned, action.rank, needed))
    shown = {one.rank for one in plan.ranks if one.state == "ok"}
    found.update(file.path for file in find_layout_trials(facts, planned, composed, shown))
    for one in plan.ranks:
        if one.state == "damaged" and not plan.disagreements and bare_at(facts, planned, one.rank):
            found.update(file.path for file in find_trials(facts, planned, one.rank))
    return frozenset(found)
