"""Removal of old slices: only those that every rank has a newer one of."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from ms_recover.errors import MsRecoverError
from ms_recover.execution.save_slice import withdraw
from ms_recover.file_names import MANIFEST_SUFFIX, SLICE_FORMATS
from ms_recover.model.steps import Step
from ms_recover.model.texts import list_some
from ms_recover.training.job import TrainingJob

NO_STEP = Step(0, 0)
"""Stands for no committed step; older than every step."""


def agree_floor(
    job: TrainingJob, committed: Step, failure: Exception | None, summary: Sequence[int] = ()
) -> tuple[Step, list[tuple[int, ...]]]:
    """Return the newest step that every rank has committed, by each rank's own (`NO_STEP` for none), and all summaries.

    All ranks call this function, with a `summary` of equal length; summaries are returned by rank. A rank without
    communication goes by its own step. Where this rank could not save, its `failure` is raised; MsRecoverError when
    another rank could not save, or is gone.
    """
    own = (int(failure is not None), committed.epoch, committed.step, *summary)
    try:
        answers = job.gather(own) if job.connected else [own]
    except MsRecoverError:  # another rank is gone, but the failure of this one is more specific
        if failure is None:
            raise
        answers = [own]
    if failure is not None:
        raise failure
    failed = [rank for rank, (flag, *_) in enumerate(answers) if flag]
    if failed:
        raise MsRecoverError(
            f"rank {job.rank} stops behind step {committed}: rank(s) {list_some(failed)} could not save their "
            "slices; see their logs"
        )
    floor = min(Step(epoch, step) for _, epoch, step, *_ in answers)
    return floor, [row[3:] for row in answers]


def rotate(folder: str, prefix: str, keep: int, floor: Step) -> list[Step]:
    """Remove a run's oldest slices, each together with its manifest; return their steps, newest first.

    Slices of other prefixes stay, and `keep` committed ones. So do the slice of `floor`, the newest step that every
    rank has committed, and newer ones, because a recovery goes back to it.
    """
    formats = "|".join(SLICE_FORMATS)
    name = re.compile(rf"{re.escape(prefix)}-(\d+)_(\d+)\.(?:{formats})\Z", re.ASCII)
    paths: dict[Step, str] = {}
    for entry in os.listdir(folder):
        match = name.match(entry)
        if match is not None:
            paths[Step(int(match[1]), int(match[2]))] = os.path.join(folder, entry)
    newest_first = sorted(paths, reverse=True)
    committed = [step for step in newest_first if os.path.exists(paths[step] + MANIFEST_SUFFIX)]
    stay = set(committed[:keep])
    gone = [step for step in newest_first if step < floor and step not in stay]
    if gone:
        withdraw([paths[step] for step in gone])
    return gone
