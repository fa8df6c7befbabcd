"""The beginning of a resumed training: what a first training does there, but for what the interrupted one has done."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

import mindspore as ms
import mindspore.dataset as ds
from mindspore import nn
from mindspore.train import Callback

from ms_recover.model.texts import list_some
from ms_recover.training.callback_order import around_first, calling_manager
from ms_recover.training.callback_states import restore_callbacks, without_state
from ms_recover.training.generators import (
    GENERATORS,
    changed_generators,
    generator_states,
    restore_generators,
)
from ms_recover.training.job import TrainingJob, device_target
from ms_recover.training.loss_monitor import continue_loss_monitors
from ms_recover.training.network import OwnSlice
from ms_recover.training.run_state import RunState, named, warn_of_operators
from ms_recover.training.sample_memory import SampleMemory, called_by_threads

_log = logging.getLogger(__name__)


def agree_state(job: TrainingJob, own: OwnSlice, state: RunState | None) -> RunState | None:
    """Return the state that a rank takes up; callbacks are restored on every rank or on none, so that they agree.

    All ranks call it together.
    """
    lacking = [rank for rank, (found,) in enumerate(job.gather([state is not None])) if not found]
    if state is None or not lacking or not state.callbacks:
        return state
    _log.warning(
        "%s: the callbacks start anew, because their state is lost on rank(s) %s: %s",
        own,
        list_some(lacking),
        list_some(sorted({str(one["class"]) for one in state.callbacks}), 8),
    )
    return replace(state, callbacks=())


def rounding_optimizers(network: Any) -> list[str]:
    """Return the optimizers in a network whose results depend on how often their kernel ran in this process.

    ``ApplyRMSProp`` on CPU shares its work out among threads by trial, and rounds parts of vectors otherwise.
    """
    if device_target() != "CPU":
        return []
    return sorted({type(cell).__name__ for _, cell in network.cells_and_names() if isinstance(cell, nn.RMSProp)})


class DatasetDraws:
    """Notes which generators of this process change while the first batch of a training is read.

    Nothing but the dataset draws from them then. It reads ahead in threads of its own, so that their states are those
    of no step; `states` has them before the first sample.
    """

    def __init__(self) -> None:
        self.states: dict[str, Any] = {}
        self._before: dict[str, Any] = {}

    def watch(self, manager: Any) -> None:
        """Watch the training that begins just now."""
        self.states = {}
        around_first(manager, "on_train_epoch_begin", self._before_first)
        around_first(manager, "on_train_step_begin", self._behind_first)

    def _before_first(self, run_context: Any, act: Callable[[], None]) -> None:
        act()
        self._before = generator_states()

    def _behind_first(self, run_context: Any, act: Callable[[], None]) -> None:
        drawn = changed_generators(self._before, generator_states())
        self.states = {name: self._before[name] for name in drawn}
        act()


class Continuation(Callback):  # type: ignore[misc]
    """Continue the step numbers, the generators and the callbacks of a saved training; the first of the callbacks.

    Callbacks are restored when all of them have begun, because that sets MindSpore's own back. Generators follow before
    the epoch begins, and those that the dataset draws from before its first sample: the dataset replays its draws, or
    skips them where MindSpore recovers in fast mode. In the middle of an epoch no callback begins it a second time.

    Parameters
    ----------
    job : TrainingJob
        The ranks.
    own : OwnSlice
        The slice that was loaded, for messages.
    done : int
        Steps of the saved training.
    epoch_steps : int
        Steps of an epoch.
    callbacks : list of Callback
        The callbacks of the program.
    state : RunState, optional
        What was saved with the slice.
    """

    def __init__(
        self,
        job: TrainingJob,
        own: OwnSlice,
        done: int,
        epoch_steps: int,
        callbacks: Collection[Any],
        state: RunState | None,
    ) -> None:
        super().__init__()
        self._job, self._own, self._done, self._state = job, own, done, state
        self._in_epoch = done % epoch_steps != 0
        self._callbacks = callbacks
        self._before: dict[str, Any] = {}

    def on_train_begin(self, run_context: Any) -> None:
        """Set the number of steps done, and have the rest follow when all callbacks have begun."""
        params = run_context.original_args()
        params.cur_step_num = self._done
        self._samples = SampleMemory(getattr(params, "train_dataset", None))
        sinks = getattr(params, "dataset_sink_mode", False)
        continue_loss_monitors(self._callbacks, self._done, params.batch_num if sinks else 1)
        manager = calling_manager()
        if manager is None:
            _log.warning(
                "%s: the callbacks are not called by mindspore.train.Model, so their state and the random generators "
                "are not restored, and the epoch begins a second time for them",
                self._own,
            )
            return
        around_first(manager, "on_train_epoch_begin", self._begin_epoch)
        around_first(manager, "on_train_step_begin", self._begin_step)

    def _begin_epoch(self, run_context: Any, act: Callable[[], None]) -> None:
        self._job.run_together("restoring the state of the training", self._restore)
        warn_of_operators(self._own, run_context.original_args().train_network, self._state)
        rounding = rounding_optimizers(run_context.original_args().train_network)
        if rounding:
            _log.warning(
                "%s: %s: on CPU MindSpore's kernel rounds by how often it ran in the process, so the last bits are not "
                "those of the interrupted training",
                self._own,
                list_some(rounding),
            )
        if not self._in_epoch:
            act()
        if self._state is not None:
            restore_generators(self._state.drawn_by_dataset)
        self._before = generator_states()

    def _begin_step(self, run_context: Any, act: Callable[[], None]) -> None:
        drawn = changed_generators(self._before, generator_states())
        remembered = {**self._samples.changed(), **(self._state.remembered if self._state is not None else {})}
        kept = (
            f"samples may depend on what the dataset's own code keeps ({list_some(sorted(remembered), 8)}), which goes"
        )
        drawn_from = f"the dataset draws from {named(drawn, GENERATORS)}, and its draws go"
        texts = [drawn_from] if drawn else []
        texts += [kept] if remembered else []
        why = self._why_not_replayed(run_context.original_args().train_dataset) if texts else None
        for text in texts if why is not None else ():
            _log.warning("%s: %s on otherwise than in the interrupted training; %s", self._own, text, why)
        if drawn and why is None and self._may_draw():
            _log.warning(
                "%s: the dataset's draws from %s are made once more; a callback or a network that draws from it too "
                "goes on otherwise than in the interrupted training: give the dataset a generator of its own",
                self._own,
                named(drawn, GENERATORS),
            )
        act()

    def _may_draw(self) -> bool:
        """Whether the program has code that may draw between steps: callbacks of its own, or a PyNative network."""
        return ms.get_context("mode") == ms.PYNATIVE_MODE or any(
            not type(one).__module__.startswith(("mindspore.", "ms_recover.")) for one in self._callbacks
        )

    def _why_not_replayed(self, dataset: Any) -> str | None:
        """Return how a dataset that draws would draw the same once more, None where it does."""
        if ds.config.get_fast_recovery() or self._state is None:
            return "it is exact with mindspore.dataset.config.set_fast_recovery(False), where one thread draws"
        if called_by_threads(dataset):
            return "it is exact where one thread draws: give num_parallel_workers=1 to what calls Python code"
        odd = self._samples.differs(self._state.remembered)
        return f"it is exact with a dataset that is made anew: {list_some(odd, 8)} has begun otherwise" if odd else None

    def _restore(self) -> None:
        lost = without_state(self._callbacks)
        if lost:
            _log.warning(
                "%s: callbacks that are not restored: %s; give them state_dict() and load_state_dict() where what "
                "they remember matters",
                self._own,
                list_some(lost, 8),
            )
        if self._state is None:
            return
        odd = restore_callbacks(self._callbacks, self._state.callbacks)
        if odd:
            _log.warning(
                "%s: there are not as many callbacks %s as when it was saved; those without a state begin anew",
                self._own,
                list_some(odd, 8),
            )
        restore_generators(self._state.generators, GENERATORS.keys() - self._state.drawn_by_dataset.keys())
