"""The slice that a rank resumes from: found and obtained by all ranks together, then loaded and compared."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ms_recover.errors import InputError, MissingInputError, MsRecoverError
from ms_recover.file_names import MANIFEST_SUFFIX
from ms_recover.formats.manifest import read_manifest
from ms_recover.loading.contents import SliceContents
from ms_recover.model.manifest import Manifest
from ms_recover.model.rank_local import RankLocalChoice
from ms_recover.model.texts import list_some
from ms_recover.planning.tree.lineage import Lineage, find_lineage, follow_choice, texts_of_aside
from ms_recover.training.attributes import changed_values, places_of
from ms_recover.training.cell_settings import compare_cells, settings_of_cells
from ms_recover.training.deciding.equal_arguments import agree_arguments
from ms_recover.training.deciding.foreign_folder import check_folders, held_runs
from ms_recover.training.deciding.job import TrainingJob
from ms_recover.training.deciding.known_runs import gather_runs, texts_of_other_runs
from ms_recover.training.deciding.own_slice import OwnSlice, digests_by_name
from ms_recover.training.deciding.position import Feed, Position, find_position
from ms_recover.training.deciding.resumed_experiment import take_experiment
from ms_recover.training.found_state import find_run_state
from ms_recover.training.gradients import end_recording
from ms_recover.training.held_directories import Held
from ms_recover.training.hyperparameters import check_kept, compare_settings, settings_of_program
from ms_recover.training.in_process import of_process
from ms_recover.training.network import check_network, load_into_network, load_slice
from ms_recover.training.other_world import naming_reshard
from ms_recover.training.proof import OF_MODEL, VALUES, Source, Subject, begin_line, resume_line
from ms_recover.training.rank_view import RankView, scan_tree
from ms_recover.training.resume_options import ResumeOptions
from ms_recover.training.resume_step import may_be_written, obtain_resume_slice, supersede_newer_slices
from ms_recover.training.run import Loaded, Runs, note_resumed
from ms_recover.training.run_state import RunState
from ms_recover.training.search import Search, prepare_search
from ms_recover.training.set_aside import Renames, bring_back

if TYPE_CHECKING:
    from ms_recover.training.resharding import Resharded

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Found:
    """The slice that a rank resumes from, and the tree that it was found in."""

    job: TrainingJob
    view: RankView
    own: OwnSlice
    brought: Renames
    """Slices that got their names back to be resumed from; see `Renames`."""
    keep: tuple[str, ...] = ()
    """Parameters that keep the values of the program."""

    @property
    def manifest(self) -> Manifest | None:
        """The manifest of the slice, None when none can be read."""
        try:
            return read_manifest(self.own.path + MANIFEST_SUFFIX)
        except MsRecoverError:
            return None

    @property
    def source_rank(self) -> int | None:
        """See `ms_recover.training.Resumption.source_rank`."""
        return self.view.source_ranks.get(self.own.step)

    @property
    def back_from(self) -> str | None:
        """See `ms_recover.training.proof.Source`."""
        if self.view.back_from is None:
            return None
        step, ranks = self.view.back_from
        return f"{step}, where states of rank(s) {list_some(ranks)} are lost"

    @property
    def lost(self) -> tuple[str, ...]:
        """See `ms_recover.training.Resumption.rank_local_lost`."""
        return self.view.lost_values(self.own.step)

    def state(self) -> RunState | None:
        """Return the state that was saved with the slice; None, and a warning with the reason, where there is none."""
        return find_run_state(self.own, self.view.inventory.root, self.others)

    def take_contents(self) -> SliceContents | None:
        """Return what was read of the slice to prove it, once, so that it is not read again to load it."""
        return self.view.take_contents(self.own)

    @property
    def initial(self) -> tuple[str, ...]:
        """The parameters that keep the values of the network."""
        return (*self.keep, *(self.lost if self.view.rank_local == "initial" else ()))

    @property
    def rank_local(self) -> RankLocalChoice:
        """What becomes of values of this rank that are lost."""
        return self.view.rank_local

    def digests(self) -> dict[str, str]:
        """Return the digests of the parameters, by name; empty where no manifest states them."""
        return digests_by_name(self.manifest)

    def values(self, network: Any) -> dict[str, Any]:
        """Return the parameters once more, for the `network` that holds them."""
        return load_slice(self.own)

    def others(self) -> Iterator[tuple[Manifest, Callable[[], RunState | None]]]:
        """Yield the manifests of the other slices of the step, each with a function that reads its state."""
        return self.view.peers(self.own.step)

    def load(
        self, network: Callable[[], Any], compile_it: Callable[[], None], *, in_place: bool = True, model: Any = None
    ) -> None:
        """Read the slice, compile the network where its compiler cuts it, and load it; errors as for `load_into`."""
        parameters = load_slice(self.own, self.take_contents())
        compile_it()
        load_into(network(), parameters, self.own, self.initial, in_place=in_place)

    @property
    def resharded_from(self) -> None:
        """See `ms_recover.training.Resumption.resharded_from`."""

    def position(self, feed: Feed, dataset: Any, state: RunState | None, allow_change: bool) -> Position:
        """Return the position in the dataset; errors are those of `find_position`."""
        return find_position(self.own.step, self.manifest, feed, allow_change=allow_change)

    def micro_batches(self, dataset: Any, state: RunState | None) -> int:
        """See `ms_recover.training.Resumption.accumulate`."""
        return of_process(Runs).accumulate

    def note(self) -> None:
        """Note that the next run goes on from this one."""
        loaded = Loaded(experiments=self.view.taken.loaded, root=self.view.inventory.root)
        note_resumed(self.view.run_of(self.own.step), loaded=loaded, own=self.view.taken.own)

    def waiting(self) -> Callable[[], None]:
        """Return what to call where the proof, which comes later, fails: slices get their names of before."""
        return self.brought.taken().undo

    def set_aside(self) -> None:
        """Set newer slices aside, behind the proof of everything that was resumed; all ranks call it together."""
        step = self.own.step
        self.brought.keep()
        self.job.run_together("renaming newer slices", lambda: supersede_newer_slices(self.view, step))


def find_any(
    job: TrainingJob,
    options: ResumeOptions,
    held: Held,
    savers: Iterable[Any],
    network: Any,
    also: Mapping[str, Any] | None = None,
) -> Found | Resharded | None:
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
        from ms_recover.training.reshard_target import StatedCut
        from ms_recover.training.resharding import find_resharded

        stated = job.run_together("reading the layouts", lambda: StatedCut.of(options.layouts, savers, job))
        search = prepare_search(job, search)
        everywhere = replace(search, judging=replace(search.judging, world_size=None))
        resharded = find_resharded(job, everywhere, options.sources, stated, network, held)
        return resharded if resharded is not None else find_slice(job, search, held)
    with naming_reshard(job, search):
        found = find_slice(job, search, held)
        if found is not None:
            job.run_together("comparing the layouts", lambda: _check_cut(found, savers, network))
        return found


def _check_cut(found: Found, savers: Iterable[Any], network: Any) -> None:
    """Refuse slices that are cut otherwise than the program states; local shapes need not show it."""
    layouts = next((stated for stated, _ in (saver.stated for saver in savers) if stated is not None), None)
    if layouts is None or not (stages := found.view.compared.facts.stages).layouts:
        return
    from ms_recover.training.reshard_target import why_cut_otherwise

    why = why_cut_otherwise(found.job, layouts, network, stages)
    if why is not None:
        raise InputError(f"{found.own}: {why}; resume with the layouts of the slices, or with reshard=True")


def find_slice(job: TrainingJob, search: Search, held: Held) -> Found | None:
    """Find and obtain the slice to resume from; None, and a warning, when training is to start afresh.

    All ranks call it together; what is locked and renamed for it is `held`. Errors are those of
    `obtain_resume_slice`, and MissingInputError when there is no slice and nothing said that this is right.
    """
    top = search.root
    search = prepare_search(job, search)
    view, own = obtain_resume_slice(job, _look(job, search, held), top)
    if own is not None:
        _warn_of_newer_steps(view, own)
        _warn_of_other_runs(view, own)
        return Found(job, view, own, held.brought, search.keep)
    aside = "; ".join(texts_of_aside([one for one in view.known_runs if not search.given or one.is_of(search.given)]))
    if view.taken.others:
        why = view.taken.why_none(top) + (f"; {aside}" if aside else "")
        if search.fresh == "refuse" or search.step is not None:
            raise MissingInputError(f"{why}; fresh='start' begins anew")
        _log.warning("rank %d: %s; training begins from the start", job.rank, why)
        return None
    if search.fresh == "refuse" or search.step is not None:
        seen = f" ({view.overlooked})" if view.overlooked else ""
        raise MissingInputError(
            f"no rank has a slice under {top}{seen}: name the folder that holds ckpt_dir{{rank}}/, "
            "or train from the start with fresh='start'" + (f"; {aside}" if aside else "")
        )
    job.run_together("looking for slices", lambda: _refuse_overlooked(view))
    if aside:
        _log.warning("rank %d: %s", job.rank, aside)
    _log.warning("rank %d: no slices under %s, training from the start", job.rank, top)
    return None


def _look(job: TrainingJob, search: Search, held: Held) -> RankView:
    """Scan the tree, lock this rank's directories, and judge by the runs that all ranks see together.

    Slices of a chosen run that were set aside get their names back before, which is noted in `held`.
    """

    def scan() -> RankView:
        return scan_tree(search.root, job.rank, search.scanning)

    view = job.run_together("scanning the tree", scan)
    waited = job.run_together("locking the directories", lambda: held.lock(_folders(view)))
    if any(flag for (flag,) in job.gather([waited], "locking the directories")):  # what ended meanwhile may have saved
        view = job.run_together("scanning the tree", scan)
    runs = gather_runs(job, view.runs)
    taken = take_experiment(runs, search.given, search.judging.run, search.root)
    view, search = replace(view, known_runs=runs, taken=taken), search.taking(taken)
    if taken.others:
        return view
    if search.from_environment and search.judging.run is not None:
        search = search.in_run(follow_choice(runs, search.judging.run))
    chosen = find_lineage(runs, search.judging.run) if search.judging.run is not None else None
    if chosen is not None:
        brought = held.brought
        held.callback(brought.undo)
        job.run_together("bringing back slices", lambda: _bring_back(view, chosen, brought))
        if any(count for (count,) in job.gather([len(brought)], "bringing back slices")):
            view = replace(job.run_together("scanning the tree", scan), taken=taken)
            runs = gather_runs(job, view.runs)
    judging = (search.judging, runs, search.rank_local, search.step)
    view = job.run_together("judging the slices", lambda: view.judged(*judging))
    facts = view.compared.facts if view.comparison is not None else None
    seen = {job.rank: held_runs(view.seen, facts, job.rank)} if view.seen is not None and facts is not None else {}
    foreign = check_folders(job, job.size, facts, runs, seen)
    if foreign is not None:
        _log.warning("rank %d: %s", job.rank, foreign)
    return view


def _folders(view: RankView) -> set[str]:
    """Return the directories of this rank's slices that can be written."""
    if view.seen is None:
        return set()
    own = [one.path for one in view.seen.slices if one.rank == view.rank]
    own += [one.path for one in view.seen.set_aside if one.rank == view.rank]
    folders = {os.path.dirname(os.path.join(view.seen.root, path)) for path in own}
    return {folder for folder in folders if may_be_written(folder)}


