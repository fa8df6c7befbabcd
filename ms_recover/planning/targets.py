"""Under which name a recovered slice is written: one that its format may have."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from ms_recover.file_names import ending_of
from ms_recover.model.actions import FileState
from ms_recover.model.inventory import SliceFile
from ms_recover.planning.redundancy.contents import check_contents, check_manifest
from ms_recover.planning.situation import Situation

_T = TypeVar("_T")


def of_one_format(
    situation: Situation,
    rank: int,
    own: Iterable[SliceFile],
    able: Sequence[_T],
    file_of: Callable[[_T], SliceFile],
) -> tuple[list[_T], str | None]:
    """Return the sources that have one format: that of the rank's own files where any has, else the first one's.

    Parameters
    ----------
    situation : Situation
        What is known.
    rank : int
        Whose slice is wanted.
    own : iterable of SliceFile
        The rank's files of this step that may be replaced.
    able : sequence
        Sources, best first, at least one.
    file_of : callable
        The slice of a source.

    Returns
    -------
    (list, str or None)
        The sources in the same order; none, and why, where using them would leave two slices that may be right.
    """
    endings = {ending_of(file.path) for file in own}
    first = next((one for one in able if ending_of(file_of(one).path) in endings), able[0])
    ending = ending_of(file_of(first).path)
    why = why_beside(situation, rank, file_of(first))
    if why is not None:
        return [], why
    return [one for one in able if ending_of(file_of(one).path) == ending], None


def why_beside(situation: Situation, rank: int, source: SliceFile) -> str | None:
    """Return why a slice of the source's format cannot be put beside what a rank declared lost has.

    What is found damaged may lie beside a slice of the other format; what is only distrusted is not told from it.
    """
    if rank not in situation.lost:
        return None
    for file in situation.files.get(source.step, {}).get(rank, ()):
        unsound = (
            file.problem,
            check_manifest(file, situation.world_size, situation.groups.of(rank)),
            check_contents(file, situation.contents),
        )
        if ending_of(file.path) != ending_of(source.path) and not any(unsound):
            return (
                f"{file.path} is whole, and {source.path} is of the other format: recovered from it the rank would "
                "have two slices for one step; remove the one that is distrusted"
            )
    return None


def target_of(
    situation: Situation, rank: int, source: SliceFile, own: Iterable[SliceFile]
) -> tuple[str, FileState | None]:
    """Return the name that a recovered slice gets, and what lies there: a bad file is replaced under its own name.

    A bad file of the other format is left as it is, because its name would not fit.

    Parameters
    ----------
    situation : Situation
        What is known.
    rank : int
        Whose slice.
    source : SliceFile
        What it is named after.
    own : iterable of SliceFile
        The rank's files of this step that may be replaced.
    """
    usual = source.place.of(rank)
    alike = (file for file in own if ending_of(file.path) == ending_of(source.path))
    there = max(alike, key=lambda file: (file.path == usual, file.mtime_ns, file.path), default=None)
    for file in situation.files.get(source.step, {}).get(rank, ()):
        if file.path == usual:
            there = file
    return (usual, None) if there is None else (there.path, FileState(there.size, there.mtime_ns))


def left_beside(situation: Situation, rank: int, target: str) -> tuple[str, ...]:
    """Return the rank's files of the target's step that have its name but for the ending of the other format."""
    stem = target.removesuffix(ending_of(target))
    held = (file.path for files in situation.files.values() for file in files.get(rank, ()))
    return tuple(path for path in held if path != target and path.removesuffix(ending_of(path)) == stem)
