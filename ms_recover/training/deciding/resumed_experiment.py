"""The experiment that a program resumes: that of its own savers, and never in silence another one.

All ranks decide by the runs that they see together, so that they decide alike.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ms_recover.errors import UsageError
from ms_recover.model.steps import Step
from ms_recover.model.texts import list_some
from ms_recover.planning.tree.lineage import RunRecord, names_experiment
from ms_recover.training.deciding.job import TrainingJob

_MOST_NAMED = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """The experiments whose runs are candidates; all where there are none.

    Where there is nothing of those that were given, `others` are the experiments that are there, each with its newest
    step in place.
    """

    experiments: tuple[str, ...] = ()
    run: str | None = None
    """The run that is chosen, unless the name that was given is that of an experiment."""
    own: tuple[str, ...] = ()
    """Those of the program, whose slices are set aside where they are newer; empty where they are not known."""
    loaded: tuple[str, ...] = ()
    """Those with which a saver may go on although nothing said which is meant; empty for any."""
    others: tuple[tuple[str, Step], ...] = ()

    def why_none(self, root: str) -> str:
        """Return that there is nothing of the program's own, and what there is."""
        names = list_some((f"{name!r} (up to step {step})" for name, step in self.others), _MOST_NAMED)
        return (
            f"no slice under {root} is of {' or '.join(map(repr, self.own))}, the prefix of this program; there are "
            f"slices of {names}, which stay as they are: run={self.others[0][0]!r} resumes from such"
        )


TAKES_ALL = Taken()
"""Where nothing is known of experiments."""


def agree_experiments(job: TrainingJob, given: Sequence[str]) -> tuple[str, ...]:
    """Return the experiments that any rank was given; all ranks call it together."""
    return tuple(sorted({name for text in job.gather_text(json.dumps(given), "resuming") for name in json.loads(text)}))


def take_experiment(runs: Sequence[RunRecord], given: tuple[str, ...], run: str | None, root: str) -> Taken:
    """Choose the experiments whose runs are candidates, by the runs that any rank sees.

    Experiments of which one run has slices, because its savers have several prefixes, are one choice. Those that no
    manifest states are told apart where one is given; otherwise they are read as ever.

    Raises UsageError when there are several, and nothing says which is meant.
    """
    there = [one for one in runs if one.newest is not None]
    stated = [one for one in there if one.base_prefix is not None]
    parts = _parts(stated)
    if run is not None and not names_experiment(runs, run):
        return Taken(run=run, own=given)
    if run is not None:
        return Taken(experiments=_joined((run,), parts), own=given or (run,))
    if given:
        taken = _joined(given, parts)
        others = {} if any(one.is_of(taken) for one in there) else _newest(there)
        return Taken(experiments=taken, own=given, others=tuple(sorted(others.items())))
    if len(parts) > 1:
        newest = _newest(stated)
        names = list_some((f"{name!r} (up to step {step})" for name, step in sorted(newest.items())), _MOST_NAMED)
        raise UsageError(
            f"the slices under {root} are of several experiments: {names}; name the one to resume: a SliceCheckpoint "
            f"among the callbacks gives its prefix, prefix={min(newest)!r} does, or run={min(newest)!r}"
        )
    return Taken(loaded=tuple(sorted(parts[0])) if parts else ())


def _parts(runs: Iterable[RunRecord]) -> list[set[str]]:
    """Return the experiments, those of one run together."""
    parts: list[set[str]] = []
    for run in runs:
        names = set(run.experiments)
        joined = [part for part in parts if not part.isdisjoint(names)]
        parts = [part for part in parts if part.isdisjoint(names)]
        if names:
            parts.append(names.union(*joined))
    return parts


def _joined(names: Iterable[str], parts: Iterable[set[str]]) -> tuple[str, ...]:
    listed = set(names)
    return tuple(sorted(listed.union(*(part for part in parts if not part.isdisjoint(listed)))))


def _newest(runs: Iterable[RunRecord]) -> dict[str, Step]:
    """Return the newest step of each experiment."""
    found: dict[str, Step] = {}
    for run in runs:
        for name in run.experiments:
            if run.newest is not None:
                found[name] = max(found.get(name, run.newest), run.newest)
    return found
