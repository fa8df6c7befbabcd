"""The plan: the newest step that every rank can be brought to.

The way of data: ``Inventory -> Facts -> Comparison -> StepJudgement -> StepAssessment -> Plan``. Each stage is a pure
function of frozen values and returns one; nothing calls back up.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ms_recover.errors import MissingInputError, OlderStepError
from ms_recover.file_names import RESHARDED_FOLDER
from ms_recover.model.inventory import Inventory, Note
from ms_recover.model.options import PlanOptions
from ms_recover.model.plan import Action, GroupWrite, Plan, RankVerdict, RejectedStep, StepAssessment
from ms_recover.model.steps import Step
from ms_recover.model.texts import list_some
from ms_recover.planning.facts import Facts, check_kind_of_step, check_rank
from ms_recover.planning.hints import hints_for
from ms_recover.planning.history.make_history import judge_clean, make_history
from ms_recover.planning.judging.equal_contents import equal_ranks, ranks_without_claim
from ms_recover.planning.judging.judge import compare_slices, judge_step
from ms_recover.planning.judging.judgement import Comparison
from ms_recover.planning.lineage import find_run_records, texts_of_aside
from ms_recover.planning.positions import Saved
from ms_recover.planning.reruns import given_up_slices, later_reruns, why_given_up
from ms_recover.planning.resume_records import plan_meta_files, why_names_differ
from ms_recover.planning.runs import Run
from ms_recover.planning.sourcing.choose import choose_sources
from ms_recover.planning.sourcing.lent_values import name_lent_values
from ms_recover.planning.sourcing.lost_names import name_guessed
from ms_recover.planning.sourcing.lost_states import name_lost_states
from ms_recover.planning.sourcing.target_path import left_beside
from ms_recover.planning.strategy_writes import plan_strategy_files

if TYPE_CHECKING:
    from ms_recover.model.explanation import Explanation

_MOST_NAMED = 8
_NO_STEP = Step(0, 0)


@dataclass(frozen=True, kw_only=True)
class Planned:
    """A plan, and what it was made from: the facts about the tree, and what its slices show about each other."""

    plan: Plan
    compared: Comparison
    parts: tuple[Planned, ...] = ()
    """In a tree of iterations, the parts of the planned step, model files first; `compared` is then of the first."""

    @property
    def facts(self) -> Facts:
        """The facts about the tree."""
        return self.compared.facts


def plan_facts(facts: Facts) -> Planned:
    """Find the newest step at which every rank has a sound slice or can get one.

    A step at which replicas differ with nothing to settle who is right ends the search: going back further would hide
    it.

    Raises
    ------
    MissingInputError
        When there is no slice, or none of the requested step.
    UsageError
        When a requested rank is not in the world.
    """
    options, inventory = facts.options, facts.inventory
    for rank in sorted(options.ranks or ()):
        check_rank(rank, facts.world)
    _check_steps(inventory, options)
    compared = compare_slices(facts, all_read=options.quick)
    why_unclean = judge_clean(options, lambda: make_history(facts))
    rejected: list[RejectedStep] = []
    found: StepAssessment | None = None
    shown: StepAssessment | None = None
    chosen: Saved | None = None
    asked = [Saved(step=options.step)] if options.step is not None else facts.saved
    for saved in asked:
        step = saved.step
        older = None if options.step is not None else facts.why_older(step, saved)
        if older is not None:
            rejected.append(RejectedStep(step, older, another_run=True))
            continue
        unfit = None if options.step is not None else facts.why_unhealthy(step, saved) or why_unclean(step)
        if unfit is not None:
            rejected.append(RejectedStep(step, unfit))
            continue
        tried = try_step(compared, step, facts.runs(step, saved))
        found = tried.found
        shown = tried.shown if tried.undecided else shown or tried.shown
        if tried.rejected is not None:
            rejected.append(tried.rejected)
        if found is not None or tried.undecided:
            chosen = saved
            break
    if shown is None and (passed := [one.step for one in rejected if not one.another_run]):
        shown = try_step(compared, passed[0]).shown
    if shown is None:
        aside = facts.lineage.set_aside_texts(_NO_STEP) if facts.lineage is not None else []
        hint = "; ".join(aside) or "name a step with --step"
        raise MissingInputError(f"{inventory.root} holds no slice of the present run; {hint}")
    if found is not None and chosen is not None and options.step is None:
        rejected += later_reruns(facts, chosen)
    plan = make_plan(compared, found, found or shown, tuple(rejected), chosen)
    return Planned(plan=plan, compared=compared)


@dataclass(frozen=True, kw_only=True)
class TriedStep:
    """A step as the best run that can be recovered; without one the assessment to show, and why it is rejected.

    It is `undecided` when replicas differ with nothing to settle who is right. `run` is the run that `shown` is of.
    """

    found: StepAssessment | None
    shown: StepAssessment
    run: Run
    rejected: RejectedStep | None = None
    undecided: bool = False


def try_step(compared: Comparison, step: Step, runs: Sequence[Run] | None = None) -> TriedStep:
    """Assess a step as each of some runs, by default as those that saved it, the best first."""
    tried = _try_runs(compared, step, runs or compared.facts.runs(step))
    options = compared.facts.options
    for run, one in tried:
        if _is_enough(one, options) and not one.disagreements:
            return TriedStep(found=one, shown=one, run=run)
    reasons = [_why_rejected(one, run if len(tried) > 1 else None) for run, one in tried]
    lost = tuple(rank.rank for rank in tried[0][1].ranks if rank.verdict == "unrecoverable")
    rejected = RejectedStep(step, "; ".join(reasons), ranks=lost)
    run, shown = next(((run, one) for run, one in tried if one.disagreements), tried[0])
    return TriedStep(found=None, shown=shown, run=run, rejected=rejected, undecided=bool(shown.disagreements))


def _try_runs(compared: Comparison, step: Step, runs: Sequence[Run]) -> list[tuple[Run, StepAssessment]]:
    """Assess a step as each run that saved it, until one has replicas that differ: no smaller run may hide that."""
    tried = []
    for run in runs:
        tried.append((run, assess_step(compared, step, run)))
        if tried[-1][1].disagreements:
            break
    return tried


def assess_step(compared: Comparison, step: Step, run: Run | None = None) -> StepAssessment:
    """Judge every rank at a step, by default as of the best run, and choose a source for each that needs one."""
    run = run if run is not None else compared.facts.runs(step)[0]
    return choose_sources(compared.facts, judge_step(compared, step, run))


def _check_steps(inventory: Inventory, options: PlanOptions) -> None:
    if not inventory.steps:
        raise MissingInputError(
            f"{inventory.root} holds directories of {len(inventory.ranks)} ranks but no slice: name another folder, "
            "or describe the file names with --pattern"
            + "".join(f"; {text}" for text in texts_of_aside(find_run_records((), inventory.set_aside)))
            + "".join(
                f"; {note.path}: {note.reason}" for note in inventory.notes if note.path.startswith(RESHARDED_FOLDER)
            )
        )
    check_kind_of_step(inventory, options.step)
    if options.step is not None and options.step not in inventory.steps:
        have = ", ".join(str(known) for known in inventory.steps[:_MOST_NAMED])
        raise MissingInputError(f"{inventory.root} holds no slice of step {options.step}; it has {have}")


def make_plan(
    compared: Comparison,
    found: StepAssessment | None,
    shown: StepAssessment,
    rejected: tuple[RejectedStep, ...] = (),
    saved: Saved | None = None,
) -> Plan:
    """Return the plan for the step that was found, or one without actions that shows the ranks of another.

    `saved` has the time of the training at which its slices were saved.
    """
    facts = compared.facts
    actions = found.actions if found else ()
    lists = _group_writes(facts, found)
    return Plan(
        root=facts.inventory.root,
        world_size=facts.world.ranks,
        world_size_from=facts.world.source,
        step=found.step if found else None,
        actions=actions,
        group_files=lists,
        ranks=shown.ranks,
        rejected_steps=rejected,
        notes=_notes(facts, actions),
        run_id=shown.run_id,
        disagreements=shown.disagreements,
        partials=shown.partials if found is None else (),
        considered=shown.step,
        world_size_guessed=facts.world.guessed,
        meta_files=plan_meta_files(facts.inventory.meta_files, found.ranks, found.step) if found else (),
        strategy_files=plan_strategy_files(facts, actions, lists),
        warnings=_warnings(compared, found, rejected, saved),
        cumulative_step=saved.trained if saved is not None and found is not None else None,
        hints=_hints(facts, found, shown, rejected),
    )


def _hints(
    facts: Facts, found: StepAssessment | None, shown: StepAssessment, rejected: Sequence[RejectedStep]
) -> tuple[str, ...]:
    """Return ranks that hold equal bytes, and where a rank has no source the evidence that was seen and not used."""
    seen = hints_for(facts) if any(one.ranks for one in rejected) else ()
    lost = None if shown.disagreements else ranks_without_claim(facts, found is not None, rejected)
    return (*(equal_ranks(facts, lost) if lost is not None else ()), *seen)


def refuse_older_step(plan: Plan, explanation: Explanation | None = None) -> None:
    """Raise OlderStepError when a plan goes back behind a newer step that was given up."""
    if plan.recoverable and plan.not_newest:
        newest = plan.not_newest[0]
        why = f"step {newest.step} {'may be newer' if newest.may_be_newer else 'cannot be recovered'} ({newest.reason})"
        mend = "choose the run" if newest.may_be_newer else "mend the newer step"
        raise OlderStepError(
            f"{plan.root}: {why}, and going back to step {plan.step} is refused: {mend}, or plan without "
            "require_newest",
            plan,
            explanation,
        )


def plan_for_rank(compared: Comparison, assessment: StepAssessment, rank: int) -> Plan:
    """Return the plan that brings one rank alone to an assessed step."""
    plan = make_plan(compared, assessment, assessment, ())
    return replace(plan, actions=tuple(action for action in plan.actions if action.rank == rank))


def _is_enough(assessment: StepAssessment, options: PlanOptions) -> bool:
    wanted = range(len(assessment.ranks)) if options.ranks is None else options.ranks
    return all(assessment.ranks[rank].verdict != "unrecoverable" for rank in wanted)


def _why_rejected(assessment: StepAssessment, run: Run | None) -> str:
    text = why_unrecoverable(assessment.ranks)
    return f"{run.text}: {text}" if run is not None else text


def why_unrecoverable(ranks: Iterable[RankVerdict]) -> str:
    """Return the reasons of the first ranks that cannot be recovered, and which others there are."""
    bad = [rank for rank in ranks if rank.verdict == "unrecoverable"]
    text = "; ".join(f"rank {rank.rank}: {rank.reason}" for rank in bad[:_MOST_NAMED])
    rest = [str(rank.rank) for rank in bad[_MOST_NAMED:]]
    return f"{text}; and {len(rest)} more ranks: {', '.join(rest)}" if rest else text


def _warnings(
    compared: Comparison, found: StepAssessment | None, rejected: Sequence[RejectedStep], saved: Saved | None
) -> tuple[str, ...]:
    facts = compared.facts
    passed_over = [one for one in rejected if one.another_run]
    if facts.lineage is not None:  # the newest step of each other run stands for all
        passed_over = list({one.reason: one for one in reversed(passed_over)}.values())[::-1]
    texts = [
        f"step {one.step} {'may be newer' if one.may_be_newer else 'is passed over'}: {one.reason}"
        for one in passed_over
    ]
    if facts.lineage is not None:
        texts += facts.lineage.set_aside_texts(found.step if found is not None else _NO_STEP)
    texts += [other.text for other in facts.inventory.other_sets if not other.kind]
    if found is None:
        return tuple(texts)
    if (unhealthy := facts.why_unhealthy(found.step)) is not None:
        texts.append(f"step {found.step} is {unhealthy}")
    if differ := why_names_differ(facts.inventory.meta_files, found.ranks, found.step):
        texts.append(differ)
    if saved is not None and (given_up := why_given_up(given_up_slices(facts, saved, found.ranks))):
        texts.append(given_up)
    texts += [*name_guessed(compared, found), *name_lent_values(facts, found), *name_lost_states(facts, found)]
    return (*texts, *filter(None, (_why_not_last(facts, found),)))


def _why_not_last(facts: Facts, found: StepAssessment) -> str | None:
    if facts.lineage is None:
        return facts.older_runs.why_not_last(found.step, found.run_id)
    why = facts.why_older(found.step) if found.step == facts.options.step else None
    return f"step {found.step} is not of the present run: {why}" if why is not None else None


def _group_writes(facts: Facts, found: StepAssessment | None) -> tuple[GroupWrite, ...]:
    """Give ranks their lists back where their peers have theirs beside their slices.

    A rank that is alone in its group needs none.
    """
    groups = facts.groups
    have = {file.rank for file in facts.inventory.group_files if file.place is not None and file.info is not None}
    places = {file.rank: file.place for file in facts.inventory.group_files if file.place is not None}
    writes = []
    for rank in (verdict.rank for verdict in found.ranks if verdict.rank not in have) if found else ():
        peers = [peer for peer in groups.of(rank) if places.get(peer) is not None]
        place = places[peers[0]] if peers else None
        if place is not None and place.names_rank and len(groups.of(rank)) > 1:
            writes.append(GroupWrite(rank, place.of(rank), groups.of(rank)))
    return tuple(writes)


def _notes(facts: Facts, actions: Sequence[Action]) -> tuple[Note, ...]:
    notes = [Note(file.path, file.problem) for file in facts.inventory.group_files if file.problem is not None]
    if any(len(action.group) > 1 for action in actions) and facts.stages.contradicts is not None:
        notes.append(Note(facts.stages.contradicts, f"{facts.stages.problem}; the rank lists are used"))
    for action in actions:
        for path in left_beside(facts, action.rank, action.target):
            text = f"stays as it is beside {action.target}, which is of the format that the rest of its slice is in"
            notes.append(Note(path, text))
    for step, ranks in facts.steps.items():
        for rank, held in ranks.items():
            for files in facts.positions.apart([one.file for one in held]) if len(held) > 1 else ():
                if len(files) > 1:
                    names = list_some(file.path for file in files)
                    notes.append(Note(files[0].path, f"rank {rank} has {len(files)} slices for step {step}: {names}"))
    return tuple(sorted((*facts.inventory.notes, *facts.notes, *notes), key=lambda note: (note.path, note.reason)))
