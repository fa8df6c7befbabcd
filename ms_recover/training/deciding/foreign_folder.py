"""A rank's folder that is of another training: nobody knows then which of the two all ranks are to go on with.

A folder that was lost holds nothing, and one that was put back from an older copy holds a run that the present one goes
on from. A folder of another training has slices of a run that has nothing to do with the one that is resumed, and none
of that one.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ms_recover.errors import UsageError
from ms_recover.model.inventory import Inventory
from ms_recover.model.texts import list_some
from ms_recover.planning.tree.facts import Facts
from ms_recover.planning.tree.lineage import Lineage, RunRecord, identity_of
from ms_recover.training.deciding.job import TrainingJob

Identity = tuple[str, int | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldRuns:
    """The runs of which a rank has slices, by id and start: in place, and anywhere."""

    in_place: frozenset[Identity] = frozenset()
    anywhere: frozenset[Identity] = frozenset()

    def __or__(self, other: HeldRuns) -> HeldRuns:
        """Return what two ranks see together."""
        return HeldRuns(in_place=self.in_place | other.in_place, anywhere=self.anywhere | other.anywhere)


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignFolders:
    """Ranks that have slices of `runs` alone, which have nothing to do with the run that is resumed.

    It is `settled` where most ranks have that run, or where the others may be runs that it goes on from.
    """

    ranks: tuple[int, ...]
    runs: tuple[RunRecord, ...]
    settled: bool

    def text(self, lineage: Lineage) -> str:
        """Return whose slices lie there."""
        held = list_some(f"{one.text}, up to step {one.newest}" for one in self.runs)
        return (
            f"the folder of rank(s) {list_some(self.ranks)} is of another training: it has slices of {held}, and none "
            f"of {lineage.last.text}, up to step {lineage.last.newest}, which was started last and other ranks have"
        )

    def why_refused(self, lineage: Lineage) -> str:
        """Return that nobody knows which training is meant, and how it is said."""
        names = (lineage.last, *self.runs)
        choices = list_some(f"run={lineage.name(one)!r}" for one in names)
        return (
            f"{self.text(lineage)}: choose the one that all ranks go on with, {choices}, or put the right folder in "
            "place. Nothing was changed"
        )


def check_folders(
    job: TrainingJob, ranks: int, facts: Facts | None, runs: Iterable[RunRecord], own: Mapping[int, HeldRuns]
) -> str | None:
    """Return whose folders are of another training, None where none is; all ranks call it together.

    UsageError where nothing shows which training is meant: most ranks have what is resumed where it is not raised.
    Where a run was chosen, nothing is asked.

    Parameters
    ----------
    job : TrainingJob
        The ranks.
    ranks : int
        How many ranks saved the slices, as this one sees it.
    facts : Facts, optional
        Of the tree; None where this rank sees no slices.
    runs : iterable of RunRecord
        Those that any rank sees.
    own : mapping of int to HeldRuns
        What this rank sees of the folders of ranks that saved slices, see `held_runs`.
    """
    text = json.dumps([ranks, [[rank, _row(one)] for rank, one in own.items()]])
    rows = [json.loads(row) for row in job.gather_unequal(text, "comparing the runs of ranks") or [text]]
    held = [HeldRuns()] * max(count for count, _ in rows)
    for rank, row in (pair for _, pairs in rows for pair in pairs):
        held[rank] |= _of_row(row)

    def check() -> str | None:
        lineage = facts.lineage if facts is not None else None
        if lineage is None or lineage.chosen:
            return None
        found = find_foreign(lineage, runs, held)
        if found is not None and not found.settled:
            raise UsageError(found.why_refused(lineage))
        return None if found is None else found.text(lineage)

    return job.run_together("comparing the runs of ranks", check)


def find_foreign(lineage: Lineage, records: Iterable[RunRecord], held: Sequence[HeldRuns]) -> ForeignFolders | None:
    """Return the ranks whose folders are of other trainings than a lineage, by what each rank holds, index = rank."""
    by_id = {(one.run_id, one.started): one for one in records}
    own = {(one.run_id, one.started) for one in lineage.members if one.run_id}
    having = [rank for rank, one in enumerate(held) if not own.isdisjoint(one.anywhere)]
    known = {run for rank in having for run in held[rank].anywhere}
    foreign: dict[int, list[RunRecord]] = {}
    for rank, one in enumerate(held):
        others = [by_id[run] for run in one.in_place if run in by_id and run not in known]
        apart = [run for run in others if own.isdisjoint(_line(run, by_id))]
        if rank not in having and apart:
            foreign[rank] = apart
    if not foreign or not having:
        return None
    runs = {(run.run_id, run.started): run for several in foreign.values() for run in several}
    ordered = tuple(sorted(runs.values(), key=lambda one: (one.started or 0, one.run_id), reverse=True))
    settled = len(having) > len(held) / 2 or _may_go_on_from(lineage, by_id, ordered)
    return ForeignFolders(ranks=tuple(sorted(foreign)), runs=ordered, settled=settled)


def _line(run: RunRecord, by_id: dict[Identity, RunRecord]) -> set[Identity]:
    """Return a run, and those that it goes on from, also one of which nothing but the name is left."""
    found: set[Identity] = {(run.run_id, run.started)}
    step = run.resumed_from
    while step is not None and (step.run_id, step.started) not in found:
        found.add((step.run_id, step.started))
        before = by_id.get((step.run_id, step.started))
        step = before.resumed_from if before is not None else None
    return found


def _may_go_on_from(lineage: Lineage, by_id: dict[Identity, RunRecord], runs: Collection[RunRecord]) -> bool:
    """Whether a lineage may go on from runs: what its first known run began from is lost, and they are older."""
    first = (lineage.last, *lineage.parents)[-1]
    is_open = first.begun is not None or first.resumed_from is not None
    return is_open and all(one.started is not None and one.started < (first.started or 0) for one in runs)


def held_runs(seen: Inventory, facts: Facts, rank: int) -> HeldRuns:
    """Return the runs of which a rank has slices in a tree."""
    own = [one for one in seen.slices if one.rank == rank and one.manifest is not None]
    place = frozenset(identity_of(one.manifest) for one in own if facts.experiments.has(one))
    aside = {identity_of(one.manifest) for one in seen.set_aside if one.rank == rank}
    orphans = {identity_of(one.manifest) for one in seen.orphans if one.rank == rank}
    return HeldRuns(in_place=place, anywhere=frozenset(identity_of(one.manifest) for one in own) | aside | orphans)


def _row(held: HeldRuns) -> list[list[list[str | int | None]]]:
    return [[list(one) for one in sorted(runs, key=str)] for runs in (held.in_place, held.anywhere)]


def _of_row(row: list[list[list[str | int | None]]]) -> HeldRuns:
    place, every = (frozenset((str(name), _number(started)) for name, started in runs) for runs in row)
    return HeldRuns(in_place=place, anywhere=every)


def _number(value: str | int | None) -> int | None:
    return value if isinstance(value, int) else None
