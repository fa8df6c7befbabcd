"""Writing ``meta.json``, from which MindFormers' own resume begins."""

from __future__ import annotations

import os
from collections.abc import Sequence

from ms_recover.errors import MsRecoverError, VerificationError
from ms_recover.execution.targets import check_place
from ms_recover.formats.reading import read_small
from ms_recover.formats.resume_records import META_MODE, MOST_META, decode_meta, encode_meta
from ms_recover.model.plan import MetaWrite
from ms_recover.model.steps import Step
from ms_recover.stores.atomic import write_small
from ms_recover.stores.directories import DirectorySyncs


def write_meta(
    root: str,
    write: MetaWrite,
    step: Step,
    *,
    follow: Sequence[str] = (),
    syncs: DirectorySyncs | None = None,
) -> bool:
    """Write a ``meta.json`` of a plan; return False when it is there already.

    `follow` is as for `check_place`.

    Raises
    ------
    VerificationError
        When it names another slice than the plan saw, or the slice that it is to name is not there.
    FormatError
        When its directory leads elsewhere through a link.
    StorageError, MissingInputError
        As `ms_recover.stores.atomic.write_small`.
    """
    check_place(root, write.target, write.rank, follow)
    path = os.path.join(root, write.target)
    folder = os.path.dirname(path)
    there = _named_in(path)
    if there == (step, write.file):
        return False
    if there is not None and there[1] != write.replaces:
        raise VerificationError(f"{path} changed after the plan was made; nothing was replaced: plan again")
    if not os.path.isfile(os.path.join(folder, write.file)):
        raise VerificationError(f"{path} is to name {write.file}, which is not there: plan again")
    write_small(path, encode_meta(step, write.file), mode=META_MODE, owner_of=folder, syncs=syncs)
    return True


def _named_in(path: str) -> tuple[Step, str] | None:
    try:
        return decode_meta(read_small(path, "a meta.json", MOST_META), path)
    except MsRecoverError:
        return None
