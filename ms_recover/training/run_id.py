"""The run id: the same for all ranks of a launch, so that slices of two runs are never mixed."""

from __future__ import annotations

import hashlib
import os
import secrets
import struct
from collections.abc import Callable, Mapping

from ms_recover.errors import UsageError
from ms_recover.model.printable import printable
from ms_recover.model.texts import list_some
from ms_recover.training.deciding.job import TrainingJob

RUN_ID = "MS_RECOVER_RUN_ID"
"""Environment variable that launchers set to the same new value for all ranks."""

_BYTES = 16
_NUMBERS = struct.Struct(">4i")
"""The bytes as signed 32-bit numbers, as `TrainingJob.gather` takes them."""


def agree_run_id(
    job: TrainingJob,
    environ: Mapping[str, str] = os.environ,
    draw: Callable[[int], bytes] = secrets.token_bytes,
) -> str:
    """Return the id of this run: the launcher's, else a random one of rank 0 by `draw`, which returns random bytes.

    All ranks call this function. It is empty when the launcher set none and the ranks cannot communicate. Raises
    UsageError when ranks have different ids, or the given one cannot be written in a manifest.
    """
    given = environ.get(RUN_ID, "")
    if printable(given) != given:
        raise UsageError(
            f"{RUN_ID}={printable(given)}: it is not text of one line in UTF-8, which manifests can name: give it "
            "another value"
        )
    if job.size > 1 and not job.connected:
        return given
    own = hashlib.blake2b(given.encode(), digest_size=_BYTES).digest() if given else draw(_BYTES)
    answers = job.gather([bool(given), *_NUMBERS.unpack(own)], "agreeing on the id of the run")
    if given and len(set(answers)) == 1:
        return given
    if any(set_there for set_there, *_ in answers):
        ranks = [rank for rank, numbers in enumerate(answers) if numbers != answers[job.rank]]
        raise UsageError(
            f"rank {job.rank} has {RUN_ID}={given!r}, which differs from rank(s) {list_some(ranks)}: "
            "set it to the same value for all ranks, or for none"
        )
    return _NUMBERS.pack(*answers[0][1:]).hex()
