"""The callback that saves: `SliceSaver` at the steps of a ``Model``."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

from mindspore.train import Callback

from ms_recover.file_names import SliceFormat
from ms_recover.model.steps import Step
from ms_recover.model.strategy import Layout
from ms_recover.training.anew import Anew
from ms_recover.training.callback_states import callback_states, settings_of_callbacks
from ms_recover.training.dataset_reads import DatasetDraws, LastBatch
from ms_recover.training.deciding.position import Feed
from ms_recover.training.deciding.rotation import NO_STEP
from ms_recover.training.deciding.stall import Stall
from ms_recover.training.first_step import Settling, settling_of
from ms_recover.training.gradients import end_recording
from ms_recover.training.hyperparameters import CALLBACKS
from ms_recover.training.mindspore_inside import act_first, act_last, around_first, calling_manager, listed_callbacks
from ms_recover.training.options import check_save_steps
from ms_recover.training.rank_facts import RankFacts, gather_facts
from ms_recover.training.run_state import PendingState, pending_state
from ms_recover.training.sample_order import is_unseeded, sample_order
from ms_recover.training.slice_saver import SavingLoop, SliceSaver
from ms_recover.training.state_now import current_state
from ms_recover.training.unsaved_callbacks import warn_of_unsaved
from ms_recover.training.weight_updates import LossScales, OptimizerSteps

_log = logging.getLogger(__name__)

_LONGEST_WAIT = 256
"""Steps that a save waits for an update of the weights."""


class SliceCheckpoint(Callback):  # type: ignore[misc]
    """Save this rank's slice with its manifest and the list of ranks that hold the same slice.

    All ranks create one, with the same arguments except `group`, and save at the same steps: at each save they exchange
    their committed steps.

    Slices have the names and the bytes that MindSpore's ``ModelCheckpoint`` gives them:
    ``{prefix}-{epoch}_{step}.{format}``, the prefix with ``_N`` behind it when the directory holds slices of an earlier
    start already. Nothing is gathered from other ranks (``integrated_save=False``), and the optimizer state is saved
    too. A slice counts when ``{name}.manifest.json`` lies beside it, which is written last: a save that is interrupted
    leaves the slices before it whole. The oldest slices are removed afterwards, once every rank has committed a newer
    step.

    Whatever its place in the list, it acts behind all other callbacks: what they change of the parameters is in the
    slice. The slice of an epoch's last step is saved when the epoch has ended for all of them. ``{name}.state`` holds
    what is in no parameter: random generators (Python's, numpy's global one, MindSpore's default one and the seeds of
    its operators), and the state of callbacks that have ``state_dict()`` and ``load_state_dict()``, and of MindSpore's
    EarlyStopping, ReduceLROnPlateau and History. `recover_train` restores it.

    ``group_info.pb`` in the same directory lists the ranks that hold the same slice. Create the callback after
    ``mindspore.communication.init`` and the parallel context, and before anything is compiled, because

    - for a network built from explicit collectives, MindSpore cannot know those ranks: give `layouts`, from which they
      follow, or at least the `group`;
    - in data-parallel mode all ranks are listed; with ``enable_parallel_optimizer`` each rank lists itself alone,
      because it updates only its own part of the optimizer states;
    - otherwise, on a device other than CPU, the variable GROUP_INFO_FILE is set, which makes the compiler of
      (semi-)auto parallel write the list. On CPU the variable would make MindSpore fail, and is left alone.

    Parameters that differ between ranks which should hold the same, such as memory banks and batch statistics, are
    named in a warning at the first save, and listed in the manifests as rank-local; see `recover_train`.

    ``strategy.ckpt`` holds the layouts of the parameters, from which a recovery finds the parameters of a lost slice
    that other ranks still hold. MindSpore's compiler writes it when ``strategy_ckpt_config`` names it; for a network
    built from explicit collectives give `layouts`, and it is written when training begins.

    Parameters
    ----------
    directory : str
        Directory of this rank; ``{rank}`` stands for the rank.
    prefix : str
        Start of the file names. It names the experiment: a resume takes no slices of another prefix.
    save_steps : int, optional
        Steps between two slices, counted from the start of the training; by default one slice per epoch. In sink
        mode a slice is saved at the end of the first sink at or behind each multiple. A step that has not updated the
        weights, because gradients are accumulated or the loss scale overflowed, is not saved: the next one that has
        updated them is. In sink mode choose a sink size that is a multiple of the accumulation.
    keep : int
        Number of slices to keep, at least 2, so that a recovery can go back behind a damaged one. Those of the runs
        that this one goes on from count; what they saved behind that step goes once every rank has come as far.
    group : collection of int, optional
        Ranks that hold the same slice as this one, itself included; by default those of `layouts`.
    async_save : bool
        Copy the parameters to host memory and go on training while they are written. One save is in flight at a time.
        An error of a save is raised at the next save, or at the end of the training.
    layouts : iterable of Layout, optional
        The layout of each weight, see `ms_recover.training.cut`. Optimizer states are cut like their weights; all ranks
        hold the other parameters whole.
    format : {"ckpt", "safetensors"}
        Format of the slices, and the ending of their names. A training may be resumed with the other one.
    keep_runs : int
        Keep so many slices of each of the last `keep_runs` runs, the present one included.

    Attributes
    ----------
    saver : SliceSaver
        Saves the slices; the other attributes are its own.
    directory, group_info : Path
        The directory of this rank, and in it the list of ranks that hold the same slice; MindSpore's compiler may write
        the list later.
    stalls : list of Stall
        Times that training stood still, by save; the last entry of asynchronous saving is the wait at the end.
    run_id : str
        The same for all ranks and in all manifests of a training: MS_RECOVER_RUN_ID, or a random one of rank 0.

    Raises
    ------
    UsageError
        When an argument is invalid.
    StorageError
        When the directory cannot be made; while training, when a slice cannot be written.
    MsRecoverError
        While training, when another rank could not save.

    Examples
    --------
    >>> model.train(4, dataset, callbacks=[SliceCheckpoint(prefix="test")])  # doctest: +SKIP

    A network built from explicit collectives, its rows split over four ranks, each part held by two:

    >>> devices = {"dp": 2, "mp": 4}
    >>> layouts = [cut("fc.weight", devices, "mp", None), cut("fc.bias", devices, "mp")]  # doctest: +SKIP
    >>> model.train(4, dataset, callbacks=[SliceCheckpoint(prefix="test", layouts=layouts)])  # doctest: +SKIP
    """

    def __init__(  # noqa: PLR0913 (the keywords of programs)
        self,
        directory: str = "ckpt_dir{rank}",
        prefix: str = "CKP",
        save_steps: int | None = None,
        keep: int = 4,
        group: Collection[int] | None = None,
        async_save: bool = False,
        *,
        layouts: Iterable[Layout] | None = None,
        format: SliceFormat = "ckpt",  # noqa: A002 (as MindSpore calls it)
        keep_runs: int = 1,
    ) -> None:
        super().__init__()
        check_save_steps(save_steps)
        self._save_steps = save_steps
        self.saver = SliceSaver(
            None, directory, prefix, keep, group, async_save, layouts=layouts, format=format, keep_runs=keep_runs
        )
        self._last = self._asked = self._due = 0  # steps: saved last, begun with a look at the optimizer, due since
        self._is_placed = False
        self._loops = 0
        self._first_epoch = 0
        self._callbacks: list[Any] = []
        self._order: dict[str, Any] = {}
        self._draws = DatasetDraws()
        self._settling = Settling()
        self._anew: Anew | None = None
        self._managed = self._unseeded = self._has_saved = False

    @property
    def directory(self) -> Path:
        """The directory of this rank."""
        return self.saver.directory

    @property
    def group_info(self) -> Path:
        """The list of ranks that hold the same slice."""
        return self.saver.group_info

    @property
    def run_id(self) -> str:
        """The id of the run, empty before the training begins."""
        return self.saver.run_id

    @property
    def stalls(self) -> list[Stall]:
        """Times that training stood still, by save."""
        return self.saver.stalls

    @property
    def committed(self) -> Step | None:
        """The last step that this rank has committed in this training, None before the first."""
        return self.saver.committed

    def on_train_begin(self, run_context: Any) -> None:
        """Begin a run, and take the last place among the callbacks."""
        end_recording()  # else each step of this training would run the network twice
        params = run_context.original_args()
        self._last = self._asked = params.cur_step_num
        self._due = self._first_epoch = 0
        dataset = getattr(params, "train_dataset", None)
        with self.saver.job.ending_together("looking at the dataset"):
            self._order, self._unseeded = sample_order(dataset), is_unseeded(dataset)
        self._batch = LastBatch(params, dataset, self._may_end)
        sinks = getattr(params, "dataset_sink_mode", False)
        loop = SavingLoop(
            owner=params,
            feed=Feed.of(dataset, params.batch_num),
            save_steps=self._save_steps or params.batch_num,
            stride=params.batch_num if sinks else 1,
            order=self._order,
            also={
                "save_steps": self._save_steps,
                "dataset_sink_mode": bool(sinks),
                "epochs": getattr(params, "epoch_num", None),
                "steps of an epoch": params.batch_num,
            },
        )
        self.saver.begin(params.train_network, loop=loop)
        self._is_placed = self._has_saved = False
        self._updates = OptimizerSteps(params.train_network)
        self._scales = LossScales(params.train_network)
        manager = calling_manager()
        self._managed = manager is not None
        self._callbacks = list(getattr(params, "list_callback", ()) if manager is None else listed_callbacks(manager))
        self._settling = settling_of(self._callbacks)
        if manager is None:
            if self._callbacks and self._callbacks[-1] is not self:
                _log.warning("these callbacks are not called by mindspore.train.Model: put SliceCheckpoint last")
            return
        act_last(manager, SliceCheckpoint)
        act_first(manager, self._batch)  # so that the batch is as the dataset gave it
        self._callbacks = listed_callbacks(manager)
        self._draws.watch(manager)
        around_first(manager, "on_train_epoch_begin", self._begin_epoch)

    def _begin_epoch(self, run_context: Any, act: Callable[[], None]) -> None:
        """Set newer slices aside, and refuse states that cannot be saved, before a sample is read."""
        self.saver.note_begin()
        self._anew = self.saver.begin_anew(self._callbacks, run_context.original_args())
        act()
        if self._settling.is_settled:
            self._place_run(run_context.original_args())
        self.saver.job.run_connected("reading the state of the callbacks", lambda: self._state().encoded())

    def on_train_step_begin(self, run_context: Any) -> None:
        """Note the optimizer's counter where a slice may be saved behind the step."""
        params = run_context.original_args()
        anew, self._anew = self._anew, None
        if anew is not None:
            anew.say(self.saver.job.rank, getattr(params, "train_dataset", None), self._batch.of_step(params))
        self._settling.settle()
        self._place_run(params)
        if self._may_end(params):
            self._updates.note()
            self._scales.note()
            self._asked = params.cur_step_num

    def _place_run(self, params: Any) -> None:
        """Set the slices aside that are newer than the beginning of the training; once."""
        if self._is_placed:
            return
        self._is_placed = True
        done, epoch = self._last % params.batch_num, params.cur_epoch_num
        whole = Step(epoch - 1, params.batch_num) if epoch > 1 else NO_STEP
        self.saver.set_aside_newer(Step(epoch, done) if done else whole)

    def on_train_step_end(self, run_context: Any) -> None:
        """Save a slice when one is due, behind an update of the weights; behind an epoch's last step the epoch ends."""
        params = run_context.original_args()
        self._first_epoch = self._first_epoch or params.cur_epoch_num
        if self._managed and self._step(params) == params.batch_num:
            return
        if self._managed and run_context.get_stop_requested():
            self._save_last(params)
        elif self._is_due(params):
            self._save_updated(params)

    def on_train_epoch_end(self, run_context: Any) -> None:
        """Save the slice of the epoch's last step when it is due, and that of the training's last step."""
        params = run_context.original_args()
        over = params.cur_epoch_num - self._first_epoch + 1 >= params.epoch_num or run_context.get_stop_requested()
        if params.cur_step_num == self._last:
            return
        if over:
            self._save_last(params)
        elif self._is_due(params):
            self._save_updated(params)

    def __enter__(self) -> SliceCheckpoint:
        """Count the loops that use this callback: an evaluation may run within the training."""
        self._loops += 1
        return self

    def __exit__(self, *error: object) -> None:
        """Give the directory back when the training has ended."""
        self._loops -= 1
        if self._loops == 0:
            self._settling = Settling()
            self.saver.release()

    def on_train_end(self, run_context: Any) -> None:
        """Save the last step unless it is saved already, and wait until everything is committed."""
        params = run_context.original_args()
        if params.cur_step_num > self._last:
            self._save_last(params)
        self.saver.flush()
        self.saver.note_ended()

    def _is_due(self, params: Any) -> bool:
        every = self._save_steps or params.batch_num
        return bool(params.cur_step_num // every > self._last // every)

    def _may_end(self, params: Any) -> bool:
        """Whether a slice may be saved behind the step that begins."""
        return self._is_due(params) or params.cur_step_num % params.batch_num == 0

    def _save_last(self, params: Any) -> None:
        asked = params.cur_step_num == self._asked and self._updates.known
        if asked and not self._updates.updated and not self._scales.overflowed(getattr(params, "net_outputs", None)):
            _log.warning(
                "step %d, the last one, has not updated the weights: %sgradients that were accumulated since the "
                "last update are in its slice only where they are parameters of the train network",
                params.cur_step_num,
                "unless the loss scale overflowed, " if self._scales.present else "",
            )
        self._save(params)

    def _save_updated(self, params: Any) -> None:
        """Save where the step has updated the weights on every rank; also where the optimizer does not show it."""
        step = params.cur_step_num
        self._due = self._due or step
        known = self._asked == step and self._updates.known
        updated, job, named = not known or self._updates.updated > 0, self.saver.job, f"beginning to save step {step}"
        with job.ending_together(named):
            state = self._state(params)
        everywhere, facts = gather_facts(job, state.facts, "beginning a save", named, ready=updated)
        if everywhere:
            self._save(params, state, facts)
            return
        if step - self._due < _LONGEST_WAIT:
            overflowed = self._scales.overflowed(getattr(params, "net_outputs", None))
            why = "overflowed the loss scale" if overflowed else "has not updated the weights"
            _log.info("step %d %s: the slice is saved behind the next update", step, why)
            return
        _log.warning(
            "step %d is saved although the weights were not updated for %d steps: gradients that were accumulated "
            "meanwhile are in its slice only where they are parameters of the train network",
            step,
            step - self._due,
        )
        self._save(params, state, facts)

    def _save(self, params: Any, state: PendingState | None = None, facts: Sequence[RankFacts] | None = None) -> None:
        if not self._has_saved and self.saver.job.rank == 0:
            warn_of_unsaved(self._callbacks, self.saver.said, params.cur_step_num)
        self._has_saved = True
        self._last, self._due = params.cur_step_num, 0
        if self._unseeded and self._step(params) < params.batch_num:
            self._unseeded = False
            _log.warning(
                "the dataset is shuffled without a seed, so a training resumed within an epoch cannot repeat its "
                "order: call mindspore.dataset.config.set_seed() before the dataset is made"
            )
        step = Step(params.cur_epoch_num, self._step(params))
        with self.saver.job.ending_together(f"saving step {step}"):
            state = state or self._state(params)
        self.saver.save_step(step, params.cur_step_num, state, facts)

    @staticmethod
    def _step(params: Any) -> int:
        return int((params.cur_step_num - 1) % params.batch_num + 1)

    def _state(self, params: Any = None) -> PendingState:
        """Return what the state file is going to hold; behind a step with its batch."""
        callbacks, network = tuple(callback_states(self._callbacks)), self.saver.network_state()
        given = {CALLBACKS: settings_of_callbacks(self._callbacks)}
        state = current_state(
            callbacks=callbacks,
            order=self._order,
            drawn_by_dataset=self._draws.states,
            **{**network, "settings": {**network["settings"], **given}},
            **(self._batch.behind(params) if params is not None else {}),
        )
        return pending_state(state)
