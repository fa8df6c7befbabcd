"""Removal of old slices: only those that every rank has a newer one of."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from ms_recover.errors import MsRecoverError
from ms_recover.execution.save_slice import withdraw
from ms_recover.file_names import MANIFEST_SUFFIX, SLICE_FORMATS, STATE_SUFFIX, SUPERSEDED_SUFFIX
from ms_recover.formats.manifest import read_manifest
from ms_recover.model.manifest import Manifest
from ms_recover.model.steps import Step
from ms_recover.model.texts import list_some
from ms_recover.planning.lineage import (
    Lineage,
    RunRecord,
    find_lineage,
    identity_of,
    merge_run_records,
    record_of,
)
from ms_recover.training.job import TrainingJob

NO_STEP = Step(0, 0)
"""Stands for no committed step; older than every step."""

_NAME = re.compile(
    rf"(?P<prefix>.+)-(?P<epoch>\d+)_(?P<step>\d+)\.(?:{'|'.join(SLICE_FORMATS)})"
    rf"(?P<aside>(?:\.\d+)?{re.escape(SUPERSEDED_SUFFIX)})?\Z",
    re.ASCII | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class HeldSlice:
    """A slice in the directory of a rank, in place or set aside."""

    path: str
    prefix: str
    step: Step
    aside: bool = False
    manifest: Manifest | None = None
    """Only of slices that an earlier run saved."""

    @property
    def run(self) -> tuple[str, int | None]:
        """The id and the start of the run that saved it."""
        return identity_of(self.manifest)


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
class Earlier:
    """The slices of earlier runs in a directory: `own` are those that this run goes on from, the last saved first.

    Of `halves` a kill has left no manifest: it came before they were committed, or while they were removed.
    """

    own: Sequence[HeldSlice] = field(default=())
    others: Sequence[HeldSlice] = field(default=())
    halves: Sequence[HeldSlice] = field(default=())

    def without(self, gone: Sequence[HeldSlice]) -> Earlier:
        """Return the slices that are left when some were removed."""
        paths = {one.path for one in gone}
        return Earlier(
            *(tuple(one for one in held if one.path not in paths) for held in (self.own, self.others, self.halves))
        )


def agree_floor(
    job: TrainingJob, committed: Step, failure: Exception | None, summary: Sequence[int] = ()
) -> tuple[Step, list[tuple[int, ...]]]:
    """Return the newest step that every rank has committed, by each rank's own (`NO_STEP` for none), and all summaries.

    All ranks call this function, with a `summary` of equal length; summaries are returned by rank. A rank without
    communication goes by its own step. Where this rank could not save, its `failure` is raised; MsRecoverError when
    another rank could not save, or is gone.
    """
    own = (int(failure is not None), committed.epoch, committed.step, *summary)
    try:
        answers = job.gather(own) if job.connected else [own]
    except MsRecoverError:  # another rank is gone, but the failure of this one is more specific
        if failure is None:
            raise
        answers = [own]
    if failure is not None:
        raise failure
    failed = [rank for rank, (flag, *_) in enumerate(answers) if flag]
    if failed:
        raise MsRecoverError(
            f"rank {job.rank} stops behind step {committed}: rank(s) {list_some(failed)} could not save their "
            "slices; see their logs"
        )
    floor = min(Step(epoch, step) for _, epoch, step, *_ in answers)
    return floor, [row[3:] for row in answers]


def rotate(
    folder: str, prefix: str, savers: Sequence[Keeping], floor: Step, earlier: Earlier = Earlier(), runs: int = 1
) -> list[HeldSlice]:
    """Remove the slices that no saver keeps, each together with its manifest; return them, newest first.

    The slice of `floor`, the newest step that every rank has committed, and newer ones stay, because a recovery goes
    back to it. See `choose_gone`.
    """
    gone = choose_gone(find_slices(folder, prefix), savers, floor, earlier, runs)
    if gone:
        withdraw([one.path for one in gone])
    return gone


def choose_gone(
    own: Iterable[HeldSlice], savers: Sequence[Keeping], floor: Step, earlier: Earlier, runs: int
) -> list[HeldSlice]:
    """Return the slices that no saver keeps, and that every rank has a newer one of; newest first.

    Each saver keeps its newest slices over this run, those that it goes on from, and those that were given up, in this
    order, and so many of each of the last `runs` runs. Slices of runs that were given up go when `floor` has come as
    far as they had.
    """
    mine = sorted(own, key=_step, reverse=True)
    committed = [one for one in mine if one.manifest is not None or os.path.exists(one.path + MANIFEST_SUFFIX)]
    listed = {step for saver in savers for step in saver.saved}
    due = {one.path for one in earlier.own for saver in savers if saver.is_due(one)}
    recent = _recent((*earlier.own, *earlier.others), runs - 1)
    given_up = sorted(earlier.others, key=_step, reverse=True)
    stay: set[str] = set()
    for saver in savers:
        line = [one for one in committed if one.step in saver.saved or one.step not in listed]
        before = [one for one in earlier.own if saver.is_due(one) or one.path not in due]
        stay.update(one.path for one in [*line, *before, *given_up][: saver.keep])
        for run in recent:
            of_run = [one for one in (*earlier.own, *earlier.others) if one.run == run]
            stay.update(one.path for one in sorted(of_run, key=_step, reverse=True)[: saver.keep])
    gone = [one for one in mine if one.step < floor]
    gone += [one for one in earlier.own if floor != NO_STEP]
    gone += [one for one in earlier.others if one.step <= floor]
    gone += [one for one in earlier.halves if one.step < floor]
    return [one for one in gone if one.path not in stay]


def find_slices(folder: str, prefix: str) -> list[HeldSlice]:
    """Return the slices of one start in a directory, by their prefix."""
    found = (_held(folder, name) for name in os.listdir(folder))
    return [one for one in found if one is not None and one.prefix == prefix and not one.aside]


def next_prefix(names: Iterable[str], prefix: str) -> str:
    """Return the prefix of the next start: with ``_N`` behind it where the names are of earlier ones.

    As ``ModelCheckpoint`` does it; slices that were set aside count, so that they can be brought back.
    """
    used = {match["prefix"] for name in names if (match := _NAME.match(name)) is not None}
    last = max((number for one in used if (number := _start_number(one, prefix)) is not None), default=None)
    return prefix if last is None else f"{prefix}_{last + 1}"


def find_earlier(folder: str, base: str, prefix: str, run: RunRecord) -> Earlier:
    """Return the slices that earlier runs of a job left in a directory.

    Their names begin with `base`, as those of all starts do; `prefix` is that of the present start. Slices that no
    manifest of training describes do not count. None count where the present run has no start: nothing orders them.
    """
    found = _of_other_starts(folder, base, prefix)
    saved = [one for one in found if one.manifest and one.run[0] and one.manifest.provenance.kind != "sealed"]
    lineage = _lineage(saved, run)
    if lineage is None:
        return Earlier()
    orders = {one.path: None if one.aside else lineage.order_of(one.manifest, one.step) for one in saved}
    own = [(order, one.path, one) for one in saved if (order := orders[one.path]) is not None]
    others = tuple(one for one in saved if orders[one.path] is None)
    ordered = tuple(one for _, _, one in sorted(own, key=_by_order, reverse=True))
    return Earlier(ordered, others, _halves(folder, base, prefix))


def _halves(folder: str, base: str, prefix: str) -> tuple[HeldSlice, ...]:
    """Return what has a state file, which savers alone write, and no manifest."""
    names = [name.removesuffix(STATE_SUFFIX) for name in sorted(os.listdir(folder)) if name.endswith(STATE_SUFFIX)]
    found = [one for name in names if (one := _held(folder, name)) is not None]
    return tuple(
        one
        for one in found
        if not one.aside
        and one.prefix != prefix
        and _start_number(one.prefix, base) is not None
        and not os.path.lexists(one.path + MANIFEST_SUFFIX)
    )


def find_newer(folder: str, base: str, prefix: str, run: RunRecord, begun: Step) -> list[HeldSlice]:
    """Return the slices in place that are newer than the beginning of a run, and of none that it goes on from."""
    found = [one for one in _of_other_starts(folder, base, prefix) if not one.aside]
    lineage = _lineage(found, run)
    return [
        one
        for one in found
        if one.step > begun and (lineage is None or lineage.order_of(one.manifest, one.step) is None)
    ]


def _of_other_starts(folder: str, base: str, prefix: str) -> list[HeldSlice]:
    found = []
    for name in sorted(os.listdir(folder)):
        one = _held(folder, name)
        if one is None or one.prefix == prefix or _start_number(one.prefix, base) is None:
            continue
        try:
            found.append(replace(one, manifest=read_manifest(one.path + MANIFEST_SUFFIX)))
        except MsRecoverError:
            found.append(one)
    return found


def _lineage(slices: Iterable[HeldSlice], run: RunRecord) -> Lineage | None:
    if run.started is None:
        return None
    records = [replace(record_of(one.manifest), newest=one.step) for one in slices]
    return find_lineage(merge_run_records([*records, run]))


def _by_order(one: tuple[tuple[int, Step], str, HeldSlice]) -> tuple[tuple[int, Step], str]:
    return one[:2]


def _start_number(prefix: str, base: str) -> int | None:
    """Return the ``N`` of a start whose slices have the prefix ``{base}_N``, 0 for the base alone, None for others."""
    match = re.fullmatch(rf"{re.escape(base)}(?:_(\d+))?", prefix, re.ASCII)
    return int(match[1] or 0) if match is not None else None


def _held(folder: str, name: str) -> HeldSlice | None:
    match = _NAME.match(name)
    if match is None:
        return None
    step = Step(int(match["epoch"]), int(match["step"]))
    return HeldSlice(os.path.join(folder, name), match["prefix"], step, match["aside"] is not None)


def _recent(slices: Iterable[HeldSlice], count: int) -> list[tuple[str, int | None]]:
    """Return the last `count` runs that saved slices."""
    runs = {one.run for one in slices}
    return sorted(runs, key=lambda run: (run[1] or -1, run[0]), reverse=True)[:count] if count > 0 else []


def _step(one: HeldSlice) -> Step:
    return one.step
