"""The run of this process: its id, its start, the step that it was resumed from, and what its savers share."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from secrets import token_bytes

from ms_recover.errors import UsageError
from ms_recover.model.manifest import RunStep
from ms_recover.model.options import ScanOptions
from ms_recover.model.steps import Step
from ms_recover.planning.tree.lineage import RunRecord
from ms_recover.training.deciding.job import TrainingJob
from ms_recover.training.deciding.rotation import NO_STEP, Keeping
from ms_recover.training.deciding.runs import RUN_ID, agree_run_id, agree_start
from ms_recover.training.in_process import of_process

_log = logging.getLogger(__name__)


@dataclass(eq=False, kw_only=True)
class SharedNames:
    """The slices of one prefix in one directory, which the savers of a run write together."""

    prefix: str
    """With ``_N`` where earlier starts have the names without."""
    number: int = 0
    """The N."""
    saved: dict[Step, str] = field(default_factory=dict)
    """Committed steps and their paths, empty when removed: what one saver has saved, another one does not save again.
    """
    savers: list[Keeping] = field(default_factory=list)


@dataclass(eq=False, kw_only=True)
class TrainingRun:
    """One training: everything that was saved since it began."""

    run_id: str
    """The same for all ranks, see `ms_recover.training.deciding.runs`."""
    started: int | None
    """See `ms_recover.model.manifest.TrainingRecord`."""
    resumed_from: RunStep | None
    owner: object
    """What the run belongs to: savers of one owner share it."""
    resharded_from: int | None = None
    """How many ranks saved the slices that it was resumed from, where they were cut anew."""
    newest: Step = NO_STEP
    """The newest step that was to be saved."""
    users: int = 0
    """Savers that have not given their directories back."""
    said: set[Hashable] = field(default_factory=set)
    """What one of its savers has said, so that the others do not say it again."""
    names: dict[tuple[str, str], SharedNames] = field(default_factory=dict)
    """By directory and prefix."""

    def leave(self) -> None:
        """Count one saver less; behind the last one the run has ended."""
        self.users -= 1
        if self.users <= 0:
            self.owner = self  # which nobody else is; the owner may hold a network
            begun = of_process(Runs).begun
            if self in begun:
                begun.remove(self)

    def record(self, begun: Step) -> RunRecord:
        """Return what its manifests will state, when it begins at a position."""
        by_hand = begun if self.resumed_from is None and begun > NO_STEP else None
        return RunRecord(
            run_id=self.run_id, started=self.started, resumed_from=self.resumed_from, begun=by_hand, newest=begun
        )


@dataclass(frozen=True, kw_only=True)
class OtherWorld:
    """Slices of other ranks that a training was resumed from; those of the training must not be mixed with them.

    Parameters
    ----------
    root : str
        The tree.
    scanning : ScanOptions
        Where its slices lie.
    ranks : int
        How many ranks saved them.
    newest_start : int
        When the last run that saved slices anywhere was started, 0 where nothing states it.
    files : mapping of str to bytes
        What the compiler would have written beside the slices, by path.
    """

    root: str
    scanning: ScanOptions
    ranks: int
    newest_start: int = 0
    files: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """The experiment of a step that was loaded although nothing said which is meant, and the tree that it is from.

    A saver with another prefix must not go on with it in that tree. No `experiments` are any.
    """

    experiments: tuple[str, ...] = ()
    root: str = ""

    def why_not(self, experiment: str, directory: str) -> str | None:
        """Return why a saver of an experiment may not go on with it in a directory; None where it may."""
        top = os.path.join(os.path.realpath(self.root), "")
        if not self.experiments or experiment in self.experiments or not os.path.realpath(directory).startswith(top):
            return None
        names = " and ".join(map(repr, self.experiments))
        return (
            f"of the experiment {names} in {self.root} was loaded, and this saver has the prefix {experiment!r}: give "
            f"the resume prefix={experiment!r}, so that it resumes this program's own slices, or "
            f"run={self.experiments[0]!r} to begin {experiment!r} from that step"
        )


NOT_LOADED = Loaded()
"""Where a program said what it means, or loaded nothing."""


@dataclass(frozen=True, kw_only=True)
class Resumed:
    """A step that this process has loaded, with which no run has gone on yet."""

    step: RunStep
    own: tuple[str, ...]
    """The experiments of the program, as the resume was given them; empty where they are not known."""
    resharded_from: int | None = None
    newest_start: int = 0
    loaded: Loaded = NOT_LOADED


@dataclass(eq=False)
class Runs:
    """The runs of this process, and what it has resumed."""

    begun: list[TrainingRun] = field(default_factory=list)
    """Those that have begun and not ended, the last behind."""
    resumed: list[Resumed] = field(default_factory=list)
    resumes: int = 0
    """How often the process has resumed: a saver that was there before begins a new run."""
    other_world: OtherWorld | None = None
    """Slices of other ranks that have to be set aside before the next run saves one."""
    accumulate: int = 1
    """How many steps of the dataset make up one update of the weights, as the program said when it resumed; slices
    that are saved state it."""

    def resumed_by(self, experiment: str) -> Resumed | None:
        """Return what a saver of an experiment goes on from; None where nothing was resumed."""
        own = [one for one in self.resumed if experiment in one.own]
        found = own or self.resumed
        return found[-1] if found else None


def note_resumed(
    step: RunStep, other: OtherWorld | None = None, loaded: Loaded = NOT_LOADED, own: tuple[str, ...] = ()
) -> None:
    """Remember the step that this process has just loaded, and that it was cut anew: the next run goes on from it.

    With several, such as those of two networks, that of a program's `own` experiment does. Where nothing said which
    experiment is meant, `loaded` names it.
    """
    runs = of_process(Runs)
    runs.other_world = other
    runs.resumed.append(
        Resumed(
            step=step,
            own=own,
            resharded_from=None if other is None else other.ranks,
            newest_start=0 if other is None else other.newest_start,
            loaded=loaded,
        )
    )
    runs.resumes += 1


def forget_resumed(own: tuple[str, ...] = ()) -> None:
    """Forget what was loaded, or of that what a program with some experiments of its `own` has: runs begin anew."""
    runs = of_process(Runs)
    runs.resumed = [one for one in runs.resumed if own and one.own and set(one.own).isdisjoint(own)]
    runs.other_world = None


def check_experiment(experiment: str, directory: str) -> None:
    """Raise UsageError where a saver would go on with another experiment's training that nobody chose."""
    resumed = of_process(Runs).resumed_by(experiment)
    why = resumed.loaded.why_not(experiment, directory) if resumed is not None else None
    if resumed is not None and why is not None:
        raise UsageError(f"step {resumed.step.step} {why}")


