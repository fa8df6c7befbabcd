"""Which slices of a run go: those that every rank has newer ones of."""

from __future__ import annotations

import os
import re

from ms_recover.errors import MsRecoverError
from ms_recover.execution.save_slice import withdraw
from ms_recover.file_names import MANIFEST_SUFFIX, SLICE_FORMATS
from ms_recover.model.steps import Step
from ms_recover.training.world import World

NOTHING = Step(0, 0)
"""What a rank says that has committed no step yet; older than every step."""


def agree_floor(world: World, committed: Step, failure: Exception | None) -> Step:
    """Tell the other ranks what this one has committed, and return the newest step that every rank has.

    All ranks call it. Ranks that cannot talk go by what they have themselves.

    Parameters
    ----------
    world : World
        The ranks.
    committed : Step
        This rank's newest committed step, or `NOTHING`.
    failure : Exception or None
        Why it could not save.

    Raises
    ------
    Exception
        `failure`, when there is one.
    MsRecoverError
        When another rank could not save, or is gone.
    """
    own = (int(failure is not None), committed.epoch, committed.step)
    try:
        told = world.gather(own) if world.connected else [own]
    except MsRecoverError:  # another rank is gone; what is wrong here says more
        if failure is None:
            raise
        told = [own]
    if failure is not None:
        raise failure
    failed = [str(rank) for rank, (flag, _, _) in enumerate(told) if flag]
    if failed:
        raise MsRecoverError(
            f"rank {world.rank} stops behind step {committed}: rank(s) {', '.join(failed)} could not save their "
            "slices; see their logs"
        )
    return min(Step(epoch, step) for _, epoch, step in told)


def rotate(folder: str, prefix: str, keep: int, floor: Step) -> list[Step]:
    """Remove a run's oldest slices, each together with its manifest.

    Parameters
    ----------
    folder : str
        This rank's directory.
    prefix : str
        Of this run; slices of other prefixes are let alone.
    keep : int
        Committed slices that stay.
    floor : Step
        The newest step that every rank has committed: it and what is newer stays in any case, because it is what a
        recovery would go back to.

    Returns
    -------
    list of Step
        The steps that were removed, newest first.

    Raises
    ------
    OSError
        When a directory cannot be read or a file not be removed.
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