def _bring_back(view: RankView, chosen: Lineage, brought: Renames) -> None:
    if view.seen is not None:
        bring_back(view.rank, view.seen.root, view.seen.set_aside, chosen, brought)


def _warn_of_newer_steps(view: RankView, own: OwnSlice) -> None:
    """Name the newer steps that this rank cannot be brought to; those of other runs are named with them."""
    for step, assessment in view.assessments.items():
        verdict = assessment.ranks[view.rank]
        if step > own.step and step not in view.withdrawn and verdict.verdict == "unrecoverable":
            _log.warning("rank %d: step %s is given up for step %s: %s", own.rank, step, own.step, verdict.reason)


def _warn_of_other_runs(view: RankView, own: OwnSlice) -> None:
    if view.lineage is None or view.lineage.chosen:
        return
    for text in texts_of_other_runs(view.lineage, view.own_experiments, own.step):
        _log.warning(
            "rank %d: training resumes from step %s of %s; %s", own.rank, own.step, view.lineage.last.text, text
        )


def _refuse_overlooked(view: RankView) -> None:
    if view.overlooked is not None:
        raise InputError(
            f"rank {view.rank}: {view.overlooked}. fresh='start' trains over no slices: correct root, pattern, "
            "group_info or strategy, so that they are found, or move them away"
        )


