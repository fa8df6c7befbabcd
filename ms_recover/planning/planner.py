"""The plan: the newest step that every rank can be brought to."""

from __future__ import annotations

from collections.abc import Collection

from ms_recover.errors import MissingInputError
from ms_recover.model.actions import CopyAction
from ms_recover.model.compose import ComposeAction
from ms_recover.model.contents import NOTHING_READ, Contents
from ms_recover.model.inventory import Inventory, Note, SliceFile
from ms_recover.model.options import DEFAULT_PLAN, PlanOptions
from ms_recover.model.plan import Action, GroupWrite, Plan, RejectedStep, StepAssessment
from ms_recover.planning.assess import assess_step
from ms_recover.planning.redundancy.groups import GroupMap, merge_groups
from ms_recover.planning.situation import Situation, check_rank, understand
from ms_recover.planning.targets import left_beside

_MOST_NAMED = 8


def make_plan(inventory: Inventory, options: PlanOptions = DEFAULT_PLAN, *, contents: Contents = NOTHING_READ) -> Plan:
    """Find the newest step at which every rank has a sound slice or a peer that has one.

    A step at which replicas differ with nothing to say who is right ends the search: going back further would hide it.

    Parameters
    ----------
    inventory : Inventory
        What was found.
    options : PlanOptions
        What the operator decides.
    contents : Contents
        What reading slices gave; slices that were not read count by manifest and structure.

    Returns
    -------
    Plan
        The same for the same input.

    Raises
    ------
    MissingInputError
        When there is no slice, or none of `step`.
    UsageError
        When a lost rank is not in the world, or the world size cannot be.
    ContradictionError
        When the rank lists contradict each other.
    """
    situation = understand(inventory, options, contents)
    step, ranks = options.step, options.ranks
    for rank in ranks or ():
        check_rank(rank, situation.world_size, situation.world_size_from)
    if not inventory.steps:
        raise MissingInputError(
            f"{inventory.root} holds directories of {len(inventory.ranks)} ranks but no slice: name another folder, "
            "or describe the file names with --pattern"
        )
    if step is not None and step not in inventory.steps:
        have = ", ".join(str(known) for known in inventory.steps[:_MOST_NAMED])
        raise MissingInputError(f"{inventory.root} holds no slice of step {step}; it has {have}")
    rejected: list[RejectedStep] = []
    found: StepAssessment | None = None
    first: StepAssessment | None = None
    for candidate in (step,) if step is not None else inventory.steps:
        tried = [assess_step(situation, candidate, run_id) for run_id in situation.runs(candidate)]
        found = next((one for one in tried if _is_enough(one, ranks) and not one.disagreements), None)
        first = first or found or tried[0]
        if found is not None:
            break
        rejected.append(RejectedStep(candidate, "; ".join(_why_rejected(one, len(tried) > 1) for one in tried)))
        undecided = next((one for one in tried if one.disagreements), None)
        if undecided is not None:
            first = undecided
            break
    assert first is not None
    shown = found or first
    actions = found.actions if found else ()
    return Plan(
        root=inventory.root,
        world_size=situation.world_size,
        world_size_from=situation.world_size_from,
        step=found.step if found else None,
        actions=actions,
        group_files=_group_writes(inventory, situation.groups, found),
        ranks=shown.ranks,
        rejected_steps=tuple(rejected),
        notes=_notes(inventory, situation, actions),
        run_id=shown.run_id,
        disagreements=shown.disagreements,
        partials=shown.partials if found is None else (),
        considered=shown.step,
    )


