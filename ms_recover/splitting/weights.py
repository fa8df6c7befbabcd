"""The weights of a splitter: read, given back to the model, saved."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

from ms_recover.errors import UsageError
from ms_recover.splitting import values
from ms_recover.splitting.engine import Engine
from ms_recover.splitting.slices import SliceStore

T = TypeVar("T")


class Weights:
    """The part of a splitter that reads and saves weights."""

    _engine: Engine
    _store: SliceStore
    _weights: Mapping[str, Any]
    """The parameters of the model that was passed in, by their names in slices."""
    _is_temporary: bool
    """Whether the directory goes with the splitter."""

    def _wait_for(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        raise NotImplementedError

    @property
    def directory(self) -> str:
        """The directory of the parts' weights."""
        return self._store.directory

    @property
    def step(self) -> int:
        """Number of trained steps, those before a resume included: go on with the batch behind them."""
        trainer = self._engine.trainer
        return self._store.step if trainer is None else trainer.step

    def save(self) -> str:
        """Save the weights, the state of the optimizers and the step number as slices; return their directory.

        They are those behind the last finished step, in the formats of ``recover-ckpt``. The slices of the save before
        stay. A splitter that does not train has saved its weights when it was made.

        Raises
        ------
        UsageError
            When the splitter was made without a directory, or is closed.
        NotSavedError
            When they cannot be written; the slices of the save before are whole then.
        DeviceLostError
            When a device is lost and nothing takes its place.
        """
        if self._is_temporary:
            raise UsageError("the directory of this splitter is temporary: make one with directory=... to save")
        self._wait_for(self._engine.save)
        return self.directory

    def state_dict(self) -> dict[str, Any]:
        """Return the weights as the devices have them, under the names that they have in the model.

        Returns
        -------
        dict of str to mindspore.Parameter
            Copies, for ``mindspore.load_param_into_net`` or ``Cell.load_state_dict``. Stages that workers make have the
            names of an ``nn.SequentialCell`` of all stages, such as ``3.weight``.

        Raises
        ------
        UsageError
            When the splitter is closed.
        UnrecoverableError
            When every slice of a part is damaged.
        """
        return self._wait_for(self._engine.read_weights)

    def sync(self) -> None:
        """Set the weights of the model that was passed in to those of `state_dict`, in the memory that they have.

        Raises
        ------
        UsageError
            When the model was made by a factory: this process has none. Or when the splitter is closed.
        UnrecoverableError
            When every slice of a part is damaged; no weight is set then.
        """
        if not self._weights:
            raise UsageError("there is no model to set: it was given as a factory or has no weights; see state_dict")
        found = self.state_dict()
        for name, parameter in self._weights.items():
            values.assign(parameter, found[name])
