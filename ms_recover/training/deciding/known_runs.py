"""The runs that all ranks see together: each may see other slices, and all decide by the same runs."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import Any

from ms_recover.model.manifest import RunStep
from ms_recover.model.steps import Step
from ms_recover.planning.tree.lineage import Lineage, RunRecord, merge_run_records
from ms_recover.training.deciding.job import TrainingJob


def gather_runs(job: TrainingJob, runs: Iterable[RunRecord]) -> tuple[RunRecord, ...]:
    """Return the runs that any rank sees; all ranks call this function."""
    texts = job.gather_text(json.dumps([_row(run) for run in runs]), "looking for runs")
    return merge_run_records(_record(row) for text in texts for row in json.loads(text))


def texts_of_other_runs(lineage: Lineage, experiments: Collection[str], step: Step) -> tuple[str, ...]:
    """Return a clause for each run of these experiments, or of any without, that is passed over at a step and newer."""
    others = tuple(one for one in lineage.others if not experiments or one.is_of(tuple(experiments)))
    of_program = replace(lineage, others=others)
    return (*of_program.newer_texts(step), *of_program.set_aside_texts(step))


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
