"""Where slices are looked for, and how they are chosen, as that becomes known on the way to the slice of a resume."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import Literal

from ms_recover.model.options import PlanOptions, ScanOptions
from ms_recover.model.rank_local import RankLocalChoice
from ms_recover.model.steps import Step
from ms_recover.training.background import wait_for_tasks
from ms_recover.training.chosen_step import agree_run_of
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
