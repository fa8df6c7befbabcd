"""Choose the name of a recovered slice; its suffix must match its format."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from ms_recover.file_names import OUTVOTED_SUFFIX, aside_name, ending_of
from ms_recover.model.actions import FileState
from ms_recover.model.plan import Action
from ms_recover.planning.judging.judgement import StepJudgement
from ms_recover.planning.tree.facts import Facts, SliceFacts


def same_format_sources(
    facts: Facts, rank: int, own: Iterable[SliceFacts], able: Sequence[SliceFacts]
) -> tuple[list[SliceFacts], str | None]:
    """Return those of the sources, best first, that have the format of the rank's own files, else that of the first.

    None, and the reason, where using them would leave two slices that may be right.
    """
    endings = {ending_of(one.path) for one in own}
    first = next((one for one in able if ending_of(one.path) in endings), able[0])
    why = format_conflict(facts, rank, first)
    if why is not None:
        return [], why
    return [one for one in able if ending_of(one.path) == ending_of(first.path)], None


def format_conflict(facts: Facts, rank: int, source: SliceFacts) -> str | None:
    """Return the reason why a slice of the source's format cannot be put beside the slice of a rank declared lost.

    A slice that is found damaged may lie beside one of the other format; one that is only distrusted looks as right.
    """
    if rank not in facts.lost:
        return None
    for one in facts.at(source.file.step, rank):
        unsound = one.file.problem or one.manifest_problem or one.content_problem
        if ending_of(one.path) != ending_of(source.path) and not unsound:
            return (
                f"{one.path} is whole, and {source.path} is of the other format: recovered from it the rank would "
                "have two slices for one step; remove the one that is distrusted"
            )
    return None


def target_of(facts: Facts, rank: int, source: SliceFacts, own: Iterable[SliceFacts]) -> tuple[str, FileState | None]:
    """Return the name of a recovered slice and the state of the file there: a bad file is replaced under its own name.

    The place and name of the source are followed. A bad file of the other format is left as it is, because its name
    would not fit.
    """
    usual = source.file.place.of(rank)
    alike = (one for one in own if ending_of(one.path) == ending_of(source.path))
    there = max(alike, key=lambda one: (one.path == usual, one.file.mtime_ns, one.path), default=None)
    for one in facts.at(source.file.step, rank):
        if one.path == usual:
            there = one
    return (usual, None) if there is None else (there.path, FileState(there.file.size, there.file.mtime_ns))


def keep_replaced(action: Action, judgement: StepJudgement) -> Action:
    """Return an action that sets the slice aside that it replaces, unless that is proven wrong or its rank is lost.

    What a device fails to give may be right.
    """
    there = judgement.slices.get(action.target)
    lost = there is None or there.status == "unreadable"  # which cannot be linked
    lost = lost or (there is not None and there.proven_damaged and not there.failing)
    return (
        action
        if action.replaces is None or lost
        else replace(action, set_aside=aside_name(action.target, OUTVOTED_SUFFIX))
    )


def left_beside(facts: Facts, rank: int, target: str) -> tuple[str, ...]:
    """Return the rank's files of the target's step that have its name but for the ending of the other format."""
    stem = target.removesuffix(ending_of(target))
    held = (one.path for step in facts.steps for one in facts.at(step, rank))
    return tuple(path for path in held if path != target and path.removesuffix(ending_of(path)) == stem)
