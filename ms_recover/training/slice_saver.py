"""Saving: each rank commits its own slice, with the list of ranks that hold the same."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any

from ms_recover.arguments import check_type, whole_number
from ms_recover.errors import MsRecoverError, UsageError
from ms_recover.execution.save_slice import SliceOrder, commit_staged, stage_slice, why_not_saved
from ms_recover.file_names import SliceFormat
from ms_recover.loading.path_arguments import home_path
from ms_recover.model.manifest import TrainingRecord
from ms_recover.model.state import SliceClaim
from ms_recover.model.steps import Step
from ms_recover.model.strategy import Layout
from ms_recover.training.anew import Anew, begin_anew, forget_begin
from ms_recover.training.background import Background
from ms_recover.training.batches import digest_batch, to_record
from ms_recover.training.cells import as_cell, saved_cell
from ms_recover.training.deciding.equal_arguments import agree_arguments, arguments_of_saver, name_prefixes
from ms_recover.training.deciding.job import TrainingJob
from ms_recover.training.deciding.own_slice import Contents
from ms_recover.training.deciding.position import Feed
from ms_recover.training.deciding.rotation import NO_STEP, agree_floor
from ms_recover.training.deciding.stall import Stall
from ms_recover.training.generators import note_drawing
from ms_recover.training.headline import Headline
from ms_recover.training.in_process import of_process
from ms_recover.training.loop_proof import end_waiting
from ms_recover.training.network_state import NetworkState, note_begin
from ms_recover.training.number_of_ranks import check_number_of_ranks
from ms_recover.training.options import check_options, check_parameters
from ms_recover.training.other_world import set_other_world_aside
from ms_recover.training.rank_facts import RankFacts, gather_facts, peers_of, states_differ
from ms_recover.training.rank_files import RankFiles
from ms_recover.training.rank_local import RankLocal
from ms_recover.training.run import Runs, check_experiment
from ms_recover.training.run_directory import RunDirectory
from ms_recover.training.run_state import PendingState, pending_state
from ms_recover.training.sample_order import sample_order
from ms_recover.training.shards import warn_of_shards
from ms_recover.training.snapshot import (
    HostMemory,
    flush_caches,
    is_compiled_parallel,
    read_contents,
    saved_names,
    write_parameters,
)
from ms_recover.training.state_now import current_state
from ms_recover.training.this_process import current_job

_log = logging.getLogger(__name__)

Facts = Sequence[RankFacts] | None


@dataclass(frozen=True, kw_only=True)
class SavingLoop:
    """The loop that a run is saved in."""

    owner: object
    """Equal in the next start of the same loop within a process."""
    feed: Feed | None = None
    save_steps: int | None = None
    """Steps between two saves, where they are known before."""
    stride: int = 1
    """Steps between two ends of a step that callbacks see."""
    order: Mapping[str, Any]
    """The order of the samples, see `sample_order`."""
    also: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments that ranks have alike."""


