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
    endings = {ending_of(slice_.path) for slice_ in own}
    first = next((slice_ for slice_ in able if ending_of(slice_.path) in endings), able[0])
    why = format_conflict(facts, rank, first)
    if why is not None:
        return [], why
    return [slice_ for slice_ in able if ending_of(slice_.path) == ending_of(first.path)], None


def format_conflict(facts: Facts, rank: int, source: SliceFacts) -> str | None:
    """Return the reason why a slice of the source's format cannot be put beside the slice of a rank declared lost.

    A slice that is found damaged may lie beside one of the other format; one that is only distrusted looks as right.
    """
    if rank not in facts.lost:
        return None
    for slice_ in facts.at(source.file.step, rank):
        unsound = slice_.file.problem or slice_.manifest_problem or slice_.content_problem
        if ending_of(slice_.path) != ending_of(source.path) and not unsound:
            return (
                f"{slice_.path} is whole, and {source.path} is of the other format: recovered from it the rank would "
                "have two slices for one step; remove the one that is distrusted"
            )
    return None


def target_of(facts: Facts, rank: int, source: SliceFacts, own: Iterable[SliceFacts]) -> tuple[str, FileState | None]:
    """Return the name of a recovered slice and the state of the file there: a bad file is replaced under its own name.

    The place and name of the source are followed. A bad file of the other format is left as it is, because its name
    would not fit.
    """
    usual = source.file.place.of(rank)
    alike = (slice_ for slice_ in own if ending_of(slice_.path) == ending_of(source.path))
    old = max(alike, key=lambda slice_: (slice_.file.mtime_ns, slice_.path), default=None)
    for slice_ in facts.at(source.file.step, rank):
        if slice_.path == usual:
            old = slice_
    return (usual, None) if old is None else (old.path, FileState(old.file.size, old.file.mtime_ns))


def keep_replaced(action: Action, judgement: StepJudgement) -> Action:
    """Return an action that sets the slice aside that it replaces, unless that is proven wrong or its rank is lost.

    What a device fails to give may be right.
    """
    replaced = judgement.slices.get(action.target)
    if action.replaces is None or replaced is None or replaced.status == "unreadable":  # which cannot be linked
        return action
    if replaced.proven_damaged and not replaced.failing:
        return action
    return replace(action, set_aside=aside_name(action.target, OUTVOTED_SUFFIX))


def left_beside(facts: Facts, rank: int, target: str) -> tuple[str, ...]:
    """Return the rank's files of the target's step that have its name but for the ending of the other format."""
    stem = target.removesuffix(ending_of(target))
    held = (one.path for step in facts.steps for one in facts.at(step, rank))
    return tuple(path for path in held if path != target and path.removesuffix(ending_of(path)) == stem)
