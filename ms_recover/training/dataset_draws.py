"""The generators of this process that a dataset draws from, and their states before its first sample."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

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
