"""Where slices are looked for, and how they are chosen: the arguments of `resume` and `recover_train`, checked."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from ms_recover.arguments import check_type, texts, whole_number
from ms_recover.errors import UsageError
from ms_recover.loading.path_arguments import Paths, home_path, path_texts, source_texts
from ms_recover.model.options import PlanOptions, ScanOptions
from ms_recover.model.rank_local import RankLocalChoice
from ms_recover.model.steps import Step
from ms_recover.model.strategy import Layout
from ms_recover.planning.tree.lineage import RUN
from ms_recover.training.background import wait_for_tasks
from ms_recover.training.chosen_step import agree_run_of, step_in_name, step_of
from ms_recover.training.deciding.equal_arguments import Text, or_not_given
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

    @property
    def arguments(self) -> dict[str, Any]:
        """What all ranks must have alike; of a slice that chooses the step each may name its own."""
        run = self.judging.run
        return {
            "run": Text(f"{run!r} by {RUN}") if run is not None and self.from_environment else run,
            "ckpt_file": None if self.ckpt_file is None else Text(f"of step {self.step}"),
            "step": None if self.step is None or self.ckpt_file is not None else str(self.step),
            "newest": self.judging.newest,
            "tolerate": sorted(self.judging.tolerate),
            "fresh": self.fresh,
            "rank_local": self.rank_local,
            "keep": sorted(self.keep),
        }

    def choosing(self, step: Any, ckpt_file: Any) -> Search:
        """Return the search for one step; UsageError when an argument is invalid."""
        if ckpt_file is None:
            return replace(self, step=step_of(step))
        if step is not None or self.judging.run is not None:
            raise UsageError("ckpt_file names the step and the run to resume: leave step and run out")
        return replace(self, step=step_in_name(ckpt_file), ckpt_file=home_path("ckpt_file", ckpt_file))

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


@dataclass(frozen=True)
class ReshardArguments:
    """Whether slices may be cut anew for this job, and what that takes."""

    reshard: bool
    sources: tuple[str, ...]
    layouts: tuple[Layout, ...] | None
    accumulate: int

    @property
    def arguments(self) -> dict[str, Any]:
        """What all ranks must have alike; sources and layouts may be a rank's own."""
        return {
            "reshard": self.reshard,
            "sources": or_not_given(self.sources),
            "layouts": or_not_given(self.layouts),
            "accumulate": self.accumulate,
        }

    @classmethod
    def of(cls, reshard: Any, sources: Any, layouts: Any, accumulate: Any) -> ReshardArguments:
        """Check the arguments; UsageError when one is invalid."""
        check_type("reshard", reshard, bool, "True or False")
        made = cls(
            reshard,
            source_texts("sources", sources),
            None if layouts is None else tuple(layouts),
            whole_number("accumulate", accumulate, 1),
        )
        if not reshard and (made.sources or layouts is not None):
            raise UsageError("sources and layouts are for reshard=True, which cuts slices anew: give that as well")
        return made


@dataclass(frozen=True, kw_only=True)
class SearchArguments:
    """The arguments of `resume` that choose slices, as a program gives them, not yet checked."""

    pattern: str | None
    group_info: Paths
    strategy: Paths
    step: Step | str | tuple[int, int] | None
    ckpt_file: str | os.PathLike[str] | None
    run: str | None
    newest: bool
    tolerate: str | Iterable[str]
    fresh: Fresh
    rank_local: RankLocalChoice
    keep: str | Iterable[str]


def make_search(job: TrainingJob, root: str | os.PathLike[str], given: SearchArguments) -> Search:
    """Check the arguments of `resume`; UsageError when one is invalid."""
    if given.pattern is not None:
        check_type("pattern", given.pattern, str, "a text")
    if given.run is not None:
        check_type("run", given.run, str, "a text")
    check_type("newest", given.newest, bool, "True or False")
    if given.fresh not in ("refuse", "start"):
        raise UsageError(f"fresh={given.fresh!r}: it must be 'refuse' or 'start'")
    if given.rank_local not in get_args(RankLocalChoice):
        raise UsageError(f"rank_local={given.rank_local!r}: it must be 'peer', 'initial' or 'refuse'")
    run = given.run or os.environ.get(RUN, "") or None
    search = Search(
        home_path("root", root),
        ScanOptions(
            pattern=given.pattern,
            group_info=path_texts("group_info", given.group_info),
            strategy=path_texts("strategy", given.strategy),
        ),
        PlanOptions(world_size=job.size, run=run, newest=given.newest, tolerate=texts("tolerate", given.tolerate)),
        given.fresh,
        given.rank_local,
        from_environment=given.run is None,
        keep=texts("keep", given.keep),
    )
    return search.choosing(given.step, given.ckpt_file)


def prepare_search(job: TrainingJob, search: Search) -> Search:
    """Forget what was resumed before of the same experiments; return the search in the run of the chosen slice.

    All ranks call it.
    """
    if wait_for_tasks():
        _log.info("rank %d: waited for a slice that an earlier training was still writing", job.rank)
    given = agree_experiments(job, search.given)
    forget_resumed(given)
    return search.of_program(given).agreed(job)
