"""Removal of old slices: of those that the present run or one that it goes on from claims, what newer ones replace.

A manifest claims its slice by the experiment, the run and the file name that it states, and a state file what a kill
left without a manifest. Nothing else is removed: no run that nothing was begun from, none of another experiment, none
whose manifests state no experiment.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace

from ms_recover.model.steps import Step
from ms_recover.model.texts import list_some
from ms_recover.planning.tree.lineage import Lineage, RunRecord, find_lineage, merge_run_records, record_of
from ms_recover.training.deciding.experiment import experiment_of
from ms_recover.training.deciding.held_slice import Held, HeldSlice
from ms_recover.training.deciding.job import TrainingJob

NO_STEP = Step(0, 0)
"""Stands for no committed step; older than every step."""


@dataclass(frozen=True, slots=True)
class Keeping:
    """Which slices one saver keeps.

    It saved the steps `saved` of this run. Of earlier runs it keeps those that its schedule has: `every` so many steps
    of the training, or up to `stride` - 1 behind these; any where that is not known.
    """

    keep: int
    saved: set[Step]
    every: int | None = None
    stride: int = 1

    def is_due(self, one: HeldSlice) -> bool:
        """Whether the schedule has a slice of an earlier run."""
        steps = one.manifest.cumulative_step if one.manifest is not None else None
        return self.every is None or steps is None or steps % self.every < self.stride


@dataclass(frozen=True, slots=True)
class Claims:
    """Whose slices a training may remove: those of its experiment that the runs saved which it goes on from.

    `runs` are their ids and starts, the last one first; a run without a start may be any.
    """

    rank: int
    experiment: str
    runs: tuple[tuple[str, int | None], ...] = ()

    @classmethod
    def of(cls, rank: int, base: str, lineage: Lineage) -> Claims:
        """Return the claims of a lineage, whose last run is the present one, by the prefix that the program gave."""
        runs = ((one.run_id or "", one.started) for one in lineage.members[1:] if one.started is not None)
        return cls(rank, experiment_of(base), tuple(runs))

    def has(self, one: HeldSlice) -> bool:
        """Whether a slice is claimed, by its manifest, which names the file too, or by the state file of a half."""
        if one.run not in self.runs:
            return False
        if one.manifest is None:
            return one.claim is not None and (one.claim.base_prefix, one.claim.prefix) == (self.experiment, one.prefix)
        training = one.manifest.training
        stated = training.base_prefix if training is not None else None
        named = (one.manifest.rank, one.manifest.file, one.manifest.step) == (self.rank, one.file, one.step)
        return named and stated == self.experiment and one.manifest.provenance.kind != "sealed"


@dataclass(frozen=True, slots=True)
class Earlier:
    """The claimed slices in a directory: `own` are those that this run goes on from, the last saved first.

    `others` are those that the same runs saved behind the step that was gone on from. Of `halves` a kill has left
    no manifest, or no slice: it came while they were saved or removed. `runs` are those of the claims.
    """

    own: Sequence[HeldSlice] = field(default=())
    others: Sequence[HeldSlice] = field(default=())
    halves: Sequence[HeldSlice] = field(default=())
    runs: Sequence[tuple[str, int | None]] = field(default=())

    @property
    def all(self) -> tuple[HeldSlice, ...]:
        """Every one."""
        return (*self.own, *self.others, *self.halves)

    def without(self, gone: Sequence[HeldSlice]) -> Earlier:
        """Return the slices that are left when some were removed."""
        paths = {one.path for one in gone}
        own, others, halves = (
            [one for one in held if one.path not in paths] for held in (self.own, self.others, self.halves)
        )
        return Earlier(own, others, halves, self.runs)


NOTHING_EARLIER = Earlier()
"""Where no earlier run left a slice that is claimed."""


def agree_floor(
    job: TrainingJob,
    committed: Step,
    failure: Exception | None,
    summary: Sequence[int] = (),
    doing: str = "saving",
    named: str = "",
) -> tuple[list[Step], list[tuple[int, ...]]]:
    """Return the newest step that each rank has committed (`NO_STEP` for none), and all summaries, both by rank.

    The oldest of them is the newest that every rank has committed. All ranks call this function, with a `summary` of
    equal length. A rank without communication goes by its own step. Where this rank could not save, its `failure` is
    raised; MsRecoverError when another rank could not save, or is gone.
    """
    with job.ending_together("saving a slice"):
        if failure is not None:
            raise failure
    own = (committed.epoch, committed.step, *summary)
    answers = job.gather(own, doing, named=named) if job.connected else [own]
    return [Step(epoch, step) for epoch, step, *_ in answers], [row[2:] for row in answers]


def steps_apart(committed: Sequence[Step]) -> str | None:
    """Return why no step can be resumed where ranks have committed different ones at one save, else None."""
    by_step: dict[Step, list[int]] = {}
    for rank, step in enumerate(committed):
        by_step.setdefault(step, []).append(rank)
    if len(by_step) == 1 or NO_STEP in by_step:
        return None
    steps = list_some((f"step {step} of rank(s) {list_some(ranks)}" for step, ranks in by_step.items()), separator="; ")
    return (
        f"ranks save different steps ({steps}), so that no step is that of all ranks and none can be resumed: their "
        "epochs have unequal numbers of steps, or they save at different ones; give all ranks as many samples, or "
        "save by steps (save_steps)"
    )


def choose_gone(
    mine: Iterable[HeldSlice], savers: Sequence[Keeping], floor: Step, earlier: Earlier, runs: int
) -> list[HeldSlice]:
    """Return the slices that no saver keeps, and that every rank has a newer one of; newest first.

    `mine` are those of this run. Each saver keeps its newest slices over this run, those that it goes on from, and
    those that were given up, in this order, and so many of each of the last `runs` runs. Slices that were given up go
    when `floor` has come as far as they had.
    """
    committed = sorted(mine, key=_step, reverse=True)
    listed = {step for saver in savers for step in saver.saved}
    due = {one.path for one in earlier.own for saver in savers if saver.is_due(one)}
    given_up = sorted(earlier.others, key=_step, reverse=True)
    stay: set[str] = set()
    for saver in savers:
        line = [one for one in committed if one.step in saver.saved or one.step not in listed]
        before = [one for one in earlier.own if saver.is_due(one) or one.path not in due]
        stay.update(one.path for one in [*line, *before, *given_up][: saver.keep])
        for run in _recent(earlier, runs - 1):
            of_run = [one for one in (*earlier.own, *earlier.others) if one.run == run]
            stay.update(one.path for one in sorted(of_run, key=_step, reverse=True)[: saver.keep])
    gone = [one for one in committed if one.step < floor]
    gone += [one for one in earlier.own if floor != NO_STEP]
    gone += [one for one in earlier.others if one.step <= floor]
    gone += [one for one in earlier.halves if one.step < floor]
    gone = [one for one in gone if one.path not in stay]
    bridges = _bridges(earlier, {one.path for one in gone})
    return [one for one in gone if one.path not in bridges]


def _bridges(earlier: Earlier, gone: Collection[str]) -> set[str]:
    """Return a slice of each run of which none would stay, although slices of an older run do.

    Its manifest names the run before. Without it the next start could not know whose the older ones are.
    """
    bridges: set[str] = set()
    older = False
    for run in reversed(earlier.runs):
        held = [one for one in (*earlier.own, *earlier.others) if one.run == run]
        left = [one for one in earlier.all if one.run == run and one.path not in gone]
        if older and held and not any(one.manifest is not None for one in left):
            bridges.add(max(held, key=_step).path)
        older = older or bool(left)
    return bridges


def earlier_of(held: Sequence[HeldSlice], base: str, run: RunRecord, rank: int = 0) -> Earlier:
    """Return those of the slices in a directory that the runs left which the present one goes on from, as claimed.

    `base` is the prefix that the program gave. None count where the present run has no start: nothing orders them.
    """
    lineage = _lineage(held, run)
    if lineage is None:
        return NOTHING_EARLIER
    claims = Claims.of(rank, base, lineage)
    claimed = [one for one in held if claims.has(one)]
    saved = [one for one in claimed if one.manifest is not None and one.is_there]
    orders = {one.path: None if one.aside else lineage.order_of(one.manifest, one.step) for one in saved}
    own = [(order, one.path, one) for one in saved if (order := orders[one.path]) is not None]
    others = tuple(one for one in saved if orders[one.path] is None)
    ordered = tuple(one for _, _, one in sorted(own, key=_by_order, reverse=True))
    whole = {one.path for one in saved}
    halves = tuple(one for one in claimed if one.path not in whole)
    return Earlier(ordered, others, halves, claims.runs)


def newer_of(held: Sequence[HeldSlice], base: str, run: RunRecord, begun: Step) -> list[HeldSlice]:
    """Return the experiment's slices in place that are newer than the beginning of a run, and of none it goes on from.

    Those of other experiments are none of them, whatever their names.
    """
    lineage = _lineage(held, run)
    return [
        one
        for one in Held(tuple(held), base).own
        if one.step > begun
        and not one.aside
        and one.is_there
        and (lineage is None or lineage.order_of(one.manifest, one.step, base) is None)
    ]


def _lineage(slices: Iterable[HeldSlice], run: RunRecord) -> Lineage | None:
    if run.started is None:
        return None
    records = [replace(record_of(one.manifest), newest=one.step) for one in slices if one.manifest is not None]
    before = [one for one in records if one.started is None or one.started < run.started]
    return find_lineage(merge_run_records([*before, run]))


def _by_order(one: tuple[tuple[int, Step], str, HeldSlice]) -> tuple[tuple[int, Step], str]:
    return one[:2]


def _recent(earlier: Earlier, count: int) -> list[tuple[str, int | None]]:
    """Return the last `count` runs of which slices are left."""
    left = {one.run for one in (*earlier.own, *earlier.others)}
    return [run for run in earlier.runs if run in left][:count] if count > 0 else []


def _step(one: HeldSlice) -> Step:
    return one.step
