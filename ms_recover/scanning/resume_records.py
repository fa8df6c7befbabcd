"""Read what MindFormers records beside its slices: the last one of each rank, and the steps that are not healthy."""

from __future__ import annotations

import os
from collections.abc import Iterable

from ms_recover.errors import MissingInputError, MsRecoverError
from ms_recover.file_names import HEALTH_NAME
from ms_recover.model.inventory import MetaFile, RankPath, UnhealthySlice
from ms_recover.model.steps import Step
from ms_recover.model.texts import list_some
from ms_recover.scanning.naming import SliceName, Unused, read_slice_name
from ms_recover.scanning.notes import Notes
from ms_recover.scanning.walk import RankFile


def read_meta_files(root: str, files: Iterable[RankFile], notes: Notes) -> tuple[MetaFile, ...]:
    """Read the ``meta.json`` of each rank; one that cannot be read has a problem, and one that is wrong is noted."""
    placed = [(file, file.place) for file in files if file.place is not None]
    if not placed:
        return ()
    from ms_recover.formats.resume_records import read_meta  # loads the codec, which other trees do not need

    found = []
    for file, place in sorted(placed, key=lambda pair: (pair[0].rank, pair[0].path)):
        path = os.path.join(root, file.path)
        try:
            step, name = read_meta(path)
        except MsRecoverError as error:
            problem = str(error).removeprefix(f"{path}: ")
            found.append(MetaFile(rank=file.rank, path=file.path, place=place, problem=problem))
            notes.add(file.path, problem)
        else:
            own = read_slice_name(RankPath(("rank_", "")), file.rank, name)
            wrong = _why_wrong(path, file.rank, step, name, own)
            if wrong is not None:
                notes.add(file.path, wrong)
            prefix = own.prefix if isinstance(own, SliceName) else ""
            found.append(MetaFile(rank=file.rank, path=file.path, place=place, step=step, file=name, prefix=prefix))
    return tuple(found)


def _why_wrong(path: str, rank: int, step: Step, name: str, own: SliceName | Unused | None) -> str | None:
    """Return why MindFormers cannot resume by what a ``meta.json`` names, None when it can."""
    if not isinstance(own, SliceName) or own.place.parts[-1].startswith("/"):
        return f"names {name!r}, which is no slice of rank {rank}"
    if own.step != step:
        return f"names step {step}, and {name} of another one"
    if not os.path.exists(os.path.join(os.path.dirname(path), name)):
        return f"names {name}, which is not there"
    return None


def read_health(root: str, places: Iterable[str], notes: Notes) -> tuple[UnhealthySlice, ...]:
    """Read the first ``health_ckpts.json`` in one of the places; one that cannot be read is noted."""
    for place in places:
        path = os.path.join(place, HEALTH_NAME)
        shown = os.path.relpath(path, root) if path.startswith(os.path.join(root, "")) else path
        if not os.path.lexists(path):
            continue
        from ms_recover.formats.resume_records import read_unhealthy

        try:
            names = read_unhealthy(path)
        except MissingInputError:
            continue
        except MsRecoverError as error:
            reason = str(error).removeprefix(f"{path}: ")
            notes.add(shown, f"{reason}; which steps are healthy is not known")
            return ()
        if names:
            notes.add(shown, f"calls {list_some(names)} unhealthy: such steps are chosen only where --step names them")
        slices = [read_slice_name(RankPath(("rank_", "")), 0, name) for name in names]
        return tuple(
            UnhealthySlice(prefix=one.prefix, step=one.step, path=shown) for one in slices if isinstance(one, SliceName)
        )
    return ()
