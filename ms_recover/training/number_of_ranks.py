"""Slices that another number of ranks saved: a training does not begin over them, unless it was resumed from a step.

Its rank lists and names would take the place of theirs, and nobody could resume from either.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator

from ms_recover.errors import UsageError
from ms_recover.model.texts import list_some
from ms_recover.planning.tree.lineage import record_of
from ms_recover.training.deciding.held_slice import Held, HeldSlice
from ms_recover.training.deciding.job import TrainingJob
from ms_recover.training.held_slices import read_folder
from ms_recover.training.in_process import of_process
from ms_recover.training.run import Runs

_RANK = "{rank}"


def check_number_of_ranks(job: TrainingJob, template: str, base: str) -> None:
    """Raise UsageError where slices of another number of ranks, of the same experiment, lie in place.

    `template` is the directory with ``{rank}``, `base` the prefix that the program gave. A rank looks into its own
    directory, and the ranks share those out that lie beside it for ranks that this job does not have. Where a step was
    resumed, the resume has judged what lies there.
    """
    if of_process(Runs).resumed:
        return
    for folder in _folders(job, template):
        try:
            held = read_folder(folder)
        except OSError:  # what cannot be read is not judged; making the own directory says why
            continue
        why = why_other_ranks(Held(held, base).own, job.size)
        if why is not None:
            raise UsageError(f"rank {job.rank}: {folder} holds {why}")


def why_other_ranks(slices: Iterable[HeldSlice], size: int) -> str | None:
    """Return why a job of `size` ranks must not begin to save beside slices of its experiment; None where it may."""
    others = [one for one in slices if one.is_there and not one.aside and _size(one) not in (None, size)]
    if not others:
        return None
    newest = max(others, key=lambda one: one.step)
    run = record_of(newest.manifest).text
    sizes = sorted({_size(one) or 0 for one in others})
    return (
        f"slices of a job of {list_some(sizes)} rank(s), the newest of step {newest.step} of {run}, and this job has "
        f"{size}: start {sizes[-1]} rank(s), for example with msrun --worker_num={sizes[-1]}; or resume from them on "
        f"{size} with recover_train(..., reshard=True); or save to another directory or with another prefix, or move "
        "them away. Nothing was changed"
    )


def _size(one: HeldSlice) -> int | None:
    return one.manifest.world_size if one.manifest is not None else None


def _folders(job: TrainingJob, template: str) -> Iterator[str]:
    """Yield the directory of this rank, and its share of those for ranks beyond the job's."""
    own = os.path.abspath(template.replace(_RANK, str(job.rank)))
    if os.path.isdir(own):
        yield own
    if _RANK not in template:
        return
    before, after = os.path.abspath(template).split(_RANK, 1)
    parent, start = os.path.split(before)
    end = after.split(os.sep, 1)[0].replace(_RANK, "")
    named = re.compile(rf"{re.escape(start)}(\d{{1,9}}){re.escape(end)}", re.ASCII)
    try:
        names = sorted(os.listdir(parent))
    except OSError:
        return
    for name in names:
        match = named.fullmatch(name)
        number = int(match[1]) if match is not None else 0
        folder = os.path.abspath(template.replace(_RANK, str(number)))
        if number >= job.size and number % job.size == job.rank and os.path.isdir(folder):
            yield folder
