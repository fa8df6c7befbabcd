"""What a training with ``Model`` has taken from its dataset, for state files: the last batch, and random numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from mindspore.train import Callback

from ms_recover.training.batches import digest_batch, to_record
from ms_recover.training.generators import changed_generators, generator_states
from ms_recover.training.mindspore_inside import around_first

_EARLY = "ms_recover_early_draws"
"""Name, in the context of a training, of the states before the batch that `Continuation` has drawn to prove it."""


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
        early = early_draws(run_context)
        self.states = {**{name: self._before[name] for name in drawn}, **early}
        act()


def note_early_draws(run_context: Any, states: Mapping[str, Any]) -> None:
    """Note states of generators that the dataset has drawn from before the first epoch began."""
    setattr(run_context, _EARLY, dict(states))


def early_draws(run_context: Any) -> dict[str, Any]:
    """Return what `note_early_draws` has noted."""
    return dict(getattr(run_context, _EARLY, None) or {})


class LastBatch(Callback):  # type: ignore[misc]
    """Digests the batch of a step before anything acts on it, if a slice may be saved behind the step.

    Parameters
    ----------
    params : object
        The parameters of the training, as its callbacks are given them when it begins.
    dataset : Dataset
        The dataset of the training, whose iterator is made.
    may_save : callable
        Whether a slice may be saved behind the step that begins, by the parameters.
    """

    def __init__(self, params: Any, dataset: Any, may_save: Callable[[Any], bool]) -> None:
        super().__init__()
        self._may_save = may_save
        self._first = params.cur_step_num
        self._passed_over: int | None = getattr(dataset, "get_init_step", lambda: None)()
        self._step = -1
        self._record: list[Any] = []

    def on_train_step_begin(self, run_context: Any) -> None:
        """Digest the batch."""
        params = run_context.original_args()
        if self._may_save(params):
            self._digest(params)

    def of_step(self, params: Any) -> list[Any]:
        """Return the digests of the batch of the present step; none in sink mode, where no batch is in hand."""
        if self._step != params.cur_step_num:  # of a step that ends the training before its time, or of the first
            self._digest(params)
        return self._record

    def behind(self, params: Any) -> dict[str, Any]:
        """Return what the state behind a step has of its batch; nothing in sink mode, where no batch is in hand."""
        record = self.of_step(params)
        counted = {} if self._passed_over is None else {"drawn": self._passed_over + params.cur_step_num - self._first}
        return {"batch": tuple(record), **counted}

    def _digest(self, params: Any) -> None:
        batch = getattr(params, "train_dataset_element", None)
        self._step = params.cur_step_num
        self._record = [] if batch is None else to_record(digest_batch(batch))
