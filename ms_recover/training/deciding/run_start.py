"""The id of a run and its start: the same for all ranks of a launch, so that slices of two runs are never mixed."""

from __future__ import annotations

import hashlib
import logging
import struct
from collections.abc import Callable

from ms_recover.errors import UsageError
from ms_recover.model.printable import printable
from ms_recover.model.texts import list_some
from ms_recover.training.deciding.job import TrainingJob

_log = logging.getLogger(__name__)

RUN_ID = "MS_RECOVER_RUN_ID"
"""Environment variable that launchers set to the same new value for all ranks."""

_LOW = 31
_MASK = (1 << _LOW) - 1

_BYTES = 16
_NUMBERS = struct.Struct(">4i")
"""The bytes as signed 32-bit numbers, as `TrainingJob.gather` takes them."""


def agree_run_id(job: TrainingJob, given: str, draw: Callable[[int], bytes]) -> str:
    """Return the id of this run: that which the launcher has `given`, else a random one of rank 0, by `draw`.

    All ranks call this function. It is empty when the launcher set none and the ranks cannot communicate. Raises
    UsageError when ranks have different ids, or the given one cannot be written in a manifest.
    """
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


def agree_start(job: TrainingJob, known: int, clock: Callable[[], float]) -> int | None:
    """Return the time by the clock of rank 0, later than `known` of any rank, in milliseconds since 1970.

    None where ranks cannot agree because they do not communicate.
    """
    if job.size > 1 and not job.connected:
        return None
    now = int(clock() * 1000)
    answers = job.gather([now >> _LOW, now & _MASK, known >> _LOW, known & _MASK], "agreeing on the start of the run")
    times = [((row[0] << _LOW) + row[1], (row[2] << _LOW) + row[3]) for row in answers]
    last = max(before for _, before in times)
    if times[0][0] <= last:
        _log.warning("rank %d: by the clock of rank 0 an earlier run starts later; the order is kept", job.rank)
    return max(times[0][0], last + 1)
