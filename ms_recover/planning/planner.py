"""The plan: the newest step that every rank can be brought to."""

from __future__ import annotations

from collections.abc import Collection

from ms_recover.errors import MissingInputError, UsageError
from ms_recover.model.inventory import Inventory, Note
from ms_recover.model.plan import CopyAction, GroupWrite, Plan, RejectedStep, StepAssessment
from ms_recover.model.steps import Step
from ms_recover.planning.assess import Situation, assess_step, make_situation
from ms_recover.planning.world import find_world_size
from ms_recover.redundancy.groups import GroupMap, merge_groups

_MOST_NAMED = 8


def make_plan(
    inventory: Inventory,
    *,
    step: Step | None = None,
    lost: Collection[int] = (),
    world_size: int | None = None,
    newest: bool = False,
) -> Plan:
    """Find the newest step at which every rank has a sound slice or a peer that has one.

    Parameters
    ----------
    inventory : Inventory
        What was found.
    step : Step, optional
        Consider this step only.
    lost : collection of int
        Ranks whose slices count as gone, whatever lies there.
    world_size : int, optional
        Number of ranks; by default what the survivors tell.
    newest : bool
        Of two sound slices of one rank and step take the one modified last.

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
    situation, world_size_from = understand(inventory, lost=lost, world_size=world_size, newest=newest)
    if not inventory.steps:
        raise MissingInputError(
            f"{inventory.root} holds directories of {len(inventory.ranks)} ranks but no slice: name another folder, "
            "or describe the file names with --pattern"
        )
    if step is not None and step not in inventory.steps:
        have = ", ".join(str(known) for known in inventory.steps[:_MOST_NAMED])
        raise MissingInputError(f"{inventory.root} holds no slice of step {step}; it has {have}")
    rejected = []
    assessment: StepAssessment | None = None
    first: StepAssessment | None = None
    for candidate in (step,) if step is not None else inventory.steps:
        assessment = assess_step(situation, candidate)
        first = first or assessment
        if assessment.recoverable:
            break
        rejected.append(RejectedStep(candidate, _why_rejected(assessment)))
        assessment = None
    shown = assessment or first
    assert shown is not None
    actions = assessment.actions if assessment else ()
    return Plan(
        root=inventory.root,
        world_size=situation.world_size,
        world_size_from=world_size_from,
        step=assessment.step if assessment else None,
        actions=actions,
        group_files=_group_writes(inventory, situation.groups, actions),
        ranks=shown.ranks,
        rejected_steps=tuple(rejected),
        notes=_notes(inventory, situation),
    )


def understand(
    inventory: Inventory, *, lost: Collection[int] = (), world_size: int | None = None, newest: bool = False
) -> tuple[Situation, str]:
    """Return what steps are judged by, and what the world size rests on; raises as `make_plan` does."""
    groups = merge_groups(inventory.group_files)
    size, world_size_from = find_world_size(inventory, world_size)
    for rank in sorted(lost):
        if not 0 <= rank < size:
            raise UsageError(
                f"rank {rank} is declared lost, but the ranks are 0 to {size - 1} by {world_size_from}: "
                "give another rank or --world-size"
            )
    return make_situation(inventory, groups, size, lost, newest), world_size_from


def _why_rejected(assessment: StepAssessment) -> str:
    bad = [rank for rank in assessment.ranks if rank.verdict == "unrecoverable"]
    text = "; ".join(f"rank {rank.rank}: {rank.reason}" for rank in bad[:_MOST_NAMED])
    rest = [str(rank.rank) for rank in bad[_MOST_NAMED:]]
    return f"{text}; and {len(rest)} more ranks: {', '.join(rest)}" if rest else text


def _group_writes(inventory: Inventory, groups: GroupMap, actions: tuple[CopyAction, ...]) -> tuple[GroupWrite, ...]:
    """Give a recovered directory its rank list back where its peers have theirs beside their slices."""
    have = {file.rank for file in inventory.group_files if file.place is not None and file.info is not None}
    places = {file.rank: file.place for file in inventory.group_files if file.place is not None}
    writes = []
    for action in actions:
        peers = [rank for rank in groups.of(action.rank) if places.get(rank) is not None]
        place = places[peers[0]] if peers else None
        if action.rank not in have and place is not None and place.names_rank:
            writes.append(GroupWrite(action.rank, place.of(action.rank), groups.of(action.rank)))
    return tuple(writes)


def _notes(inventory: Inventory, situation: Situation) -> tuple[Note, ...]:
    notes = [Note(file.path, file.problem) for file in inventory.group_files if file.problem is not None]
    for step, files in situation.files.items():
        for rank, held in files.items():
            if len(held) > 1:
                names = ", ".join(file.path for file in held)
                notes.append(Note(held[0].path, f"rank {rank} has {len(held)} slices for step {step}: {names}"))
    return tuple(sorted((*inventory.notes, *notes), key=lambda note: (note.path, note.reason)))
