"""The runs of a training: those that all ranks see together, and the id and the start of the next one.

Each rank may see other slices, and all decide by the same runs. The id is the same for all ranks of a launch, so that
slices of two runs are never mixed.
"""

from __future__ import annotations

import hashlib
import json
import logging
import struct
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from ms_recover.errors import UsageError
from ms_recover.model.manifest import RunStep
from ms_recover.model.printable import printable
from ms_recover.model.steps import Step
from ms_recover.model.texts import list_some
from ms_recover.planning.tree.lineage import Lineage, RunRecord, merge_run_records
from ms_recover.training.deciding.job import TrainingJob

_log = logging.getLogger(__name__)

RUN_ID = "MS_RECOVER_RUN_ID"
"""Environment variable that launchers set to the same new value for all ranks."""

_LOW = 31
_MASK = (1 << _LOW) - 1

_BYTES = 16
_NUMBERS = struct.Struct(">4i")
"""The bytes as signed 32-bit numbers, as `TrainingJob.gather` takes them."""


def gather_runs(job: TrainingJob, runs: Iterable[RunRecord]) -> tuple[RunRecord, ...]:
    """Return the runs that any rank sees; all ranks call this function."""
    texts = job.gather_text(json.dumps([_row(run) for run in runs]), "looking for runs")
    return merge_run_records(_record(row) for text in texts for row in json.loads(text))


def experiments_of(lineage: Lineage | None, own: tuple[str, ...]) -> tuple[str, ...]:
    """Return the experiments of a program: its `own`, else those that what it resumes states; empty for any."""
    stated = lineage.last if lineage is not None else None
    return own or (stated.experiments if stated is not None and stated.base_prefix is not None else ())


def texts_of_other_runs(lineage: Lineage | None, own: tuple[str, ...], step: Step) -> tuple[str, ...]:
    """Return a clause for each run of a program's `own` experiments that is passed over at a step and newer.

    None is where a run was chosen.
    """
    if lineage is None or lineage.chosen:
        return ()
    experiments = experiments_of(lineage, own)
    others = tuple(one for one in lineage.others if not experiments or one.is_of(experiments))
    of_program = replace(lineage, others=others)
    texts = (*of_program.newer_texts(step), *of_program.set_aside_texts(step))
    return tuple(f"training resumes from step {step} of {lineage.last.text}; {text}" for text in texts)


def _row(run: RunRecord) -> list[Any]:
    before = run.resumed_from
    resumed_from = [before.run_id, _numbers(before.step), before.started] if before is not None else None
    return [
        run.run_id,
        run.started,
        resumed_from,
        *map(_numbers, (run.begun, run.newest, run.aside)),
        run.written,
        run.newest_written,
        run.prefixes,
        run.base_prefix,
        run.bases,
    ]


def _record(row: list[Any]) -> RunRecord:
    run_id, started, before, begun, newest, aside, written, newest_written, prefixes, base, bases = row
    return RunRecord(
        run_id=run_id,
        started=started,
        resumed_from=RunStep(before[0], Step(*before[1]), before[2]) if before is not None else None,
        begun=_step(begun),
        newest=_step(newest),
        aside=_step(aside),
        written=written,
        newest_written=newest_written,
        prefixes=tuple(prefixes),
        base_prefix=base,
        bases=tuple(bases),
    )


def _numbers(step: Step | None) -> list[int] | None:
    return None if step is None else [step.epoch, step.step]


def _step(numbers: list[int] | None) -> Step | None:
    return None if numbers is None else Step(*numbers)


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