def wanted_contents(inventory: Inventory, plan: Plan, lost: Collection[int] = ()) -> tuple[SliceFile, ...]:
    """Return the slices that must be read before a plan rests on more than structure.

    Parameters
    ----------
    inventory : Inventory
        What was found.
    plan : Plan
        What would be planned by what is known so far.
    lost : collection of int
        Ranks whose slices do not count.

    Returns
    -------
    tuple of SliceFile
        Of the plan's step: slices with a manifest to compare with, and those of ranks that are not alone in their
        group; all of the step where slices are rebuilt by layouts. Where replicas disagree, these ranks' slices
        of all steps, to find out what was renamed; where a source rests on its structure alone, those of its group's
        older steps that have its size.
    """
    groups = merge_groups(inventory.group_files, inventory.slices)
    undecided = {rank.rank for rank in plan.ranks if rank.verdict == "unrecoverable"} if plan.disagreements else set()
    readable = [file for file in inventory.slices if file.rank not in lost and file.problem is None]
    sizes = {
        action.group: action.bytes
        for action in plan.actions
        if isinstance(action, CopyAction) and action.evidence == "structure"
    }
    rebuilt = [action for action in (*plan.actions, *plan.partials) if action.evidence == "layout"]
    givers = {
        source.path
        for action in rebuilt
        for source in (action.sources if isinstance(action, ComposeAction) else (action.replica,))
    }
    steps = {file.step for file in inventory.slices if file.path in givers}
    older = {
        file.path
        for file in readable
        if plan.step is not None and file.step < plan.step and sizes.get(groups.of(file.rank)) == file.size
    }
    return tuple(
        file
        for file in readable
        if file.step in steps
        or (
            (file.step == plan.step or file.rank in undecided or file.path in older)
            and (file.manifest is not None or (len(groups.of(file.rank)) > 1 and file.encryption is None))
        )
    )


def _is_enough(assessment: StepAssessment, ranks: Collection[int] | None) -> bool:
    if ranks is None:
        return assessment.recoverable
    return all(assessment.ranks[rank].verdict != "unrecoverable" for rank in ranks)


def _why_rejected(assessment: StepAssessment, name_run: bool) -> str:
    bad = [rank for rank in assessment.ranks if rank.verdict == "unrecoverable"]
    text = "; ".join(f"rank {rank.rank}: {rank.reason}" for rank in bad[:_MOST_NAMED])
    rest = [str(rank.rank) for rank in bad[_MOST_NAMED:]]
    text = f"{text}; and {len(rest)} more ranks: {', '.join(rest)}" if rest else text
    return f"run {assessment.run_id}: {text}" if name_run else text


def _group_writes(inventory: Inventory, groups: GroupMap, found: StepAssessment | None) -> tuple[GroupWrite, ...]:
    """Give ranks their lists back where their peers have theirs beside their slices.

    A rank that is alone in its group needs none.
    """
    have = {file.rank for file in inventory.group_files if file.place is not None and file.info is not None}
    places = {file.rank: file.place for file in inventory.group_files if file.place is not None}
    writes = []
    for rank in (verdict.rank for verdict in found.ranks if verdict.rank not in have) if found else ():
        peers = [peer for peer in groups.of(rank) if places.get(peer) is not None]
        place = places[peers[0]] if peers else None
        if place is not None and place.names_rank and len(groups.of(rank)) > 1:
            writes.append(GroupWrite(rank, place.of(rank), groups.of(rank)))
    return tuple(writes)


def _notes(inventory: Inventory, situation: Situation, actions: tuple[Action, ...]) -> tuple[Note, ...]:
    notes = [Note(file.path, file.problem) for file in inventory.group_files if file.problem is not None]
    if any(len(action.group) > 1 for action in actions) and situation.stages.contradicts is not None:
        notes.append(Note(situation.stages.contradicts, f"{situation.stages.problem}; the rank lists are believed"))
    for action in actions:
        for path in left_beside(situation, action.rank, action.target):
            text = f"stays as it is beside {action.target}, which is of the format that the rest of its slice is in"
            notes.append(Note(path, text))
    for step, files in situation.files.items():
        for rank, held in files.items():
            if len(held) > 1:
                names = ", ".join(file.path for file in held)
                notes.append(Note(held[0].path, f"rank {rank} has {len(held)} slices for step {step}: {names}"))
    return tuple(sorted((*inventory.notes, *notes), key=lambda note: (note.path, note.reason)))
