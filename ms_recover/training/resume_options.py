"""The keywords that `resume` and `recover_train` share, as one value: what a program gave, checked."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, get_args

from ms_recover.arguments import check_type, texts, whole_number
from ms_recover.errors import UsageError
from ms_recover.loading.path_arguments import home_path, path_texts, source_texts
from ms_recover.model.options import PlanOptions, ScanOptions
from ms_recover.model.rank_local import RankLocalChoice
from ms_recover.model.steps import Step
from ms_recover.model.strategy import Layout
from ms_recover.planning.tree.lineage import RUN
from ms_recover.training.deciding.equal_arguments import Text, or_not_given
from ms_recover.training.layouts import layouts_given
from ms_recover.training.search import Fresh, Search, step_in_name, step_of


@dataclass(frozen=True, kw_only=True)
class ResumeOptions:
    """What a resume was asked for; the fields are the keywords of `recover_train`, where they are described."""

    root: str
    pattern: str | None = None
    group_info: tuple[str, ...] = ()
    strategy: tuple[str, ...] = ()
    step: Step | None = None
    """The chosen step, by its name or by that of `ckpt_file`."""
    ckpt_file: str | None = None
    run: str | None = None
    """The chosen run, by the keyword or by the variable."""
    prefix: tuple[str, ...] | None = None
    newest: bool = False
    tolerate: tuple[str, ...] = ()
    fresh: Fresh = "refuse"
    rank_local: RankLocalChoice = "refuse"
    keep: tuple[str, ...] = ()
    reshard: bool = False
    sources: tuple[str, ...] = ()
    layouts: tuple[Layout, ...] | None = None
    accumulate: int = 1
    from_environment: bool = False
    """Whether the run was chosen by the variable, which stays when the training is started again."""
    experiments: tuple[str, ...] = ()
    """Those of the program, by the prefix or by what saves its slices; empty where they are not known."""

    @classmethod
    def of(cls, keywords: Mapping[str, Any], environ: Mapping[str, str] = os.environ) -> ResumeOptions:
        """Check the keywords of a program, of which those of a resume are taken; UsageError when one is invalid."""
        made = cls(**{name: check(name, keywords[name]) for name, check in _CHECKS.items() if name in keywords})
        if not made.reshard and (made.sources or made.layouts is not None):
            raise UsageError("sources and layouts are for reshard=True, which cuts slices anew: give that as well")
        run, step = made.run or environ.get(RUN, "") or None, made.step
        if made.ckpt_file is not None:
            if step is not None or run is not None:
                raise UsageError("ckpt_file names the step and the run to resume: leave step and run out")
            step = step_in_name(made.ckpt_file)
        return replace(made, run=run, step=step, from_environment=made.run is None)

    def of_program(self, experiments: tuple[str, ...]) -> ResumeOptions:
        """Return the options of a program with these experiments."""
        return replace(self, experiments=experiments)

    def search(self, ranks: int) -> Search:
        """Return where slices are looked for, and how they are chosen, by a program on so many ranks."""
        return Search(
            self.root,
            ScanOptions(pattern=self.pattern, group_info=self.group_info, strategy=self.strategy),
            PlanOptions(world_size=ranks, run=self.run, newest=self.newest, tolerate=self.tolerate),
            self.fresh,
            self.rank_local,
            from_environment=self.from_environment,
            step=self.step,
            ckpt_file=self.ckpt_file,
            given=self.experiments,
            keep=self.keep,
        )

    @property
    def to_agree(self) -> dict[str, Any]:
        """What all ranks must have alike; a slice that chooses the step, sources and layouts may be a rank's own."""
        run = self.run
        return {
            "run": Text(f"{run!r} by {RUN}") if run is not None and self.from_environment else run,
            "ckpt_file": None if self.ckpt_file is None else Text(f"of step {self.step}"),
            "step": None if self.step is None or self.ckpt_file is not None else str(self.step),
            "newest": self.newest,
            "tolerate": sorted(self.tolerate),
            "fresh": self.fresh,
            "rank_local": self.rank_local,
            "keep": sorted(self.keep),
            "reshard": self.reshard,
            "sources": or_not_given(self.sources),
            "layouts": or_not_given(self.layouts),
            "accumulate": self.accumulate,
        }


def _of_type(kind: type, words: str) -> Callable[[str, Any], Any]:
    def check(name: str, value: Any) -> Any:
        check_type(name, value, kind, words)
        return value

    return check


def _or_none(check: Callable[[str, Any], Any]) -> Callable[[str, Any], Any]:
    return lambda name, value: None if value is None else check(name, value)


def _one_of(*allowed: str, words: str) -> Callable[[str, Any], Any]:
    def check(name: str, value: Any) -> Any:
        if value not in allowed:
            raise UsageError(f"{name}={value!r}: it must be {words}")
        return value

    return check


_CHECKS: Mapping[str, Callable[[str, Any], Any]] = {
    "pattern": _or_none(_of_type(str, "a text")),
    "run": _or_none(_of_type(str, "a text")),
    "newest": _of_type(bool, "True or False"),
    "fresh": _one_of(*get_args(Fresh), words="'refuse' or 'start'"),
    "rank_local": _one_of(*get_args(RankLocalChoice), words="'peer', 'initial' or 'refuse'"),
    "root": home_path,
    "group_info": path_texts,
    "strategy": path_texts,
    "tolerate": texts,
    "keep": texts,
    "step": lambda _, value: step_of(value),
    "ckpt_file": _or_none(home_path),
    "prefix": _or_none(texts),
    "reshard": _of_type(bool, "True or False"),
    "sources": source_texts,
    "layouts": _or_none(layouts_given),
    "accumulate": lambda name, value: whole_number(name, value, 1),
}
"""In the order in which a wrong one is named; each returns the value of the field."""
