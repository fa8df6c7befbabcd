"""The one line of every resume: what ranks see, the step that they agree on, and the slice that each obtains."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from ms_recover.errors import InputError, MissingInputError
from ms_recover.planning.tree.facts import Facts
from ms_recover.planning.tree.lineage import Lineage, RunRecord, find_lineage, follow_choice, texts_of_aside
from ms_recover.stores.http_access import Access
from ms_recover.stores.sources import Source
from ms_recover.training.cut_steps import CutSteps
from ms_recover.training.deciding.agreement import agree
from ms_recover.training.deciding.equal_arguments import agree_arguments
from ms_recover.training.deciding.foreign_folder import HeldRuns, check_folders, held_runs
from ms_recover.training.deciding.job import TrainingJob
from ms_recover.training.deciding.resumed_experiment import TAKES_ALL, Taken, take_experiment
from ms_recover.training.deciding.runs import gather_runs, texts_of_other_runs
from ms_recover.training.gradients import end_recording
from ms_recover.training.held_directories import Held
from ms_recover.training.hyperparameters import check_kept
from ms_recover.training.in_process import of_process
from ms_recover.training.obtained import Obtained, ObtainedSlice
from ms_recover.training.other_world import aside_roots, naming_reshard
from ms_recover.training.own_steps import OwnSteps, may_be_written
from ms_recover.training.proof import begin_line
from ms_recover.training.reshard_target import StatedCut, why_cut_otherwise
from ms_recover.training.resharding import Cutting
from ms_recover.training.resume_options import ResumeOptions
from ms_recover.training.run import Runs
from ms_recover.training.search import Search, prepare_search
from ms_recover.training.set_aside import bring_back
from ms_recover.training.tree_view import OpenSource, SeenTrees, see_trees, why_overlooked

_log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(eq=False)
class Look:
    """What all ranks look at together before they choose a step.

    Directories of slices in place are held until the resume ends. Slices of a chosen run that were set aside get their
    names back, which is noted in `held`, and are renamed back in the end unless they are resumed from. All ranks make
    one together.

    Parameters
    ----------
    sources : sequence of str or None
        Where other slices lie that may be cut anew; None where none may be.

    Raises
    ------
    MsRecoverError
        When a rank cannot read what it is to read; on the others, that it failed.
    """

    job: TrainingJob
    search: Search
    """Behind the choice of a run and an experiment."""
    held: Held
    sources: Sequence[str] | None = None

    def __post_init__(self) -> None:
        self.brought, self.taken = self.held.brought, TAKES_ALL
        self._opened: Sequence[OpenSource] | None = None
        if self.sources is not None:
            self._opened = self._together("opening the sources", partial(_open_all, self.sources, self.held))
        self._scan()
        waited = self._together("locking the directories", lambda: self.held.lock(self._folders()))
        if self._anywhere(waited, "locking the directories"):  # what ended meanwhile may have saved
            self._scan()
        self.runs = self._gather()
        self._take(take_experiment(self.runs, self.search.given, self.search.judging.run, self.search.root))

    def _take(self, taken: Taken) -> None:
        """Choose the experiments, and the run where one is given."""
        self.taken, search = taken, self.search.taking(taken)
        if taken.others:
            return
        if search.from_environment and search.judging.run is not None:
            search = search.in_run(follow_choice(self.runs, search.judging.run))
        self.search, run = search, search.judging.run
        lineage = find_lineage(self.runs, run) if run is not None else None
        if lineage is not None:
            self.held.callback(self.brought.undo)
            self._together("bringing back slices", partial(self._bring_back, lineage))
            if self._anywhere(bool(self.brought), "bringing back slices"):
                self._scan()
                self.runs = self._gather()

    def _scan(self) -> None:
        see = partial(see_trees, self.search.root, self.search.scanning, self._opened)
        self.seen: SeenTrees = self._together("scanning the tree", see)

    def _gather(self) -> tuple[RunRecord, ...]:
        return gather_runs(self.job, (run for tree in self.seen.every for run in tree.runs))

    def _together(self, doing: str, work: Callable[[], T]) -> T:
        return self.job.run_together(doing, work)

    def _anywhere(self, fact: bool, doing: str) -> bool:
        return any(flag for (flag,) in self.job.gather([fact], doing))

    def _is_mine(self, rank: int) -> bool:
        """Whether this rank takes care of the slices of one: where they are cut anew, of those it is modulo its own."""
        return rank == self.job.rank if self.sources is None else rank % self.job.size == self.job.rank

    def _folders(self) -> set[str]:
        """Return the directories in place that this rank holds."""
        place = self.seen.place
        folders = place.folders(self._is_mine) if place is not None else set()
        return {folder for folder in folders if may_be_written(folder)}

    def _bring_back(self, lineage: Lineage) -> None:
        for tree in self.seen.every:
            aside = [one for one in tree.inventory.set_aside if one.path not in tree.stores]
            for rank in sorted({one.rank for one in aside if self._is_mine(one.rank)}):
                bring_back(rank, tree.inventory.root, aside, lineage, self.brought)


def _open_all(sources: Sequence[str], held: Held) -> list[OpenSource]:
    """Open the sources until the resume ends, and of those that are paths the trees that were set aside below them."""
    access = Access.from_environment() if sources else Access()
    parsed = [Source.parse(one, access) for one in sources]
    parsed += [Source(url=tree) for one in parsed if one.path is not None for tree in aside_roots(one.path)]
    opened = []
    for one in parsed:
        store = one.open(access)
        held.callback(store.close)
        opened.append(OpenSource(store, one.any_server))
    return opened


def find_any(
    job: TrainingJob,
    options: ResumeOptions,
    held: Held,
    savers: Iterable[Any],
    network: Any,
    also: Mapping[str, Any] | None = None,
) -> Obtained | None:
    """Find what to resume from, cut anew where that is asked for and needed; errors are those of `find_slice`.

    All ranks call it together. `savers` are those of the program, which may state how its parameters are cut; `also`
    are further arguments that all ranks must have alike.
    """
    end_recording()
    begin_line(job)
    search, savers = options.search(job.size), list(savers)
    counted = {"the number of SliceCheckpoint among the callbacks": len(savers)}
    agree_arguments(job, "resuming", {**options.to_agree, **counted, **(also or {})})
    job.run_together("checking keep", lambda: check_kept(network, search.keep))
    of_process(Runs).accumulate = options.accumulate
    if options.reshard:
        stated = job.run_together("reading the layouts", lambda: StatedCut.of(options.layouts, savers, job))
        look = Look(job, prepare_search(job, search), held, options.sources)
        return _obtain_cut(look, stated, network) or _obtain_own(look)
    with naming_reshard(job, search):
        found = find_slice(job, search, held)
        if found is not None:
            job.run_together("comparing the layouts", lambda: _check_cut(found, savers, network))
        return found


def find_slice(job: TrainingJob, search: Search, held: Held) -> ObtainedSlice | None:
    """Find and obtain the slice to resume from, of this rank; None, and a warning, when training is to start afresh.

    All ranks call it together; what is locked and renamed for it is `held`.

    Raises
    ------
    MissingInputError
        When there is no slice and nothing said that this is right.
    UnrecoverableError
        When there are slices, but no step that every rank can be brought to.
    VerificationError
        When replicas differ and nothing shows which is right.
    MsRecoverError
        When a copy failed on any rank.
    """
    return _obtain_own(Look(job, prepare_search(job, search), held))


def _check_cut(found: ObtainedSlice, savers: Iterable[Any], network: Any) -> None:
    """Refuse slices that are cut otherwise than the program states; local shapes need not show it."""
    layouts = next((stated for stated, _ in (saver.stated for saver in savers) if stated is not None), None)
    if layouts is None or not (stages := found.steps.tree.facts.stages).layouts:
        return
    why = why_cut_otherwise(found.job, layouts, network, stages)
    if why is not None:
        raise InputError(f"{found.own}: {why}; resume with the layouts of the slices, or with reshard=True")


def _obtain_cut(look: Look, stated: StatedCut, network: Any) -> Obtained | None:
    """Have slices cut anew; None where those in place fit these ranks as they are, or there are none."""
    job, search, runs = look.job, look.search, look.runs
    everywhere = replace(search, judging=replace(search.judging, world_size=None), loaded=look.taken.loaded)
    trees = () if look.taken.others else look.seen.trees  # that there are others is said of the slices in place
    cutting = Cutting(job=job, search=everywhere, stated=stated, network=network, brought=look.brought)
    judge = partial(CutSteps.judged, job.rank, everywhere, trees, runs, cutting.why_not)
    steps = job.run_together("judging the slices", judge)
    place = steps.place
    ranks, facts = (place.ranks, place.facts) if place is not None else (1, None)
    foreign = check_folders(job, ranks, facts, runs, steps.held_runs())
    agreed = agree(job, steps)
    if agreed is None or cutting.made is None:
        return None
    chosen = agreed.obtained
    if foreign is not None and chosen.view.tree.in_place:
        _log.warning("rank %d: %s", job.rank, foreign)
    for text in texts_of_other_runs(chosen.view.facts.lineage, look.taken.own, chosen.step):
        _log.warning("rank %d: %s", job.rank, text)
    return cutting.made


def _obtain_own(look: Look) -> ObtainedSlice | None:
    """Have ranks keep, copy or compose the slices in place; None where there are none, and training starts afresh."""
    job, search, runs, place = look.job, look.search, look.runs, look.seen.place
    notes = [look.seen.missing] if place is None else [other.text for other in place.inventory.other_sets]
    for note in notes:
        _log.warning("rank %d: %s", job.rank, note)
    tree = None if look.taken.others else place
    judge = partial(OwnSteps.judged, job.rank, search, tree, runs, look.taken)
    steps = job.run_together("judging the slices", judge)
    if not look.taken.others:
        _check_folders(look, steps)
    agreed = agree(job, steps)
    if agreed is None:
        _begin_afresh(look)
        return None
    own = agreed.obtained
    found = ObtainedSlice(
        job=job,
        own=own,
        brought=look.brought,
        back=agreed.back,
        source_rank=steps.source_ranks.get(own.step),
        lost=steps.steps.lost_values(own.step),
        rank_local=search.rank_local,
        keep=search.keep,
        steps=steps,
    )
    _warn_of_newer_steps(found)
    return found


def _check_folders(look: Look, steps: OwnSteps) -> None:
    """Name whose folders in place are of another training; errors are those of `check_folders`."""
    job = look.job
    facts: Facts | None = None
    held: dict[int, HeldRuns] = {}
    if steps.view is not None:
        facts = steps.view.facts
        held = {job.rank: held_runs(steps.inventory, facts, job.rank)}
    foreign = check_folders(job, job.size, facts, look.runs, held)
    if foreign is not None:
        _log.warning("rank %d: %s", job.rank, foreign)


def _begin_afresh(look: Look) -> None:
    """Say that training starts without slices, where that is right.

    Raises
    ------
    MissingInputError
        When nothing said that it is.
    InputError
        When there may be slices that were not found; on the other ranks MsRecoverError.
    """
    job, search, taken, top = look.job, look.search, look.taken, look.search.root
    refused = search.fresh == "refuse" or search.step is not None
    aside = "; ".join(texts_of_aside([one for one in look.runs if not search.given or one.is_of(search.given)]))
    if taken.others:
        why = taken.why_none(top) + (f"; {aside}" if aside else "")
        if refused:
            raise MissingInputError(f"{why}; fresh='start' begins anew")
        _log.warning("rank %d: %s; training begins from the start", job.rank, why)
        return
    overlooked = job.run_together("looking for slices", partial(why_overlooked, top, look.seen))
    if refused:
        seen = f" ({overlooked})" if overlooked else ""
        raise MissingInputError(
            f"no rank has a slice under {top}{seen}: name the folder that holds ckpt_dir{{rank}}/, "
            "or train from the start with fresh='start'" + (f"; {aside}" if aside else "")
        )
    job.run_together("looking for slices", lambda: _refuse_overlooked(job.rank, overlooked))
    if aside:
        _log.warning("rank %d: %s", job.rank, aside)
    _log.warning("rank %d: no slices under %s, training from the start", job.rank, top)


def _refuse_overlooked(rank: int, overlooked: str | None) -> None:
    if overlooked is not None:
        raise InputError(
            f"rank {rank}: {overlooked}. fresh='start' trains over no slices: correct root, pattern, "
            "group_info or strategy, so that they are found, or move them away"
        )


def _warn_of_newer_steps(found: ObtainedSlice) -> None:
    """Name the newer steps that this rank cannot be brought to, and those of other runs."""
    own, steps = found.own, found.steps
    for step, reason in steps.steps.given_up.items():
        if step > own.step:
            _log.warning("rank %d: step %s is given up for step %s: %s", own.rank, step, own.step, reason)
    for text in texts_of_other_runs(steps.steps.lineage, steps.taken.own, own.step):
        _log.warning("rank %d: %s", own.rank, text)