class SliceSaver:
    """Save this rank's slices from a training loop without ``Model``.

    All ranks make one, with the same arguments except `group`, and save at the same steps: at each save they exchange
    their committed steps. Files, names and what a slice rests on are those of `SliceCheckpoint`, which uses a saver.

    Parameters
    ----------
    parameters : Cell, or list of cells, parameters and loss scalers
        What is saved: the network and the optimizer, and everything else that training changes. None when `begin` is
        given them.
    directory : str
        Directory of this rank; ``{rank}`` stands for the rank.
    prefix : str
        Start of the file names. It names the experiment: a resume takes no slices of another prefix.
    keep : int
        Number of slices to keep, at least 2, so that a recovery can go back behind a damaged one. Those of the runs
        that this one goes on from count; what they saved behind that step goes once every rank has come as far.
    group : collection of int, optional
        Ranks that hold the same slice as this one, itself included; by default those of `layouts`.
    async_save : bool
        Copy the parameters to host memory and go on training while they are written. One save is in flight at a time.
        An error of a save is raised at the next save, or by `flush`.
    layouts : iterable of Layout, optional
        The layout of each weight, see `ms_recover.training.cut`.
    format : {"ckpt", "safetensors"}
        Format of the slices, and the ending of their names. A training may be resumed with the other one.
    keep_runs : int
        Keep so many slices of each of the last `keep_runs` runs, the present one included.
    dataset : mindspore.dataset.Dataset, optional
        The dataset of the loop, not yet used: manifests and states describe it, so that `resume` can compare it.

    Attributes
    ----------
    directory, group_info : Path
        The directory of this rank, and in it the list of ranks that hold the same slice; MindSpore's compiler may write
        the list later.
    stalls : list of Stall
        Times that training stood still, by save; the last entry of asynchronous saving is the wait of `flush`.
    run_id : str
        The same for all ranks and in all manifests of a training: MS_RECOVER_RUN_ID, or a random one of rank 0. Empty
        before the first save.

    Raises
    ------
    UsageError
        When an argument is invalid.
    StorageError
        When the directory cannot be made; while saving, when a slice cannot be written.
    MsRecoverError
        While saving, when another rank could not save.

    Examples
    --------
    >>> with SliceSaver([network, optimizer]) as saver:  # doctest: +SKIP
    ...     for step, batch in enumerate(batches, 1):
    ...         loss = train_step(*batch)
    ...         if step % 100 == 0:
    ...             saver.save(step)
    """

    def __init__(  # noqa: PLR0913 (the keywords of programs)
        self,
        parameters: Any,
        directory: str = "ckpt_dir{rank}",
        prefix: str = "CKP",
        keep: int = 4,
        group: Collection[int] | None = None,
        async_save: bool = False,
        *,
        layouts: Iterable[Layout] | None = None,
        format: SliceFormat = "ckpt",  # noqa: A002 (as MindSpore calls it)
        keep_runs: int = 1,
        dataset: Any = None,
    ) -> None:
        self._job = current_job()
        check_type("async_save", async_save, bool, "True or False")
        directory = home_path("directory", directory)
        check_options(directory, prefix, keep, format, self._job)
        self._network = None if parameters is None else saved_cell(parameters, format, self._job.rank)
        self._files = RankFiles(self._job, directory, group, layouts)
        self.directory, self.group_info = self._files.directory, self._files.group_info
        self._place = RunDirectory(self._job, str(self.directory), prefix, keep, keep_runs)
        self._async, self._format = async_save, format
        self._arguments = arguments_of_saver(async_save, layouts)
        self._doing, self._background, self._memory = ("saving", ""), Background(), HostMemory()
        self._newest = self._committed = NO_STEP
        self._begun = self._is_placed = False
        self._training: TrainingRecord | None = None
        self._dataset = dataset
        self._rank_local, self._beside = RankLocal(self._job), NetworkState(self._job)
        if self._network is not None:
            self.note_begin()
        self.stalls: list[Stall] = []
        self.run_id = ""
        self.said: set[Hashable] = set()
        """See `ms_recover.training.run.TrainingRun.said`."""

    @property
    def job(self) -> TrainingJob:
        """The ranks that save together."""
        return self._job

    @property
    def committed(self) -> Step | None:
        """The last step that this rank has committed in this run, None before the first."""
        return None if self._committed == NO_STEP else self._committed

    @property
    def experiment(self) -> str:
        """The experiment that manifests state: the prefix, without the rank."""
        return self._place.experiment

    @property
    def claim(self) -> SliceClaim | None:
        """What the state files of this run claim, None before it begins."""
        return self._place.claim

    @property
    def stated(self) -> tuple[tuple[Layout, ...] | None, frozenset[int] | None]:
        """The layouts and the group that the program stated."""
        return self._files.layouts, self._files.stated_group

    def begin(
        self,
        parameters: Any = None,
        *,
        first: Step = NO_STEP,
        loop: SavingLoop | None = None,
    ) -> None:
        """Begin a run: choose its id and its file names, and write the rank list and the strategy file.

        All ranks call it together; the first `save` does it where nobody did. Nothing is written earlier: a start with
        the wrong arguments leaves everything as it is, and until then these files belong to the slices that lie there.
        The `parameters` take the place of those that the saver was made with, and the `loop` that of the program's own.
        Shards that nobody reads are named.

        Raises UsageError when a parameter could never be loaded, ranks have different arguments, or another number of
        ranks saved the slices that lie there; StorageError when the directory cannot be written.
        """
        agree_arguments(self._job, "beginning to save", {**self._arguments, **(loop.also if loop is not None else {})})
        self._background.outcome()  # of a run that ended with an exception; it was logged
        self._begun = self._is_placed = False
        self._newest = self._committed = NO_STEP
        self._rank_local, self._beside = RankLocal(self._job), NetworkState(self._job)
        with self._job.ending_together("beginning to save"):
            check_experiment(self.experiment, str(self.directory))
            self._network = self._network if parameters is None and self._network is not None else as_cell(parameters)
            if loop is None:
                self.note_begin()
                loop = self._own_loop(self._network)
        name_prefixes(self._job, self.experiment)
        warn_of_shards(self._job, loop.order)
        set_other_world_aside(self._job, str(self.directory), of_process(Runs))
        where = (self._job, self._files.template, self._place.base)
        self._job.run_connected("looking for slices of other ranks", lambda: check_number_of_ranks(*where))
        self._job.run_connected("beginning to save", self._prepare)
        run = self._place.begin(loop.owner, first, loop.save_steps, loop.stride)
        self.run_id, self.said, self._training = run.run_id, run.said, self._place.record(loop.feed)
        self._headline = Headline(self._job, str(self.directory), run.said)
        self._begun, self._resumes = True, of_process(Runs).resumes

    def _own_loop(self, network: Any) -> SavingLoop:
        """Return the loop of a program without ``Model``, as far as the saver knows it."""
        return SavingLoop(
            owner=frozenset(map(id, network.get_parameters())),
            feed=None if self._dataset is None else Feed.of(self._dataset),
            order={} if self._dataset is None else sample_order(self._dataset),
        )

    def begin_anew(self, callbacks: Iterable[Any], owner: object) -> Anew | None:
        """Compare what a run that resumes nothing begins with, see `ms_recover.training.anew.begin_anew`."""
        if self._training is None or self._training.resumed_from is not None:
            return None
        return begin_anew(str(self.directory), [self.experiment], self._network, callbacks, owner)

    def note_ended(self) -> None:
        """Note that the training has come to its end: another one that begins in its place is named."""
        self._place.note_ended()

    def note_begin(self) -> None:
        """Note what the network keeps beside its parameters as training begins: what changes is saved."""
        note_begin(self._network)
        note_drawing()

    def network_state(self) -> dict[str, Any]:
        """Return what a state holds of the network: its buffers, and what its cells keep."""
        return self._beside.take(as_cell(None) if self._network is None else self._network)

    def _prepare(self) -> None:
        """Check the parameters, lock the directory, and write what lies beside the slices."""
        check_parameters(self._format, self._network)
        self._files.make()
        self._place.lock()
        self._files.write(self._network)

    def set_aside_newer(self, begun: Step) -> None:
        """Set aside the slices of other runs that are newer than the step behind which this run begins.

        All ranks call it together, before the first step. Raises StorageError when the file system refuses.
        """
        self._is_placed = True
        self._job.run_connected("setting newer slices aside", lambda: self._place.set_aside_newer(begun))

    def save(
        self, step: int, epoch: int | None = None, extra: Mapping[str, Any] | None = None, batch: Any = None
    ) -> None:
        """Save a slice of the parameters as they are now, with its manifest and the state beside them.

        The state is that of the random generators: Python's, numpy's, MindSpore's default one, and the seeds of its
        operators; `resume` restores it.

        Parameters
        ----------
        step : int
            Steps trained so far; with an `epoch` those of the epoch. It grows from save to save.
        epoch : int, optional
            The epoch, from 1. Without epochs the whole training counts as the first one.
        extra : dict, optional
            What else the program needs to go on, which `resume` returns: numbers, texts, tensors and arrays, and lists,
            tuples and dicts of them.
        batch : optional
            The batch of this step, whole and as the iterator gave it, of which a digest is saved (of 64 MiB at most):
            `Resumption.prove` compares it.

        Raises
        ------
        UsageError
            When the numbers do not grow, or `extra` holds something else, which is named.
        StorageError, VerificationError, MsRecoverError
            When this slice (with `async_save` the one before) could not be saved, on this rank or another one.
        """
        begins = not self._begun or self._resumes != of_process(Runs).resumes
        with self._job.ending_together(f"saving step {step}"):  # before anything begins: a refusal leaves all as it is
            named = Step(1 if epoch is None else whole_number("epoch", epoch, 1), whole_number("step", step, 1))
            if named <= self._newest and not begins:
                raise UsageError(f"step {named} does not come behind step {self._newest}, which was saved last")
            samples = {} if batch is None else {"batch": tuple(to_record(digest_batch(batch)))}
            order = {} if self._dataset is None else {"order": sample_order(self._dataset)}
            state = pending_state(current_state(extra=extra, **order, **samples, **self.network_state()))
        if begins:
            self.begin(first=named)
        end_waiting()
        if not self._is_placed:
            self.set_aside_newer(Step(named.epoch, named.step - 1))
        doing = f"saving step {step}" if epoch is None else f"saving in epoch {epoch}"
        self.save_step(named, step if epoch is None else None, state, doing=doing)

    def save_step(
        self, step: Step, total: int | None, state: PendingState, facts: Facts = None, *, doing: str = "saving"
    ) -> None:
        """Save a slice under the name of a step, `total` steps after the very first if that is known.

        `state` is for its state file, with the `facts` of all ranks, gathered if not given; all are `doing` the same.
        """
        began = time.perf_counter()
        self._doing = (doing, f"saving step {step}")
        group = self._files.group()
        facts = facts or gather_facts(self._job, state.facts, f"describing {doing}", self._doing[1])[1]
        self._newest, network = step, self._network
        self._place.note(step)
        with self._job.ending_together(self._doing[1]):
            order = self._order(step, total, state.encoded(self.claim, peers_of(self._job.rank, group, facts)), facts)
            flush_caches(network)
            self._beside.name_replaced(network, step)
            contents = None if is_compiled_parallel(network) and not self._async else read_contents(network)
        if self._async:
            floor = self._floor(order.group, contents if self._rank_local.is_due(order.group) else None)
            if contents is None:  # MindSpore has to read the parameters itself, so they must not change meanwhile
                self._background.do_now(lambda: self._commit(order, network, floor))
            else:
                snapshot = self._memory.copy(contents)
                self._background.begin(lambda: self._commit(order, snapshot, floor), f"save-{order.step}")
        else:
            self._background.do_now(lambda: self._commit(order, contents or network, None))
            self._place.rotate(self._floor(order.group))
        self._stood_still(order.step, began)

    def flush(self) -> None:
        """Wait until everything is committed on every rank; all ranks call it, at the end of the training.

        Raises what `save` raises when a slice could not be saved.
        """
        if self._async and self._begun:
            began = time.perf_counter()
            self._doing = ("waiting for the last slice", "")
            self._place.rotate(self._floor(self._files.group()))
            self._stood_still(self._committed, began)
        self._background.raise_failure()

    def release(self) -> None:
        """Wait for the save in flight, and give the directory back, so that another process may save to it."""
        self._background.outcome()  # it was logged
        self._place.release()

    def __enter__(self) -> SliceSaver:
        """Begin a run."""
        if not self._begun:
            self.begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Wait for the save in flight; behind an exception its own error is only logged."""
        try:
            if kind is None:
                self.flush()
            else:
                self._background.outcome()
        finally:
            self._begun = False
            self._place.release()

    def _order(self, step: Step, cumulative_step: int | None, state: bytes, facts: Sequence[RankFacts]) -> SliceOrder:
        group, training = self._files.group(), self._training
        if training is not None:
            training = replace(training, buffers=self._beside.buffers, states_differ=states_differ(group, facts))
        return SliceOrder(
            path=str(self.directory / f"{self._place.prefix}-{step}.{self._format}"),
            rank=self._job.rank,
            world_size=self._job.size,
            step=step,
            cumulative_step=cumulative_step,
            run_id=self.run_id,
            group=group,
            expected=saved_names(self._network),
            state=state,
            training=training,
        )

    def _commit(self, order: SliceOrder, parameters: Any, floor: Step | None) -> None:
        """Write and commit a slice; remove old ones if the newest step of every rank is given."""
        try:
            self._place.commit(order.step, order.path, lambda: self._save_slice(order, parameters))
        except MsRecoverError as error:
            raise type(error)(why_not_saved(order, error)) from error
        except Exception as error:  # of MindSpore: it must name rank and step
            raise MsRecoverError(why_not_saved(order, error)) from error
        self._committed = order.step
        forget_begin(str(self.directory), self.experiment)
        _log.info("%s: saved", order)
        if floor is not None:
            self._place.rotate(floor)

    def _save_slice(self, order: SliceOrder, parameters: Any) -> None:
        staged = stage_slice(order, lambda path: write_parameters(path, self._format, parameters))
        manifest = commit_staged(staged, self._rank_local.add_to(order.training))
        self._rank_local.saved(order.path, manifest)

    def _floor(self, group: tuple[int, ...], contents: Contents | None = None) -> Step:
        """Wait for the write in flight; return the newest step that all ranks have committed, and compare values."""
        failure = self._background.outcome()  # first: only then is it known what this rank has committed
        values = self._rank_local.values(group, self._newest, contents, self._beside.buffers)
        committed, summaries = agree_floor(self._job, self._committed, failure, values.summary(), *self._doing)
        if self._rank_local.learn(values, summaries):
            self._background.do_now(self._rank_local.record)
        if (floor := self._headline.floor(committed)) > NO_STEP:
            self._headline.say(floor, group, self._files.is_one_block)
        return floor

    def _stood_still(self, step: Step, began: float) -> None:
        self.stalls.append(stall := Stall(step, time.perf_counter() - began))
        _log.info("rank %d, step %s: training stood still for %.3f s to save", self._job.rank, step, stall.seconds)
