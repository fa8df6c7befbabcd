"""The plan: the newest step that every rank can be brought to.

The way of data: ``Inventory -> Facts -> Candidate -> Comparison -> StepJudgement -> Supply -> StepAssessment -> Choice
-> Plan``.
Each stage is a pure function of frozen values and returns one; nothing calls back up.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from ms_recover.errors import MissingInputError, OlderStepError
from ms_recover.file_names import STRATEGY_NAME, ranks_in_folders, strategy_name
from ms_recover.model.inventory import Note, StrategyFile
from ms_recover.model.plan import (
    Action,
    DocumentWrite,
    GroupWrite,
    Plan,
    RejectedStep,
    StepAssessment,
    StrategyWrite,
    texts_of_passed_over,
)
from ms_recover.model.report import JudgedStep
from ms_recover.model.steps import Step
from ms_recover.model.texts import list_some, name_ranks
from ms_recover.planning.choice import Assess, AssessedPart, AssessedStep, Choice, Judged, assess_candidate
from ms_recover.planning.judging.equal_contents import equal_ranks, ranks_without_claim
from ms_recover.planning.judging.judge import Parts
from ms_recover.planning.judging.judgement import Comparison
from ms_recover.planning.supply.lent_values import name_guessed, name_lent_values, name_lost_states
from ms_recover.planning.supply.target_path import left_beside
from ms_recover.planning.tree.candidates import (
    candidate_at,
    runs_of,
    saved_as,
    text_of_others_in,
    why_older,
    why_unhealthy_at,
)
from ms_recover.planning.tree.facts import NAN_EVERYWHERE, Facts
from ms_recover.planning.tree.positions import Saved
from ms_recover.planning.tree.reruns import given_up_slices, later_reruns
from ms_recover.planning.tree.resume_records import plan_meta_files, why_names_differ
from ms_recover.planning.tree.runs import Run, why_alone

if TYPE_CHECKING:
    from ms_recover.model.explanation import Explanation


_NO_STEP = Step(0, 0)


@dataclass(frozen=True, kw_only=True)
class Planned:
    """A plan, and what it was made from: the tree, and the step that was chosen, with each of its parts."""

    plan: Plan
    tree: Parts
    step: AssessedStep

    @property
    def compared(self) -> Comparison:
        """The slices of the first part, that of model files, compared."""
        return self.step.parts[0].compared

    @property
    def facts(self) -> Facts:
        """The facts about the first part."""
        return self.compared.facts


def plan_choice(tree: Parts, choice: Choice[AssessedStep]) -> Planned:
    """Return the plan for the step that was chosen, or one without actions that shows why there is none.

    Each part of the step is planned for itself.

    Raises
    ------
    MissingInputError
        When nothing is known of any rank at the step.
    """
    parts = choice.shown.value.parts
    if not parts:
        raise MissingInputError(
            f"{tree.facts.inventory.root}: no iteration holds a file of a rank, and nothing states what they held"
        )
    plans = [_plan_part(tree, part, choice) for part in parts]
    return Planned(plan=_join(tree, plans, choice), tree=tree, step=choice.shown.value)


def _plan_part(tree: Parts, part: AssessedPart, choice: Choice[AssessedStep]) -> Plan:
    facts, step, rejected = part.compared.facts, part.assessment.step, choice.rejected
    if choice.found and facts.options.step is None:
        rejected = (*rejected, *later_reruns(facts, saved_as(facts, step, part.run), part.run))
    return make_plan(part.compared, part.assessment if choice.found else None, part.assessment, part.run, rejected)


def _join(tree: Parts, plans: Sequence[Plan], choice: Choice[AssessedStep]) -> Plan:
    """Return the plans of the parts of a step as one, with the documents that list the files of its ranks."""
    inventory, shown = tree.facts.inventory, choice.shown.value
    documents: tuple[DocumentWrite, ...] = ()
    warnings: list[str] = []
    if choice.found and inventory.iterations:
        from ms_recover.planning.plan.documents import plan_documents  # which other trees need not load

        chosen = tree.facts.options.step is not None
        documents, warnings = plan_documents(inventory, choice.shown.step, chosen=chosen)
    notes = dict.fromkeys([*inventory.notes, *(note for plan in plans for note in plan.notes)])
    return replace(
        plans[0],
        world_size=max(plan.world_size for plan in plans),
        actions=tuple(sorted((action for plan in plans for action in plan.actions), key=lambda action: action.rank)),
        set_aside=tuple(given_up for plan in plans for given_up in plan.set_aside),
        ranks=shown.ranks,
        notes=tuple(sorted(notes, key=lambda note: (note.path, note.reason))),
        run_id=shown.run_id,
        disagreements=tuple(dict.fromkeys(text for plan in plans for text in plan.disagreements)),
        partials=tuple(action for plan in plans for action in plan.partials),
        warnings=(*dict.fromkeys(text for plan in plans for text in plan.warnings), *warnings),
        documents=documents,
    )


def make_plan(
    compared: Comparison,
    chosen: StepAssessment | None,
    shown: StepAssessment,
    run: Run,
    rejected: tuple[RejectedStep, ...] = (),
) -> Plan:
    """Return the plan for the step that was found, as one of a run, or one without actions that shows another."""
    facts = compared.facts
    actions = chosen.actions if chosen else ()
    lists = _group_writes(facts, chosen)
    return Plan(
        root=facts.inventory.root,
        world_size=facts.world.ranks,
        world_size_from=facts.world.source,
        step=chosen.step if chosen else None,
        actions=actions,
        group_files=lists,
        ranks=shown.ranks,
        rejected_steps=rejected,
        notes=_notes(facts, actions),
        run_id=shown.run_id,
        disagreements=shown.disagreements,
        partials=shown.partials if chosen is None else (),
        considered=shown.step,
        world_size_guessed=facts.world.guessed,
        meta_files=plan_meta_files(facts.inventory.meta_files, chosen.ranks, chosen.step) if chosen else (),
        strategy_files=plan_strategy_files(facts, actions, lists),
        set_aside=given_up_slices(facts, saved_as(facts, chosen.step, run), chosen.ranks) if chosen else (),
        warnings=_warnings(compared, chosen, run, rejected),
        cumulative_step=run.trained if chosen else None,
        hints=_hints(facts, chosen, shown, rejected),
    )


def _hints(
    facts: Facts, chosen: StepAssessment | None, shown: StepAssessment, rejected: Sequence[RejectedStep]
) -> tuple[str, ...]:
    """Return ranks that hold equal bytes, and where a rank has no source the evidence that was seen and not used."""
    seen = hints_for(facts) if any(step.ranks for step in rejected) else ()
    lost = None if shown.disagreements else ranks_without_claim(facts, chosen is not None, rejected)
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
    run = runs_of(compared.facts, assessment.step)[0]
    plan = make_plan(compared, assessment, assessment, run)
    return replace(plan, actions=tuple(action for action in plan.actions if action.rank == rank), set_aside=())


def _warnings(
    compared: Comparison, chosen: StepAssessment | None, run: Run, rejected: Sequence[RejectedStep]
) -> tuple[str, ...]:
    facts = compared.facts
    texts = [
        *filter(None, [text_of_others_in(facts)]),
        *texts_of_passed_over(step for step in rejected if step.another_run),
    ]
    if facts.lineage is not None:
        texts += facts.lineage.set_aside_texts(chosen.step if chosen is not None else _NO_STEP)
    texts += [other.text for other in facts.inventory.other_sets if not other.kind]
    # So far of the tree; the rest is about the step that is taken.
    if chosen is None:
        return tuple(texts)
    saved = saved_as(facts, chosen.step, run)
    texts += _other_runs(facts, chosen, saved)
    diverged = sorted({slice_.rank for slice_ in facts.counted_at(chosen.step) if slice_.is_nan})
    if diverged:
        texts.append(
            f"step {chosen.step}: {NAN_EVERYWHERE} in the slices of {name_ranks(diverged)}: training had diverged "
            "by then; recover-ckpt history --read shows since when, --step takes an older step"
        )
    if (unhealthy := why_unhealthy_at(facts, saved)) is not None:
        texts.append(f"step {chosen.step} is {unhealthy}")
    if differ := why_names_differ(facts.inventory.meta_files, chosen.ranks, chosen.step):
        texts.append(differ)
    texts += [
        *chosen.kept,
        *name_guessed(compared, chosen),
        *name_lent_values(facts, chosen),
        *name_lost_states(facts, chosen),
    ]
    return (*texts, *filter(None, (_why_not_last(facts, chosen),)))


def _other_runs(facts: Facts, chosen: StepAssessment, saved: Saved) -> list[str]:
    """Return a warning for each run that is passed over at the step that is taken, where no manifest tells them apart.

    Another one where a single rank has the run that is taken, and nothing but structure proves it.
    """
    taken = {rank.path for rank in chosen.ranks if rank.verdict == "keep" and rank.path is not None}
    taken |= {replica.path for action in chosen.actions for replica in action.replicas}
    texts = []
    if facts.lineage is None:
        files = facts.experiments.own(facts.files_at(chosen.step, saved))
        texts += facts.older_runs.others_at(chosen.step, files, taken)
    proven = any(rank.evidence in ("manifest", "vote") for rank in chosen.ranks)
    alone = why_alone((slice_.file for slice_ in facts.counted), taken) if not proven else None
    return [*texts, *([alone] if alone is not None else [])]


def _why_not_last(facts: Facts, chosen: StepAssessment) -> str | None:
    if facts.lineage is None and facts.older_runs.chosen is None:
        return facts.older_runs.why_not_last(chosen.step, chosen.run_id)
    why = why_older(facts, chosen.step) if chosen.step == facts.options.step else None
    return f"step {chosen.step} is not of the present run: {why}" if why is not None else None


def _group_writes(facts: Facts, chosen: StepAssessment | None) -> tuple[GroupWrite, ...]:
    """Give ranks their lists back where their peers have theirs beside their slices.

    A rank that is alone in its group needs none.
    """
    groups = facts.groups
    have = {file.rank for file in facts.inventory.group_files if file.place is not None and file.info is not None}
    places = {file.rank: file.place for file in facts.inventory.group_files if file.place is not None}
    writes = []
    have.update(groups.contested)  # nothing shows that the list is right
    for rank in (verdict.rank for verdict in chosen.ranks if verdict.rank not in have) if chosen else ():
        peers = [peer for peer in groups.of(rank) if places.get(peer) is not None]
        place = places[peers[0]] if peers else None
        if place is not None and place.names_rank and len(groups.of(rank)) > 1:
            writes.append(GroupWrite(rank, place.of(rank), groups.of(rank)))
    return tuple(writes)


def _notes(facts: Facts, actions: Sequence[Action]) -> tuple[Note, ...]:
    notes = [Note(file.path, file.problem) for file in facts.inventory.group_files if file.problem is not None]
    if facts.groups.contested and facts.stages.contradicts is not None:
        text = "nothing shows which is right, so that only ranks which both call the same lend each other slices"
        notes.append(Note(facts.stages.contradicts, f"{facts.stages.problem}; {text}"))
    elif any(len(action.group) > 1 for action in actions) and facts.stages.contradicts is not None:
        notes.append(Note(facts.stages.contradicts, f"{facts.stages.problem}; the rank lists are used"))
    for action in actions:
        for path in left_beside(facts, action.rank, action.target):
            text = f"stays as it is beside {action.target}, which is of the format that the rest of its slice is in"
            notes.append(Note(path, text))
    for step, ranks in facts.steps.items():
        for rank, slices in ranks.items():
            for files in facts.positions.apart([slice_.file for slice_ in slices]) if len(slices) > 1 else ():
                for alike in facts.names.split(files):
                    if len(alike) > 1:
                        paths = list_some(file.path for file in alike)
                        text = f"rank {rank} has {len(alike)} slices for step {step}: {paths}"
                        notes.append(Note(alike[0].path, text))
    return tuple(sorted((*facts.inventory.notes, *facts.notes, *notes), key=lambda note: (note.path, note.reason)))


_HOW = (
    "--strategy 'PATH/ckpt_strategy_rank_{rank}.ckpt' (MindFormers writes them to output/strategy), or "
    "--group-info 'PATH/group_info.pb'"
)


def hints_for(facts: Facts) -> tuple[str, ...]:
    """Return the hints, one for each option; where no evidence was used or seen, which options take some."""
    inventory = facts.inventory
    hints = []
    for seen in inventory.seen:
        files = f"{seen.count} files such as {seen.example}" if seen.count > 1 else seen.example
        hints.append(f"{files} may state which ranks hold the same: add {seen.option}")
    known = any(file.info is not None for file in inventory.group_files) or facts.stages.layouts
    if not hints and not known:
        hints.append(f"no usable rank list or strategy file was found: if there are any, name them with {_HOW}")
    return tuple(hints)


def plan_strategy_files(
    facts: Facts, actions: Iterable[Action], lists: Iterable[GroupWrite]
) -> tuple[StrategyWrite, ...]:
    """Return a write for each rank that gets a slice or a rank list, and has no strategy file where peers have theirs.

    MindSpore writes the same for all ranks of a stage. The files that say what most of the stage's do are sources.
    """
    files = sorted(facts.inventory.strategy_files, key=lambda file: file.path)
    have = {file.path for file in files} | {note.path for note in facts.inventory.notes}  # what cannot be read stays
    folders = {file.rank: posixpath.dirname(file.target) for file in (*lists, *actions)}
    writes = []
    for rank, folder in sorted(folders.items()):
        lenders = ((file, _target_like(file, rank, folder)) for file in files if _may_lend(facts, file, rank))
        lent = next(((file, path) for file, path in lenders if path is not None), None)
        if lent is not None and lent[1] not in have:
            source, target = lent
            writes.append(StrategyWrite(rank, target, source.rank, source.path, source.digest))
    return tuple(writes)


def _target_like(source: StrategyFile, rank: int, folder: str) -> str | None:
    """Return where a rank has its strategy file if another has it there: beside its slice, or in one folder of all."""
    place, name = posixpath.split(source.path)
    own = strategy_name(name, rank)
    beside = own == STRATEGY_NAME or bool(ranks_in_folders(place.split("/")))
    if own is None or (beside and not folder):
        return None
    return posixpath.join(folder if beside else place, own)


def _may_lend(facts: Facts, file: StrategyFile, rank: int) -> bool:
    """Whether a file lies in another rank's directory, and says what is known of the rank's stage."""
    stages = facts.stages
    stage = stages.of(rank)
    return (
        file.rank != rank
        and not posixpath.isabs(file.path)
        and stages.of(file.rank) == stage
        and file.digest in stages.digests.get(stage, ())
    )


def judge_every_step(planned: Planned, most: int, assess: Assess | None = None) -> tuple[JudgedStep, ...]:
    """Return the verdict of each rank at the newest `most` steps of a planned tree, newest first.

    Those that a plan passes over are judged as well; what was not read for the plan is judged by headers and manifests.
    `assess` is `assess_candidate` of the tree, or what remembers its answers.
    """
    facts, assess = planned.tree.facts, assess or partial(assess_candidate, planned.tree)
    return tuple(_judged(assess(candidate_at(facts, saved.step, saved))) for saved in facts.saved[:most])


def judge_step_of(planned: Planned, step: Step) -> JudgedStep:
    """Return the verdict of each rank at a step of a planned tree, as `judge_every_step` does."""
    return _judged(assess_candidate(planned.tree, candidate_at(planned.tree.facts, step)))


def _judged(judged: Judged[AssessedStep]) -> JudgedStep:
    assessed = judged.value
    return JudgedStep(step=judged.step, ranks=assessed.ranks, recoverable=judged.why is None, run_id=assessed.run_id)


def number_groups(planned: Planned) -> tuple[int, ...]:
    """Return for each rank the number of its group, in the order of first ranks; by lists, else by layouts."""
    groups, families = planned.facts.groups, planned.facts.stages.families
    numbers: dict[tuple[int, ...], int] = {}
    alike = (
        groups.of(rank) if groups.knows(rank) else families.get(rank, (rank,))
        for rank in range(planned.plan.world_size)
    )
    return tuple(numbers.setdefault(ranks, len(numbers)) for ranks in alike)
