"""Where slices are looked for, and how they are chosen, as that becomes known on the way to the slice of a resume."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass, replace
from typing import Any, Literal

from ms_recover.arguments import whole_number
from ms_recover.errors import MissingInputError, MsRecoverError, UsageError
from ms_recover.file_names import MANIFEST_SUFFIX
from ms_recover.formats.manifest import read_manifest
from ms_recover.loading.path_arguments import home_path
from ms_recover.model.inventory import RankPath
from ms_recover.model.options import PlanOptions, ScanOptions
from ms_recover.model.rank_local import RankLocalChoice
from ms_recover.model.steps import Step
from ms_recover.model.texts import list_some
from ms_recover.planning.tree.lineage import identity_of
from ms_recover.scanning.naming import SliceName, name_before, read_slice_name
from ms_recover.training.background import wait_for_tasks
from ms_recover.training.deciding.job import TrainingJob
from ms_recover.training.deciding.resumed_experiment import Taken, agree_experiments
from ms_recover.training.run import forget_resumed

_log = logging.getLogger(__name__)

Fresh = Literal["refuse", "start"]


@dataclass(frozen=True)
class Search:
    """Where slices and evidence are looked for, and how they are chosen."""

    root: str
    scanning: ScanOptions
    judging: PlanOptions
    fresh: Fresh
    rank_local: RankLocalChoice = "refuse"
    from_environment: bool = False
    """Whether the run was chosen by a variable, which stays when the training is started again."""
    step: Step | None = None
    """The step that was chosen; None for the newest one."""
    ckpt_file: str | None = None
    """The slice that it was chosen by, whose run is resumed."""
    given: tuple[str, ...] = ()
    """The experiments of the program, empty where they are not known."""
    loaded: tuple[str, ...] = ()
    """See `ms_recover.training.deciding.resumed_experiment.Taken`."""
    keep: tuple[str, ...] = ()
    """Parameters that keep the values of the program."""

    def agreed(self, job: TrainingJob) -> Search:
        """Return the search in the run of the chosen slice; all ranks call it together."""
        run = agree_run_of(job, self.ckpt_file) if self.ckpt_file is not None else None
        return self if run is None else self.in_run(run)

    def of_program(self, given: tuple[str, ...]) -> Search:
        """Return the search of a program with these experiments."""
        return replace(self, given=given)

    def taking(self, taken: Taken) -> Search:
        """Return the search among the experiments that are candidates."""
        judging = replace(self.judging, experiments=taken.experiments, run=taken.run)
        return replace(self, judging=judging)

    def in_run(self, run: str) -> Search:
        """Return the search in another run."""
        return replace(self, judging=replace(self.judging, run=run), from_environment=False)


def prepare_search(job: TrainingJob, search: Search) -> Search:
    """Forget what was resumed before of the same experiments; return the search in the run of the chosen slice.

    All ranks call it.
    """
    if wait_for_tasks():
        _log.info("rank %d: waited for a slice that an earlier training was still writing", job.rank)
    given = agree_experiments(job, search.given)
    forget_resumed(given)
    return search.of_program(given).agreed(job)


def step_of(value: Any) -> Step | None:
    """Return the step that an argument names; UsageError when it names none."""
    if value is None or isinstance(value, Step):
        return value
    if isinstance(value, str):
        try:
            return Step.parse(value)
        except ValueError as error:
            raise UsageError(f"step={value!r}: {error}") from error
    if isinstance(value, tuple) and len(value) == 2:
        return Step(*(whole_number("step", number, 0) for number in value))
    raise UsageError(f"step={value!r}: give it as slices name it, for example '2_77', or as (epoch, step)")


def step_in_name(ckpt_file: Any) -> Step:
    """Return the step in the name of a slice; UsageError when it is none."""
    path = home_path("ckpt_file", ckpt_file)
    named = read_slice_name(RankPath(("",)), 0, name_before(os.path.basename(path)).replace("{rank}", "0"))
    if not isinstance(named, SliceName):
        raise UsageError(f"ckpt_file={path!r}: it has no name of a slice, such as ckpt_dir0/test-2_77.ckpt")
    return named.step


def agree_run_of(job: TrainingJob, ckpt_file: str) -> str | None:
    """Return the run that a slice belongs to, by the manifests of those ranks that see it; None where none names one.

    The path may hold ``{rank}``. All ranks call this function together, and get the same answer.

    Raises
    ------
    MissingInputError
        When no rank sees the file.
    UsageError
        When it is of one run on one rank and of another run on another.
    """
    path = ckpt_file.replace("{rank}", str(job.rank))
    seen = [flag for (flag,) in job.gather([os.path.isfile(path)], "looking for ckpt_file")]
    if not any(seen):
        raise MissingInputError(f"ckpt_file={ckpt_file!r}: no rank sees this file; name a slice that is there")
    runs = sorted(set(job.gather_text(_run_of(path), "looking for ckpt_file")) - {""})
    if len(runs) > 1:
        raise UsageError(f"ckpt_file={ckpt_file!r}: it is a slice of the runs {list_some(runs)}; choose one with run=")
    return runs[0] if runs else None


def _run_of(path: str) -> str:
    """Return the id of the run in a manifest, with its start where several runs have that id; "" without one."""
    try:
        run_id, started = identity_of(read_manifest(path + MANIFEST_SUFFIX))
    except MsRecoverError:
        return ""
    return run_id if started is None else f"{run_id}@{started}"
