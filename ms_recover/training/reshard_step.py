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
from ms_recover.planning.lineage import RunRecord, follow_choice
from ms_recover.planning.runs import Run
from ms_recover.planning.tree.candidates import Candidate
from ms_recover.stores.http_access import Access
from ms_recover.stores.sources import Source
from ms_recover.training.held_directories import at_end, hold_directories
from ms_recover.training.job import TrainingJob
from ms_recover.training.known_runs import gather_runs
from ms_recover.training.other_world import aside_roots
from ms_recover.training.reshard_trees import JudgedTree, OpenSource, Place, SliceTree, find_trees
from ms_recover.training.resumed_experiment import take_experiment
from ms_recover.training.search import Search

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
    ends.

    Raises
    ------
    MsRecoverError
        When a rank cannot read what it is to read; on the others, that it failed.
    """

    def __init__(self, job: TrainingJob, search: Search, sources: Sequence[str]) -> None:
        trees, runs = _look(job, search, sources)
        taken = take_experiment(runs, search.given, search.judging.run, search.root)
        search = search.taking(taken)
        if taken.others:  # which `find_slice` says
            trees = []
        if search.from_environment and search.judging.run is not None:
            search = search.in_run(follow_choice(runs, search.judging.run))
        self._job, self._search, self.loaded = job, search, taken.loaded
        self._candidates = job.run_together("judging the slices", lambda: _judge(trees, search, runs))
        self._is_empty = not any(seen for (seen,) in job.gather([bool(trees)], "judging the slices"))
        self._without: set[Place] = set()

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


def _look(job: TrainingJob, search: Search, sources: Sequence[str]) -> tuple[list[SliceTree], tuple[RunRecord, ...]]:
    opened = job.run_together("opening the sources", lambda: _open_all(sources))

    def scan() -> list[SliceTree]:
        return find_trees(search.root, search.scanning, opened)

    trees = job.run_together("scanning the tree", scan)
    waited = job.run_together("locking the directories", lambda: hold_directories(_folders(job, trees)))
    if any(flag for (flag,) in job.gather([waited], "locking the directories")):
        trees = job.run_together("scanning the tree", scan)
    return trees, gather_runs(job, (run for tree in trees for run in tree.runs))


def _open_all(sources: Sequence[str]) -> list[OpenSource]:
    """Open the sources until the resume ends, and of those that are paths the trees that were set aside below them."""
    access = Access.from_environment() if sources else Access()
    parsed = [Source.parse(one, access) for one in sources]
    parsed += [Source(url=tree) for one in parsed if one.path is not None for tree in aside_roots(one.path)]
    found = []
    for one in parsed:
        store = one.open(access)
        at_end(store.close)
        found.append(OpenSource(store, one.any_server))
    return found


def _folders(job: TrainingJob, trees: Sequence[SliceTree]) -> set[str]:
    """Return the directories of slices in place that this rank holds: of each rank of the world before, one rank."""
    found = set()
    for tree in trees:
        for one in tree.inventory.slices if tree.in_place else ():
            folder = os.path.dirname(os.path.join(tree.inventory.root, one.path))
            if one.path not in tree.stores and one.rank % job.size == job.rank and os.access(folder, os.W_OK | os.X_OK):
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
