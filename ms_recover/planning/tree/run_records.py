"""Runs by their manifests, and the names by which a person chooses one, or an experiment."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime, timezone

from ms_recover.errors import UsageError
from ms_recover.model.manifest import RunStep
from ms_recover.model.steps import Step
from ms_recover.model.texts import list_some
from ms_recover.planning.tree.prefixes import base_of

_MOST_NAMED = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """Facts about one run, from the manifests of its slices.

    `started` is None for runs whose manifests do not state it. `begun` is the position of its first step where it began
    within the training and no manifest names the run before: it was resumed by hand. `newest` is its newest step in
    place, `aside` the newest of those that were set aside, None without one. `written` is when the last of its slices
    was modified, `newest_written` when that of the newest step was, in nanoseconds since 1970. `prefixes` are those of
    slices that no manifest gives a run's name: each names a run of its own. `base_prefix` is the experiment, which its
    manifests state; `bases` are the others, where savers with several prefixes share the run, and where no manifest
    states one those that the names of slices may stand for.
    """

    run_id: str
    started: int | None = None
    resumed_from: RunStep | None = None
    begun: Step | None = None
    newest: Step | None = None
    aside: Step | None = None
    written: int = 0
    newest_written: int = 0
    prefixes: tuple[str, ...] = ()
    base_prefix: str | None = None
    bases: tuple[str, ...] = ()

    @property
    def experiments(self) -> tuple[str, ...]:
        """The experiment that manifests state, or those that names stand for."""
        return self.bases if self.base_prefix is None else (self.base_prefix, *self.bases)

    def is_of(self, experiments: Collection[str]) -> bool:
        """Whether it is of one of some experiments, as far as this is known."""
        return not set(experiments).isdisjoint(self.experiments)

    @property
    def text(self) -> str:
        """The run with the time of its start, for messages."""
        name = f"run {self.run_id}" if self.run_id else "a run without a name"
        return name if self.started is None else f"{name}, started {time_text(self.started)}"


def names_experiment(records: Iterable[RunRecord], name: str) -> bool:
    """Whether a name is that of an experiment of which manifests name runs, and not that of a run."""
    named = [one for one in records if one.run_id]
    return any(one.is_of((name,)) for one in named) and not any(is_called(one, name, named) for one in named)


def choose_run(records: tuple[RunRecord, ...], name: str) -> RunRecord:
    """Return the run of a name; where manifests give none, the prefixes of slices stand for it, with or without ``_N``.

    Raises
    ------
    UsageError
        When there is none, or several.
    """
    found = [one for one in records if one.run_id and is_called(one, name, records)]
    found = found or [one for one in records if not one.run_id and is_called(one, name, records)]
    if len(found) == 1:
        return found[0]
    named = sorted((one for one in (found or records) if one.run_id), key=age_of, reverse=True)
    steps = (max(step for step in (one.newest, one.aside) if step is not None) for one in named)
    have = [f"{name_of(one, records)} ({one.text}, up to {step})" for one, step in zip(named, steps, strict=True)]
    nameless = [prefix for one in records if not one.run_id for prefix in one.prefixes]
    have += [f"{prefix} (by the prefix of its slices)" for prefix in nameless if not found]
    have += [f"{base} (an experiment)" for base in sorted({one.base_prefix or "" for one in named} - {""})]
    listed = list_some(have, _MOST_NAMED, separator="; ") or "no run that has a name"
    raise UsageError(f"there is {'no' if not found else 'more than one'} run {name!r} here; there is {listed}")


def is_called(run: RunRecord, name: str, records: Iterable[RunRecord]) -> bool:
    """Whether a run is meant by a name."""
    if not run.run_id:
        return name in run.prefixes or name in map(base_of, run.prefixes)
    return name in (run.run_id, name_of(run, records), f"{run.run_id}@{run.started}")


def name_of(run: RunRecord, runs: Iterable[RunRecord]) -> str:
    """Return the name by which a run is chosen: its id, with its start where another has the same id."""
    same = [one for one in runs if one.run_id == run.run_id]
    return run.run_id if len(same) < 2 or run.started is None else f"{run.run_id}@{run.started}"


def age_of(run: RunRecord) -> tuple[int, str]:
    """Return what orders runs by their start."""
    return -1 if run.started is None else run.started, run.run_id


def time_text(milliseconds: int) -> str:
    """Return a time in milliseconds since 1970 as UTC."""
    return f"{datetime.fromtimestamp(milliseconds // 1000, timezone.utc):%Y-%m-%d %H:%M:%S} UTC"
