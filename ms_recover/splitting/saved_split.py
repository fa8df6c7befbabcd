"""The slices that an earlier splitter left in its directory: proven, repaired, and described."""

from __future__ import annotations

import os
from dataclasses import dataclass

from ms_recover import api
from ms_recover.errors import UnrecoverableError, UsageError
from ms_recover.file_names import MANIFEST_SUFFIX
from ms_recover.formats.manifest import read_manifest
from ms_recover.model.manifest import Manifest
from ms_recover.splitting.slice_directory import LOCK_SECONDS, newest_saved, slice_name


@dataclass(frozen=True)
class SavedSplit:
    """The newest step of a splitter's directory of which every part has a whole slice."""

    step: int
    """Trained steps."""
    run_id: str
    replicas: int
    parts: tuple[range, ...]
    """The stages of each part."""
    total: int
    """Number of the model's stages."""
    manifests: tuple[Manifest, ...]
    """Of the first slice of each part."""


def go_on_from(directory: str | os.PathLike[str] | None, resume: bool | None) -> SavedSplit | None:
    """Return the slices to go on from; None where a splitter begins with its model.

    Raises UsageError where slices of a training would be replaced though nobody asked for it, and as `find_saved`.
    """
    if directory is None:
        if resume:
            raise UsageError("resume needs the directory of the splitter to go on from")
        return None
    if resume:
        return find_saved(directory)
    trained = newest_saved(directory)
    if trained and resume is None:
        raise UsageError(
            f"{os.fspath(directory)} holds the slices of {trained} trained steps: resume=True goes on from them, "
            "resume=False replaces them, another directory keeps them"
        )
    return None


def find_saved(directory: str | os.PathLike[str]) -> SavedSplit | None:
    """Return what an earlier splitter saved, with damaged and missing slices restored; None without any slice.

    Raises UnrecoverableError when a part has no whole slice at any step, UsageError when the slices are not a
    splitter's, and StorageError when the file system refuses.
    """
    if newest_saved(directory) is None:
        return None
    root = os.path.realpath(directory)
    plan = api.plan(api.scan(root))
    if not plan.recoverable or plan.step is None or plan.world_size is None:
        lost = next((f"rank {rank.rank}: {rank.reason}" for rank in plan.ranks if rank.verdict == "unrecoverable"), "")
        raise UnrecoverableError(
            f"{root} has no step of which every part is whole ({lost}): look with `recover-ckpt plan {root}`"
        )
    if plan.changes_anything:
        outcome = api.apply(plan, lock_timeout=LOCK_SECONDS)
        if outcome.errors:
            raise UnrecoverableError(f"{root} was not restored: {outcome.errors[0]}")
    step = plan.step.step
    marks: dict[int, tuple[int, ...]] = {}
    manifests: dict[int, Manifest] = {}
    for rank in range(plan.world_size):
        path = os.path.join(root, f"rank_{rank}", slice_name(step))
        part, mark = _read_mark(path)
        if part not in marks:
            marks[part] = mark
            manifests[part] = read_manifest(path + MANIFEST_SUFFIX)
    count = len(marks)
    totals = {mark[2] for mark in marks.values()}
    if set(marks) != set(range(count)) or plan.world_size % count or len(totals) != 1:
        raise UsageError(f"the slices in {root} are of parts {sorted(marks)}: not those of one splitter")
    return SavedSplit(
        step=step,
        run_id=manifests[0].run_id,
        replicas=plan.world_size // count,
        parts=tuple(range(marks[part][0], marks[part][1]) for part in range(count)),
        total=totals.pop(),
        manifests=tuple(manifests[part] for part in range(count)),
    )


def _read_mark(path: str) -> tuple[int, tuple[int, ...]]:
    from ms_recover.splitting.stages import MARK
    from ms_recover.splitting.values import SliceFile

    file = SliceFile(path)
    name = next((name for name in file.parameters if name.startswith(MARK)), None)
    number = None if name is None else name.removeprefix(MARK)
    if name is None or number is None or not number.isdecimal() or file.parameters[name].shape != (4,):
        raise UsageError(f"{path} is no slice of a splitter, or of an older version: it has no value {MARK}N")
    return int(number), tuple(int(value) for value in file.read(name).asnumpy())
