"""The tree and the step that a training on other ranks resumes from: the newest that every rank can put together."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from ms_recover.errors import MsRecoverError, UnrecoverableError, UsageError, VerificationError
from ms_recover.model.plan import RejectedStep
from ms_recover.model.steps import Step
from ms_recover.model.texts import list_some
from ms_recover.planning.choice import judge_each
from ms_recover.planning.tree.candidates import Candidate
from ms_recover.planning.tree.lineage import Lineage, RunRecord, find_lineage, follow_choice
from ms_recover.planning.tree.runs import Run
from ms_recover.stores.http_access import Access
from ms_recover.stores.sources import Source
from ms_recover.training.deciding.foreign_folder import check_folders, held_runs
from ms_recover.training.deciding.job import TrainingJob
from ms_recover.training.deciding.known_runs import gather_runs, texts_of_other_runs
from ms_recover.training.deciding.resumed_experiment import take_experiment
from ms_recover.training.held_directories import Held
from ms_recover.training.other_world import aside_roots
from ms_recover.training.reshard_trees import JudgedTree, OpenSource, Place, SliceTree, find_trees
from ms_recover.training.search import Search
from ms_recover.training.set_aside import Renames, bring_back

_log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class ChosenTree:
    """A step of a tree, as slices of a run, that every rank can put its slice together from."""

    judged: JudgedTree
    step: Step
    run: Run

    @property
    def in_place(self) -> bool:
        """Whether its slices lie where the training saves."""
        return self.judged.tree.in_place


@dataclass(eq=False)
class _Candidates:
    """The steps that this rank can have, newest first, each looked at when it is asked for."""

    trees: Sequence[JudgedTree]
    step: Step | None
    passed_over: dict[Step, str] = field(default_factory=dict)

    def newest(self, bound: Place | None, without: set[Place]) -> tuple[Place, ChosenTree] | None:
        """Return the newest place up to a bound that can be had, None when there is none.

        Raises
        ------
        VerificationError
            When replicas of a step differ, and nothing shows which is right.
        """
        for one in judge_each(self._places(bound, without), lambda found: found[0].judge(found[1])):
            if isinstance(one, RejectedStep):
                continue
            judged, step = one.value, one.step
            if one.why is None:
                return judged.place(step), ChosenTree(judged, step, one.run)
            if one.disputed:
                raise VerificationError(
                    f"step {step} of {judged.tree.name}: {one.why}: nothing shows which is right; remove the wrong "
                    "slice, or name the parameters that may differ with tolerate"
                )
            _log.warning("step %s of %s is passed over: %s", step, judged.tree.name, one.why)
            self.passed_over[step] = f"{judged.tree.name}: {one.why}"
        return None

    def _places(self, bound: Place | None, without: set[Place]) -> list[tuple[JudgedTree, Candidate]]:
        """Return the candidates of all trees up to a bound."""
        found = []
        for judged in self.trees:
            for one in judged.candidates(self.step):
                if isinstance(one, RejectedStep):
                    self.passed_over.setdefault(one.step, f"{judged.tree.name}: {one.reason}")
                elif (place := judged.place(one.step)) not in without and (bound is None or place <= bound):
                    found.append((place, judged, one))
        found.sort(key=lambda one: one[0], reverse=True)  # stable: the tree in place first
        return [(judged, one) for _, judged, one in found]


class TreeChoice:
    """The trees that the ranks see, and the steps of them that were given up.

    All ranks make one together, and call it together. Directories of the slices in place are held until the resume
    ends. Slices of a chosen run that were set aside get their names back, which is noted in `held`.

    Raises
    ------
    MsRecoverError
        When a rank cannot read what it is to read; on the others, that it failed.
    """

    def __init__(self, job: TrainingJob, search: Search, sources: Sequence[str], held: Held) -> None:
        look = _Look(job, search, sources, held)
        trees, runs = look.trees, look.runs
        taken = take_experiment(runs, search.given, search.judging.run, search.root)
        search = search.taking(taken)
        if taken.others:  # which `find_slice` says
            trees = []
        elif search.judging.run is not None:
            if search.from_environment:
                search = search.in_run(follow_choice(runs, search.judging.run))
            trees, runs = look.bringing_back(search.judging.run or "")
        self._job, self._search, self.loaded = job, search, taken.loaded
        self._experiments = taken.own
        self._candidates = job.run_together("judging the slices", lambda: _judge(trees, search, runs))
        self._is_empty = not any(seen for (seen,) in job.gather([bool(trees)], "judging the slices"))
        self._without: set[Place] = set()
        self._foreign = self._check_folders(runs)

    def warn_of_other_runs(self, chosen: ChosenTree) -> None:
        """Name the runs that are passed over: in folders of another training, or further, as `find_slice` does."""
        if self._foreign is not None and chosen.in_place:
            _log.warning("rank %d: %s", self._job.rank, self._foreign)
        lineage = chosen.judged.facts.lineage
        if lineage is None or lineage.chosen:
            return
        of_program = self._experiments or (lineage.last.experiments if lineage.last.base_prefix is not None else ())
        for text in texts_of_other_runs(lineage, of_program, chosen.step):
            _log.warning(
                "rank %d: training resumes from step %s of %s; %s", self._job.rank, chosen.step, lineage.last.text, text
            )

    def _check_folders(self, runs: Sequence[RunRecord]) -> str | None:
        """Return whose folders in place are of another training; errors are those of `check_folders`."""
        judged = next((one for one in self._candidates.trees if one.tree.in_place), None)
        if judged is None:
            return check_folders(self._job, 1, None, runs, {})
        held = {rank: held_runs(judged.tree.inventory, judged.facts, rank) for rank in range(judged.ranks)}
        return check_folders(self._job, judged.ranks, judged.facts, runs, held)

    def give_up(self, chosen: ChosenTree, why: str) -> None:
        """Do not choose a step again."""
        self._without.add(chosen.judged.place(chosen.step))
        self._candidates.passed_over[chosen.step] = why

    def newest(self) -> ChosenTree | None:
        """Choose the newest step that every rank can put its slice together from; None when no rank sees a slice.

        Raises
        ------
        UnrecoverableError
            When there are slices, but no such step.
        MsRecoverError
            When a rank cannot read what it is to read; on the others, that it failed.
        """
        return None if self._is_empty else _agree(self._job, self._search, self._candidates, self._without)


def _agree(job: TrainingJob, search: Search, candidates: _Candidates, without: set[Place]) -> ChosenTree:
    bound: Place | None = None
    while True:
        found = job.run_together("judging the slices", partial(candidates.newest, bound, without))
        row = [0, 0, 0, 0, 0] if found is None else [1, *_numbers(found)]
        answers = job.gather(row, "choosing the step to resume from")
        none = [rank for rank, answer in enumerate(answers) if not answer[0]]
        if found is None or none:
            raise UnrecoverableError(_why_none(job, search, candidates, none))
        places = {(answer[1], Step(answer[2], answer[3])) for answer in answers}
        bound = min(places)
        if len(places) > 1:
            continue
        if len({answer[4] for answer in answers}) == 1:
            return found[1]
        _log.warning("rank %d: ranks see step %s of different runs; trying an older step", job.rank, bound[1])
        without.add(bound)


class _Look:
    """The trees that this rank sees, and the runs that all ranks see together."""

    def __init__(self, job: TrainingJob, search: Search, sources: Sequence[str], held: Held) -> None:
        self._job, self._search, self._held = job, search, held
        self._opened = job.run_together("opening the sources", lambda: _open_all(sources, held))
        self._scan()
        waited = job.run_together("locking the directories", lambda: held.lock(_folders(job, self.trees)))
        if any(flag for (flag,) in job.gather([waited], "locking the directories")):
            self._scan()
        self._gather()

    def _scan(self) -> None:
        search, opened = self._search, self._opened
        scan = partial(find_trees, search.root, search.scanning, opened)
        self.trees = self._job.run_together("scanning the tree", scan)

    def _gather(self) -> None:
        self.runs = gather_runs(self._job, (run for tree in self.trees for run in tree.runs))

    def bringing_back(self, run: str) -> tuple[list[SliceTree], tuple[RunRecord, ...]]:
        """Return trees and runs behind giving the slices of a chosen run that were set aside their names back.

        Each rank renames those of the ranks before that it goes on as; they are noted, and renamed back in the
        end unless they are resumed from.
        """
        lineage = find_lineage(self.runs, run)
        if lineage is not None:
            brought = self._held.brought
            self._held.callback(brought.undo)
            self._job.run_together("bringing back slices", partial(self._bring_back, lineage, brought))
            if any(count for (count,) in self._job.gather([len(brought)], "bringing back slices")):
                self._scan()
                self._gather()
        return self.trees, self.runs

    def _bring_back(self, lineage: Lineage, brought: Renames) -> None:
        for tree in self.trees:
            aside = [one for one in tree.inventory.set_aside if one.path not in tree.stores]
            for rank in sorted({one.rank for one in aside}):
                if rank % self._job.size == self._job.rank:
                    bring_back(rank, tree.inventory.root, aside, lineage, brought)


def _open_all(sources: Sequence[str], held: Held) -> list[OpenSource]:
    """Open the sources until the resume ends, and of those that are paths the trees that were set aside below them."""
    access = Access.from_environment() if sources else Access()
    parsed = [Source.parse(one, access) for one in sources]
    parsed += [Source(url=tree) for one in parsed if one.path is not None for tree in aside_roots(one.path)]
    found = []
    for one in parsed:
        store = one.open(access)
        held.callback(store.close)
        found.append(OpenSource(store, one.any_server))
    return found


def _folders(job: TrainingJob, trees: Sequence[SliceTree]) -> set[str]:
    """Return the directories of slices in place that this rank holds: of each rank of the world before, one rank."""
    found = set()
    for tree in trees:
        held = tree.inventory
        places = [(one.rank, one.path) for one in held.slices] + [(one.rank, one.path) for one in held.set_aside]
        for rank, path in places if tree.in_place else ():
            folder = os.path.dirname(os.path.join(held.root, path))
            if path not in tree.stores and rank % job.size == job.rank and os.access(folder, os.W_OK | os.X_OK):
                found.add(folder)
    return found


def _judge(trees: Sequence[SliceTree], search: Search, runs: tuple[RunRecord, ...]) -> _Candidates:
    judged, first = [], None
    for tree in trees:
        try:
            judged.append(JudgedTree.of(tree, search.judging, runs))
        except UsageError:
            raise
        except MsRecoverError as error:
            _log.warning("%s is passed over: %s", tree.name, error)
            first = first or error
    if not judged and first is not None:
        raise first
    return _Candidates(judged, search.step)


def _numbers(found: tuple[Place, ChosenTree]) -> list[int]:
    (generation, step), chosen = found
    return [generation, step.epoch, step.step, chosen.judged.fingerprint(chosen.run)]


def _why_none(job: TrainingJob, search: Search, candidates: _Candidates, ranks: Sequence[int]) -> str:
    lacks = list_some((f"step {step}: {why}" for step, why in candidates.passed_over.items()), separator="; ")
    where = f"under {search.root}" + (f" and step {search.step}" if search.step is not None else "")
    seen = sum(len(one.tree.inventory.slices) for one in candidates.trees)
    return (
        f"there is no step {where} that every rank can put its slice together from: rank(s) {list_some(ranks)} can "
        f"have none; rank {job.rank} sees {seen} slice(s)"
        + (f" ({lacks})" if lacks else "")
        + "; name where other slices lie with sources="
    )
