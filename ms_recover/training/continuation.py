"""The beginning of a resumed training: what a first training does there, but for what the interrupted one has done."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from typing import Any

import mindspore as ms
import mindspore.dataset as ds
from mindspore.train import Callback, LossMonitor

from ms_recover.model.texts import list_some
from ms_recover.training.callback_states import differing_callbacks, restore_callbacks, settings_of_callbacks
from ms_recover.training.dataset_reads import note_early_draws
from ms_recover.training.deciding.job import TrainingJob
from ms_recover.training.deciding.own_slice import OwnSlice
from ms_recover.training.first_step import LoadedValues, Settling
from ms_recover.training.generators import (
    GENERATORS,
    begin_drawing,
    changed_generators,
    generator_states,
    restore_generators,
)
from ms_recover.training.hyperparameters import CALLBACKS
from ms_recover.training.mindspore_inside import (
    around_first,
    calling_manager,
    print_interval,
    printed_last,
    without_gradient,
)
from ms_recover.training.obtained import Obtained
from ms_recover.training.proof import resume_line
from ms_recover.training.proving import SampleProver
from ms_recover.training.run_state import RunState, named
from ms_recover.training.sample_order import called_by_threads
from ms_recover.training.state_now import name_operators
from ms_recover.training.unsaved_callbacks import unsaved_callbacks

_log = logging.getLogger(__name__)

_MOST_NAMED = 16


def agree_state(job: TrainingJob, own: OwnSlice, state: RunState | None) -> RunState | None:
    """Return the state that a rank takes up; callbacks are restored on every rank or on none, so that they agree.

    All ranks call it together.
    """
    lacking = [
        rank
        for rank, (found,) in enumerate(job.gather([state is not None], "looking for the state of the training"))
        if not found
    ]
    if state is None or not lacking or not state.callbacks:
        return state
    _log.warning(
        "%s: the callbacks start anew, because their state is lost on rank(s) %s: %s",
        own,
        list_some(lacking),
        list_some(sorted({str(one["class"]) for one in state.callbacks}), 8),
    )
    resume_line().doubt(f"their state is lost on rank {list_some(lacking)}", "callbacks")
    return replace(state, callbacks=())


class Continuation(Callback):  # type: ignore[misc]
    """Continue the step numbers, the generators and the callbacks of a saved training; the first of the callbacks.

    Callbacks are restored when all of them have begun, because that sets MindSpore's own back. Generators follow before
    the epoch begins, and those that the dataset draws from before its first sample: the dataset replays its draws, or
    skips them where MindSpore recovers in fast mode. In the middle of an epoch no callback begins it a second time.

    Parameters
    ----------
    found : Obtained
        The slice that was loaded. Newer ones are set aside behind the proof of all that was resumed, by all ranks
        together: nothing is renamed before.
    done : int
        Steps of the saved training.
    callbacks : list of Callback
        The callbacks of the program.
    state : RunState, optional
        What was saved with the slice.
    prover : SampleProver
        Draws and compares the last trained batch, before anything begins for the callbacks.
    loaded : LoadedValues
        What was loaded: compared when all callbacks have begun.
    """

    def __init__(
        self,
        found: Obtained,
        done: int,
        callbacks: Collection[Any],
        state: RunState | None,
        prover: SampleProver,
        loaded: LoadedValues,
    ) -> None:
        super().__init__()
        self._job, self._own, self._done, self._state = found.job, found.own, done, state
        self._prover, self._proven, self._is_proven = prover, found.set_aside, False
        self._loaded: LoadedValues | None = loaded
        self.settling = Settling()
        self._managed = False
        self._in_epoch = done % prover.trained.epoch_steps != 0
        self._callbacks = callbacks
        self._before: dict[str, Any] = {}
        self._early: dict[str, Any] = {}
        self._drew = False

    def on_train_begin(self, run_context: Any) -> None:
        """Set the number of steps done, and have the rest follow when all callbacks have begun."""
        params = run_context.original_args()
        params.cur_step_num = self._done
        sinks = getattr(params, "dataset_sink_mode", False)
        continue_loss_monitors(self._callbacks, self._done, params.batch_num if sinks else 1)
        manager = calling_manager()
        self._managed = manager is not None
        if manager is None:
            _log.warning(
                "%s: the callbacks are not called by mindspore.train.Model, so their state and the random generators "
                "are not restored, and the epoch begins a second time for them",
                self._own,
            )
            return
        around_first(manager, "on_train_epoch_begin", self._begin_epoch)
        around_first(manager, "on_train_step_begin", self._begin_step)

    def on_train_epoch_begin(self, run_context: Any) -> None:
        """Compare what was loaded where nothing has called for it."""
        self._compare()

    def _compare(self) -> None:
        loaded, self._loaded = self._loaded, None
        if loaded is not None:
            loaded.compare(self._callbacks, self._state, self.settling)

    def _begin_epoch(self, run_context: Any, act: Callable[[], None]) -> None:
        self._compare()
        self._job.run_together("restoring the state of the training", self._restore)
        name_operators(self._own, run_context.original_args().train_network, self._state)
        self._prove()
        note_early_draws(run_context, self._early)
        if not self._in_epoch:
            act()
        if self._state is not None and not self._drew:
            restore_generators(self._state.drawn_by_dataset)
        self._before = generator_states()

    def on_train_step_begin(self, run_context: Any) -> None:
        """Prove the samples where nothing has called for it."""
        self._prove()
        if not self._managed:  # so that nothing says when all callbacks have begun the step
            self.settling.settle()

    def _prove(self) -> None:
        """Prove the samples, then let that be changed which had to wait for it; once."""
        if self._is_proven:
            return
        self._is_proven = True
        before = generator_states()
        if self._state is not None and self._prover.draws:
            before |= self._state.drawn_by_dataset
            self._drew = True
        self._prover.prove(lambda: restore_generators(before))
        self._early = {name: before[name] for name in changed_generators(before, generator_states())}
        self.settling.when_settled(self._proven)

    def _begin_step(self, run_context: Any, act: Callable[[], None]) -> None:
        drawn = changed_generators(self._before, generator_states()) | self._early.keys()
        why = self._why_not_replayed(run_context.original_args().train_dataset) if drawn else None
        if why is not None:
            _log.warning(
                "%s: the dataset draws from %s, and its draws go on otherwise than in the interrupted training; %s",
                self._own,
                named(drawn, GENERATORS),
                why,
            )
            resume_line().doubt(f"the dataset draws from {named(drawn, GENERATORS)}", "random numbers")
        if drawn and why is None and self._may_draw():
            _log.warning(
                "%s: the dataset's draws from %s are made once more; a callback or a network that draws from it too "
                "goes on otherwise than in the interrupted training: give the dataset a generator of its own",
                self._own,
                named(drawn, GENERATORS),
            )
        if self.settling.is_settled:
            resume_line().say()
        act()
        self.settling.settle()
        resume_line().say()

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
        return None

    def _restore(self) -> None:
        lost = unsaved_callbacks(self._callbacks)
        if lost:  # their first save has warned of it
            resume_line().doubt(f"{list_some(lost, _MOST_NAMED)} without state_dict()", "callbacks")
        if self._state is None:
            return
        with without_gradient():
            odd = restore_callbacks(self._callbacks, self._state.callbacks)
        if odd:
            _log.warning(
                "%s: there are not as many callbacks %s as when it was saved; those without a state begin anew",
                self._own,
                list_some(odd, 8),
            )
            resume_line().doubt(f"not as many as saved: {list_some(odd)}", "callbacks")
        given = self._state.settings.get(CALLBACKS) if not self._state.lent else None
        for text in (
            differing_callbacks(given, settings_of_callbacks(self._callbacks), odd) if given is not None else ()
        ):
            resume_line().doubt(text, "callbacks")
        resume_line().prove("callbacks")
        restore_generators(self._state.generators, GENERATORS.keys() - self._state.drawn_by_dataset.keys())
        begin_drawing(self._state.drawn_generators)


def continue_loss_monitors(callbacks: Iterable[Any], done: int, stride: int) -> None:
    """Have LossMonitors count from the step that they would have printed last in an uninterrupted training.

    They print a step that is at least ``per_print_times`` steps behind the last printed one, and see every
    `stride`-th: of sinks the last step.
    """
    for one in callbacks:
        every = print_interval(one)
        if isinstance(one, LossMonitor) and every > 0:
            printed_last(one, last_printed(done, every, stride))


def last_printed(done: int, every: int, stride: int) -> int:
    """Return the last step up to `done` that is printed, 0 before the first."""
    return done - done % (-(-every // stride) * stride)
