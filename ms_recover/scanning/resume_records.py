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
from ms_recover.scanning.settle import Place
from ms_recover.scanning.tree import Tree
from ms_recover.scanning.walk import RankFile
from ms_recover.stores.paths import join


def read_meta_files(tree: Tree, files: Iterable[RankFile], notes: Notes) -> tuple[MetaFile, ...]:
    """Read the ``meta.json`` of each rank; one that cannot be read has a problem, and one that is wrong is noted."""
    placed = [(file, file.place) for file in files if file.place is not None]
    if not placed:
        return ()
    from ms_recover.formats.resume_records import (  # load the codec, which other trees do not need
        MOST_META,
        decode_meta,
    )

    def read(file: RankFile) -> tuple[Step, str] | MsRecoverError:
        try:
            return decode_meta(tree.small(file.path, "a meta.json", MOST_META), tree.name(file.path))
        except MsRecoverError as error:
            return error

    found = []
    placed.sort(key=lambda pair: (pair[0].rank, pair[0].path))
    for (file, place), stated in zip(placed, tree.each(read, [file for file, _ in placed]), strict=True):
        if isinstance(stated, MsRecoverError):
            tree.check_reached(stated)
            problem = tree.brief(stated, file.path)
            found.append(MetaFile(rank=file.rank, path=file.path, place=place, problem=problem))
            notes.add(file.path, problem)
        else:
            step, name = stated
            own = read_slice_name(RankPath(("rank_", "")), file.rank, name)
            wrong = _why_wrong(tree, file, step, name, own)
            if wrong is not None:
                notes.add(file.path, wrong)
            prefix = own.prefix if isinstance(own, SliceName) else ""
            found.append(MetaFile(rank=file.rank, path=file.path, place=place, step=step, file=name, prefix=prefix))
    return tuple(found)


def _why_wrong(tree: Tree, file: RankFile, step: Step, name: str, own: SliceName | Unused | None) -> str | None:
    """Return why MindFormers cannot resume by what a ``meta.json`` names, None when it can."""
    if not isinstance(own, SliceName) or own.place.parts[-1].startswith("/"):
        return f"names {name!r}, which is no slice of rank {file.rank}"
    if own.step != step:
        return f"names step {step}, and {name} of another one"
    if not _is_there(tree, join(os.path.dirname(file.path), name)):
        return f"names {name}, which is not there"
    return None


def _is_there(tree: Tree, path: str) -> bool:
    """Whether a path leads to something."""
    kind = tree.kind(path)
    if kind != "link":
        return kind is not None
    try:
        tree.stat(path)
    except MissingInputError:
        return False
    except MsRecoverError:
        return True
    return True


def read_health(places: Iterable[Place], notes: Notes) -> tuple[UnhealthySlice, ...]:
    """Read the first ``health_ckpts.json`` in one of the places; one that cannot be read is noted."""
    for place in places:
        path, shown = place.inside(HEALTH_NAME), place.shown(HEALTH_NAME)
        try:
            data = place.tree.small(path, "a health_ckpts.json")
            from ms_recover.formats.resume_records import decode_unhealthy  # loads the codec

            names = decode_unhealthy(data, place.tree.name(path))
        except MissingInputError:
            continue
        except MsRecoverError as error:
            place.tree.check_reached(error)
            reason = place.tree.brief(error, path)
            notes.add(shown, f"{reason}; which steps are healthy is not known")
            return ()
        if names:
            notes.add(shown, f"calls {list_some(names)} unhealthy: such steps are chosen only where --step names them")
        slices = [read_slice_name(RankPath(("rank_", "")), 0, name) for name in names]
        return tuple(
            UnhealthySlice(prefix=one.prefix, step=one.step, path=shown) for one in slices if isinstance(one, SliceName)
        )
    return ()
