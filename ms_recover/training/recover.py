"""Resuming a ``Model``: all ranks load the newest step that each of them can get, and training goes on from there."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from mindspore.dataset import Dataset
from mindspore.train import Callback

from ms_recover.arguments import check_type, whole_number
from ms_recover.errors import InputError, UsageError
from ms_recover.loading.path_arguments import Paths
from ms_recover.model.rank_local import RankLocalChoice
from ms_recover.model.steps import Step
from ms_recover.model.strategy import Layout
from ms_recover.model.texts import list_some
from ms_recover.training.callback_states import ending_callbacks, why_ended
from ms_recover.training.cells import as_cell
from ms_recover.training.continuation import Continuation, agree_state
from ms_recover.training.deciding.equal_arguments import or_not_given
from ms_recover.training.deciding.own_slice import OwnSlice
from ms_recover.training.deciding.position import Feed, Position
from ms_recover.training.first_step import LoadedValues, checked_allow
from ms_recover.training.foreign_saves import given_experiments
from ms_recover.training.found_slice import find_any
from ms_recover.training.held_directories import Held
from ms_recover.training.in_process import of_process
from ms_recover.training.mindspore_inside import has_metrics, init_step_of
from ms_recover.training.network import compile_network
from ms_recover.training.obtained import Obtained, load_found
from ms_recover.training.proof import forget_line, say_line
from ms_recover.training.proving import SampleProver, Trained, why_unproven
from ms_recover.training.resume_options import ResumeOptions
from ms_recover.training.resuming import Resumption
from ms_recover.training.run import Runs, forget_resumed
from ms_recover.training.run_state import RunState
from ms_recover.training.sample_order import check_order, doubts, doubts_of_change, remaining_doubts, sample_order
from ms_recover.training.search import Fresh
from ms_recover.training.shards import check_shards
from ms_recover.training.slice_checkpoint import SliceCheckpoint
from ms_recover.training.this_process import current_job, device_target

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class _Training:
    """How `recover_train` trains: what a program gave, checked."""

    model: Any
    dataset: Any
    callbacks: list[Callback]
    epochs: int | None
    more_epochs: int | None
    sinks: bool
    sink_size: int
    valid_dataset: Any
    valid_frequency: int | list[int]
    valid_sinks: bool
    allow_dataset_change: bool
    allow: frozenset[str]

    @classmethod
    def of(cls, keywords: Mapping[str, Any]) -> _Training:
        """Check the keywords of a program, of which those of its training are taken; UsageError when one is invalid."""
        given = SimpleNamespace(**keywords)
        if (given.epochs is None) == (given.more_epochs is None):
            raise UsageError("give epochs, the number in total, or more_epochs, those behind the slice; one of them")
        name = "epochs" if given.more_epochs is None else "more_epochs"
        count = whole_number(name, getattr(given, name), 1)
        callbacks = _checked_program(given)
        frequency = _checked_validation(given)
        target = device_target()
        sinks = target != "CPU" and (target == "Ascend" if given.sink_mode is None else given.sink_mode)
        return cls(
            model=given.model,
            dataset=given.dataset,
            callbacks=callbacks,
            epochs=count if name == "epochs" else None,
            more_epochs=count if name == "more_epochs" else None,
            sinks=sinks,
            sink_size=given.sink_size,
            valid_dataset=given.valid_dataset,
            valid_frequency=frequency,
            valid_sinks=sinks if given.valid_sink_mode is None else target != "CPU" and given.valid_sink_mode,
            allow_dataset_change=given.allow_dataset_change,
            allow=checked_allow(given.allow),
        )

    @property
    def limit(self) -> int:
        """The epochs that are given, in total or behind the slice."""
        return self.epochs or self.more_epochs or 0

    @property
    def savers(self) -> list[Any]:
        """The savers of the callbacks."""
        return _savers_of(self.callbacks)

    @property
    def to_agree(self) -> dict[str, Any]:
        """What all ranks must have alike."""
        return {
            "epochs": self.epochs,
            "more_epochs": self.more_epochs,
            "allow": sorted(self.allow),
            "allow_dataset_change": self.allow_dataset_change,
            "sink_mode": self.sinks,
            "sink_size": self.sink_size,
            "valid_dataset": or_not_given(self.valid_dataset),
            "valid_frequency": self.valid_frequency,
        }

    def train(self, epochs: int, callbacks: list[Callback], **also: int) -> None:
        """Train until there are so many epochs, with ``Model.fit`` where there is a dataset for the validation."""
        settings = {"dataset_sink_mode": self.sinks, "sink_size": self.sink_size, "callbacks": callbacks, **also}
        if self.valid_dataset is None:
            self.model.train(epochs, self.dataset, **settings)
            return
        validation = {
            "valid_dataset": self.valid_dataset,
            "valid_dataset_sink_mode": self.valid_sinks,
            "valid_frequency": self.valid_frequency,
        }
        self.model.fit(epochs, self.dataset, **settings, **validation)


def _checked_program(given: Any) -> list[Callback]:
    """Check the types of what is trained, and how; return the callbacks as a list."""
    check_type("allow_dataset_change", given.allow_dataset_change, bool, "True or False")
    if not hasattr(given.model, "train_network") or not callable(getattr(given.model, "train", None)):
        raise UsageError(f"model: a {type(given.model).__name__} is no mindspore.train.Model")
    check_type("dataset", given.dataset, Dataset, "a mindspore.dataset.Dataset")
    if given.sink_mode is not None:
        check_type("sink_mode", given.sink_mode, bool, "True, False or None")
    if whole_number("sink_size", given.sink_size) < 1 and given.sink_size != -1:
        raise UsageError(f"sink_size={given.sink_size}: it must be -1, for the whole dataset, or at least 1")
    callbacks = given.callbacks
    listed = [] if callbacks is None else list(callbacks) if isinstance(callbacks, Iterable) else [callbacks]
    for one in listed:
        check_type("callbacks: one", one, Callback, "a mindspore.train.Callback")
    return listed


def _checked_validation(given: Any) -> int | list[int]:
    """Check the arguments of the validation; return its frequency as ``Model.fit`` takes it."""
    if given.valid_sink_mode is not None:
        check_type("valid_sink_mode", given.valid_sink_mode, bool, "True, False or None")
    if given.valid_dataset is not None:
        check_type("valid_dataset", given.valid_dataset, Dataset, "a mindspore.dataset.Dataset")
        if not has_metrics(given.model):
            raise UsageError("valid_dataset: the model has no metrics; make it with Model(..., metrics={...})")
    frequency = given.valid_frequency
    if isinstance(frequency, Iterable) and not isinstance(frequency, str):
        return [whole_number("valid_frequency: an epoch", epoch, 1) for epoch in frequency]
    return whole_number("valid_frequency", frequency, 1)


def _forget() -> None:
    forget_resumed()
    forget_line()
    of_process(Runs).accumulate = 1


def recover_train(  # noqa: PLR0913 (the keywords of programs)
    model: Any,
    dataset: Any,
    root: str | os.PathLike[str],
    epochs: int | None = None,
    callbacks: Any = None,
    sink_mode: bool | None = None,
    *,
    more_epochs: int | None = None,
    sink_size: int = -1,
    valid_dataset: Any = None,
    valid_frequency: int | Iterable[int] = 1,
    valid_sink_mode: bool | None = None,
    pattern: str | None = None,
    group_info: Paths = (),
    strategy: Paths = (),
    step: Step | str | tuple[int, int] | None = None,
    ckpt_file: str | os.PathLike[str] | None = None,
    run: str | None = None,
    prefix: str | Iterable[str] | None = None,
    newest: bool = False,
    tolerate: str | Iterable[str] = (),
    fresh: Fresh = "refuse",
    rank_local: RankLocalChoice = "refuse",
    keep: str | Iterable[str] = (),
    allow_dataset_change: bool = False,
    reshard: bool = False,
    sources: Paths = (),
    layouts: Iterable[Layout] | None = None,
    accumulate: int = 1,
    allow: str | Iterable[str] = (),
) -> Resumption:
    """Resume training from the newest step that every rank has or can get.

    All ranks call it, with the same arguments, after ``mindspore.communication.init``. They need not share a file
    system: each rank judges the files that it sees under `root`, and all choose the same step. Each rank verifies its
    slice by the manifest. A rank whose slice is missing or damaged copies or composes it from files of other ranks that
    it can reach, as ``recover-ckpt apply`` does. Where that is not possible, all ranks go back to an older step. Then

    1. the slice is read,
    2. the train network is compiled where the compiler cuts its parameters (``model.build`` in sink mode on Ascend),
    3. the slice is loaded into it, optimizer state included,
    4. the loaded values are compared with the manifest; without one they rest on the slice's structure, which is
       logged,
    5. ``model.train`` goes on, or ``model.fit`` with the `valid_dataset`.

    Training goes on exactly behind the saved step, in the middle of an epoch too: the dataset skips the consumed
    samples, also when it shuffles with a fixed seed (``mindspore.dataset.config.set_seed``), and callbacks see the step
    numbers of an uninterrupted run. Random generators (Python's, numpy's, MindSpore's default one, the seeds of its
    operators) are as they were behind the saved step, and so are callbacks that have ``state_dict()`` and
    ``load_state_dict()``, and MindSpore's EarlyStopping, ReduceLROnPlateau and History; no callback begins an epoch a
    second time. Another seed of a shuffled dataset is refused. The last trained batch is drawn once more, by the
    iterator that trains, and compared: other samples are refused, with the step, the column and what may be the cause.
    A warning names what does not go on exactly: other callbacks, an unseeded shuffle within an epoch, and random
    operators in the network, such as ``nn.Dropout``, whose state MindSpore does not expose. In sink mode training
    resumes at the ends of sinks only, and samples are not compared.

    When all of that is proven, this rank's slices that are newer than that step are renamed, with their manifests and
    states: ``.superseded`` is appended. They belong to the interrupted training, and a later recovery must not mix the
    two.

    Parameters
    ----------
    model : mindspore.train.Model
        The model, built as for the training that saved the slices.
    dataset : mindspore.dataset.Dataset
        The dataset of that training, not yet used.
    root : str or path
        The tree of slices, which holds ``ckpt_dir{rank}/``; ``~`` is the home directory.
    epochs : int
        Epochs in total, as in that training. Give either this or `more_epochs`.
    more_epochs : int
        Epochs behind the one that the slice was saved in.
    callbacks : Callback or list of Callback, optional
        For `Model.train` or `Model.fit`, such as a `SliceCheckpoint`.
    sink_mode : bool, optional
        Sink the dataset to the device; by default on Ascend only. CPU cannot.
    sink_size : int
        Steps per sink as in that training, -1 for the whole dataset.
    valid_dataset : mindspore.dataset.Dataset, optional
        Train with `Model.fit`, which evaluates the model on this dataset.
    valid_frequency : int or list of int
        For `Model.fit`: every how many epochs, or behind which epochs of the whole training.
    valid_sink_mode : bool, optional
        Sink this dataset to the device; by default as `sink_mode`.
    pattern, group_info, strategy
        Layout of the tree, and evidence outside it, as in `ScanOptions`.
    step : Step, str or tuple of int, optional
        The step to resume from, as slices name it: ``"2_77"``, or ``(epoch, step)``. It is proven and obtained like the
        newest one, which is resumed from by default; there is no going back to another step.
    ckpt_file : str or path, optional
        The same by one of its slices, such as ``ckpt_dir{rank}/test-2_77.ckpt`` or the file of any rank; a slice that
        was set aside may be named. The run that saved it is resumed.
    run : str, optional
        The run to resume, by its id, as warnings name it. By default the one that was started last, with those that it
        goes on from; a newer step of another run is named in a warning. Slices of the chosen run that were set aside
        are brought back, and those of runs that were started later are set aside. The variable MS_RECOVER_RUN does the
        same, but takes a run that goes on from all of the named one, so that it may stay for later starts. The prefix
        of another experiment stands for the run of it that was started last.
    prefix : str or list of str, optional
        The experiment to resume, by the prefix that the program gives to what saves its slices; by default that of each
        `SliceCheckpoint` among the callbacks, or else of each ``ModelCheckpoint``. Slices of other experiments are no
        candidates, and stay as they are. Without any the root must hold slices of one experiment alone.
    newest, tolerate
        Where manifests tell no runs apart, whether the slices that were modified last count; and the parameters that
        may differ between replicas, as in `PlanOptions`.
    fresh : {"refuse", "start"}
        Without any slice of any step on any rank: raise, or train from the first epoch. It never trains over slices: a
        tree that cannot be read, or in which files have names of slices that the scan did not take for some, is an
        error.
    rank_local : {"refuse", "peer", "initial"}
        Where values that were a rank's own, such as a memory bank, are lost with its slice: do not resume from that
        step, or go on with the values of another rank, or with those that the network has now. Batch statistics of
        another rank are taken and named in a warning, and so are parameters that `tolerate` names.
    keep : str or list of str
        Parameters that keep the values of the program instead of those of the slice, by their names in the network,
        such as ``["learning_rate"]`` where a list of learning rates was made for more epochs. Other settings of
        optimizers and loss scales that differ from the interrupted training are named in warnings.
    allow_dataset_change : bool
        Go on although an epoch has another number of steps than that of the slice, a step another number of samples,
        the shuffled dataset another seed, or the last trained batch other contents.
        A warning states the position: whole epochs stay whole, and of the epoch in which the step lies as many samples
        are passed over as were trained.
    reshard : bool
        Resume on another number of ranks too, or with other layouts than those of the slices: each rank puts exactly
        its own slice together in memory, out of pieces of any sound slices that hold them, each compared with its
        digest. Where the slices fit as they are, nothing else happens than without. Before the first save the slices
        of the other ranks are set aside as a whole, below ``resharded_from`` in `root`.
    sources : str or path, or list of them
        With `reshard`: other trees that hold slices of that training, written as ``recover-ckpt apply --from`` takes
        them: ``HOST:PORT`` of a ``recover-ckpt serve``, a URL, or a path with a ``/`` in it. Token and TLS come from
        the environment.
    layouts : iterable of Layout, optional
        With `reshard`: how the parameters of this job are cut, as `SliceCheckpoint` takes it; by default those of a
        `SliceCheckpoint` among the callbacks, or what MindSpore's compiler does.
    accumulate : int
        Steps of the dataset that make up one update of the weights, where lost ranks are made up for so. The samples of
        an update over all ranks must stay as many as they were.
    allow : str or list of str
        Parameters and buffers that callbacks may write over in ``on_train_begin``, such as ``["learning_rate"]``.
        Others are refused: training would not begin with what was resumed. What callbacks write when an epoch or a step
        begins belongs to the training.

    Returns
    -------
    Resumption
        The step. When all epochs were done already, the slices are loaded and nothing is trained.

    Raises
    ------
    UsageError
        When an argument is invalid, or there is no such run; the message lists the runs.
    MissingInputError
        When there is no slice anywhere, unless `fresh` is ``"start"``.
    UnrecoverableError
        When there are slices, but no step that every rank can be brought to.
    InputError
        When the slice does not fit the network or the dataset; nothing is trained.
    StorageError
        When another training saves to a directory of this rank.
    VerificationError
        When replicas differ and nothing shows which is right, or when the loaded values differ from the manifest;
        nothing is trained.
    MsRecoverError
        When another rank failed, with its reason.
    """
    keywords = locals()  # no other name is bound yet
    with Held() as held:
        held.callback(_forget)
        return _recover(keywords, held)


def _recover(keywords: Mapping[str, Any], held: Held) -> Resumption:
    with (job := current_job()).ending_together("checking the arguments of a resume"):
        training = _Training.of(keywords)
        options = ResumeOptions.of(keywords)
        options = options.of_program(given_experiments(options.prefix, training.callbacks, training.savers))
    model, dataset, limit, sink = training.model, training.dataset, training.limit, training.sinks
    sink_size, listed, allow_dataset_change = training.sink_size, training.callbacks, training.allow_dataset_change
    found = find_any(job, options, held, training.savers, model.train_network, training.to_agree)
    if found is None:
        training.train(limit, listed)
        return Resumption(None, None, None, limit, True)
    own = found.own
    with job.ending_together("reading the state, and looking at the dataset"):
        feed, order = Feed.of(dataset, sink_size if sink else -1, sinks=sink), sample_order(dataset)
        there = found.state()
    state = agree_state(job, own, there)
    check_shards(found, state.order if state is not None else {}, order, allow=allow_dataset_change)
    batch_num, place = feed.epoch_steps, _agree_position(found, feed, allow_dataset_change, dataset, state)
    done, trained = place.done, Trained(dataset, place.batches, batch_num)
    last = limit if training.epochs is not None else -(-done // batch_num) + limit
    ended = why_ended(listed, state.callbacks, own.step.epoch) if state is not None else None
    if done >= last * batch_num:
        ended = f"all {last} epochs are done"
    resumed = Resumption(
        own.step,
        own.path,
        found.source_rank,
        last,
        ended is None,
        found.lost,
        resharded_from=found.resharded_from,
        accumulate=found.micro_batches(dataset, state),
    )

    def compile_it() -> None:
        if sink and resumed.trained:  # the device queue begins to fill while compiling, from where the dataset stands
            dataset.set_init_step(trained.batches)
        compile_network(model, dataset, last, sink and resumed.trained, sink_size)

    def load() -> None:
        if state is not None and resumed.trained and not allow_dataset_change:
            check_order(state.order, dataset, shared_out=found.resharded_from is not None)
        loaded.load(state, compile_it)

    loaded = LoadedValues(found, lambda: as_cell(model.train_network), model, training.allow)
    with _position_kept(dataset):
        load_found(found, load, state, model, trains=resumed.trained)
        if not resumed.trained:
            _say_finished(own, str(ended), listed, as_asked=done <= last * batch_num, prints=job.rank == 0)
            return resumed
        _log.info("%s: training goes on behind %d steps", own, done)
        dataset.set_init_step(trained.batches)
        prover = _prover_of(found, state, place, trained, allow=allow_dataset_change, sink=sink)
        going_on = Continuation(found, place.counted, listed, state, prover, loaded)
        with prover.watching():
            training.train(last, [going_on, *listed], initial_epoch=done // batch_num)
    return resumed


def _agree_position(found: Obtained, feed: Feed, allow_change: bool, dataset: Any, state: RunState | None) -> Position:
    """Return the position in the dataset, that all ranks have; all ranks call it together.

    Raises InputError when the dataset is another one than that of the training that saved the slice, or not the same on
    all ranks, or when sink mode would begin within an epoch.
    """
    job, own = found.job, found.own

    def find() -> Position:
        try:
            position = found.position(feed, dataset, state, allow_change)
        except InputError as error:
            raise InputError(f"{own}: {error}") from error
        if position.change is not None:
            _log.warning("%s: %s", own, position.change)
        if state is None or found.resharded_from is not None:
            return position
        manifest = found.manifest
        return position.counting(state.drawn, manifest.cumulative_step if manifest is not None else None)

    position = job.run_together("comparing the dataset", find)
    positions = set(job.gather([position.done, position.batches, position.counted], "comparing the dataset"))
    if len(positions) > 1:
        others = sorted({batches for _, batches, _ in positions} - {position.batches})
        raise InputError(
            f"{own}: training would go on behind {position.batches} steps here, and on other ranks behind "
            f"{list_some(others)}: give the same dataset on all ranks"
        )
    return position


def _say_finished(own: OwnSlice, ended: str, callbacks: Sequence[Any], *, as_asked: bool, prints: bool) -> None:
    """Say that nothing is left to train; a warning where the training has come further than the program asks.

    A script with several trainings comes here in each start behind the end of the first, and so does a training that
    a callback of the program has ended. What callbacks do when a training ends is not done once more.
    """
    for saver in _savers_of(callbacks):
        saver.note_ended()
    acting = ending_callbacks(callbacks)
    if acting:
        ended = f"{ended}; what on_train_end of {list_some(acting)} changed is not in it"
    _log.log(
        logging.INFO if as_asked else logging.WARNING, "%s: %s; it is loaded, and nothing is left to train", own, ended
    )
    if prints:
        say_line(f"step {own.step} is loaded, and nothing is left to train: {ended} ({own.path})")


def _changes(found: Obtained, dataset: Any, state: RunState | None) -> list[str]:
    shared_out = found.resharded_from is not None
    return doubts_of_change(state.order, dataset, shared_out=shared_out) if state is not None else []


def _prover_of(
    found: Obtained, state: RunState | None, place: Position, trained: Trained, *, allow: bool, sink: bool
) -> SampleProver:
    """Return what proves the samples; warn of what it cannot show."""
    dataset = trained.dataset
    if found.resharded_from is not None:
        why_not: str | None = "slices were cut anew, so that no rank has the batch that was trained before"
    elif sink:
        why_not = "in sink mode no batch is in the hands of the program"
    elif place.change is not None:
        why_not = "the dataset is another one, as allow_dataset_change=True allows"
    else:
        why_not = why_unproven(state, dataset, trained.batches)
    exact = remaining_doubts(dataset) if why_not is None else doubts(dataset, trained.batches, trained.epoch_steps)
    for doubt in (*_changes(found, dataset, state), *exact):
        _log.warning("%s: %s", found.own, doubt)
    return SampleProver(found.job, found.own, trained, state, why_not=why_not, allow=allow)


def _savers_of(callbacks: Iterable[Any]) -> list[Any]:
    return [one.saver for one in callbacks if isinstance(one, SliceCheckpoint)]


@contextmanager
def _position_kept(dataset: Any) -> Iterator[None]:
    """Give the dataset its first step back at the end, also where training failed."""
    before = init_step_of(dataset)
    try:
        yield
    finally:
        dataset.set_init_step(before)