def load_found(
    found: Found | Resharded,
    load: Callable[[], None],
    state: RunState | None,
    program: Any,
    *,
    subjects: Collection[Subject] = OF_MODEL,
    trains: bool = True,
) -> None:
    """Have all ranks `load` their slices; if it fails on one rank, it fails on all.

    The settings of the `program`, a ``Model`` or a cell, are compared with those that were saved. Where it `trains` on,
    its run goes on from them. Newer ones are set aside later, see `Found.set_aside`.
    """
    network, settings = getattr(program, "train_network", program), settings_of_program(program)
    found.job.run_together(f"loading the slice of step {found.own.step}", load)
    compare_settings(found.own, network, state.settings if state is not None else {}, settings, found.initial)
    if state is not None and not state.lent and found.resharded_from is None:
        changed = places_of(changed_values(list(network.cells_and_names()))[0])
        compare_cells(found.own, state.settings, settings_of_cells(network, changed))
    if found.lost:
        whose = "the network's own" if set(found.lost) <= set(found.initial) else "another rank's"
        resume_line().doubt(f"{list_some(found.lost)} are {whose}", "weights")
    if trains:
        resume_line().resumes(source_of(found, state), subjects)
        found.note()


def load_into(
    network: Any, parameters: dict[str, Any], own: OwnSlice, initial: Collection[str] = (), *, in_place: bool = True
) -> None:
    """Load a slice into a network that is compiled if it has to be, and compare what it holds then with the manifest.

    Parameters named `initial` keep the values of the network; `in_place` is that of `load_into_network`.
    Errors are those of `load_into_network` and `check_network`.
    """
    load_into_network(network, parameters, own, initial, in_place=in_place)
    try:
        manifest = read_manifest(own.path + MANIFEST_SUFFIX)
    except MissingInputError:
        _log.warning("%s: it has no manifest, so the loaded values rest on the structure of the slice only", own)
        resume_line().doubt("no manifest describes them", *VALUES)
    except MsRecoverError as error:
        _log.warning("%s: the loaded values rest on the structure of the slice only: %s", own, error)
        resume_line().doubt("their manifest cannot be read", *VALUES)
    else:
        count = check_network(network, manifest, own, initial)
        resume_line().prove(*VALUES)
        _log.info("%s: %d parameters of the network have the digests of the manifest", own, count)


def source_of(found: Found | Resharded, state: RunState | None) -> Source:
    """Return how the line of a resume names what it resumes from."""
    manifest = found.manifest
    training = manifest.training if manifest is not None else None
    return Source(
        step=str(found.own.step),
        run=manifest.run_id if manifest is not None else "",
        saved_at=state.saved_at if state is not None else None,
        host=training.host if training is not None else None,
        other_rank=found.source_rank,
        cut_from=found.resharded_from,
        back_from=found.back_from,
    )