def begin_run(
    job: TrainingJob,
    owner: object,
    first: Step,
    known: int,
    but_not: TrainingRun | None = None,
    *,
    experiment: str = "",
) -> TrainingRun:
    """Return the run that a saver of an experiment belongs to: a new one, or that of another saver of the training.

    Each saver leaves it once. Two savers of a training have the same `owner`. That of a loop is the set of what it
    saves: savers that have something in common share a run as long as nothing was resumed between them and `first`,
    the step that is to be saved, does not go back. A saver begins no run twice. `known` is the start of the last run
    that this rank knows of: a new one starts later, whatever the clock says. All ranks call this function together.
    """
    runs = of_process(Runs)
    run = next((one for one in reversed(runs.begun) if _is_same(one.owner, owner)), None)
    resumed = runs.resumed_by(experiment)
    goes_back = isinstance(owner, frozenset) and run is not None and first < run.newest
    if run is None or run is but_not or resumed is not None or goes_back:
        newest = 0 if resumed is None else resumed.newest_start
        run_id = agree_run_id(job, os.environ.get(RUN_ID, ""), token_bytes)
        started = agree_start(job, max(known, newest), time.time)
        run = TrainingRun(
            run_id=run_id,
            started=started,
            resumed_from=None if resumed is None else resumed.step,
            resharded_from=None if resumed is None else resumed.resharded_from,
            owner=owner,
        )
        runs.begun.append(run)
        if resumed is not None:
            forget = {id(resumed)} if experiment in resumed.own else set(map(id, runs.resumed))
            runs.resumed = [one for one in runs.resumed if id(one) not in forget]
    run.users += 1
    return run


def _is_same(one: object, other: object) -> bool:
    if isinstance(one, frozenset) and isinstance(other, frozenset):
        return not one.isdisjoint(other)
    return one is other
