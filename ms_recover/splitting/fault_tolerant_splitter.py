"""A model over several devices that goes on when devices are lost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, get_args

from ms_recover.errors import UsageError
from ms_recover.splitting.device_states import DeviceStates
from ms_recover.splitting.options import Failures, OnFailure, Split
from ms_recover.splitting.splitter import ModelSplitter


class FaultTolerantModelSplitter(ModelSplitter):
    """A `ModelSplitter` that goes on when devices are lost: killed, frozen, too slow, out of memory, or raising.

    Parameters
    ----------
    model, num_devices, split, **options
        As for `ModelSplitter`.
    on_failure : {"recover", "skip", "raise"}
        recover: a fresh process takes over with the weights of the part's slice, lost work runs again, and the answer
        is complete. skip: the output lacks the rows that could not be computed, `last_report` lists them with the
        cause; a lost device stays away until `reset_device_states`, and a survivor takes over its part. raise:
        `DeviceLostError`.
    max_restarts : int
        Fresh processes of a device before it retires and its part moves to a survivor; of those at most three in a row
        may fail to start or die over the same chunk. `reset_device_states` starts the count again.
    spares : int
        Number of idle processes, with MindSpore imported, that can take over.

    Raises
    ------
    NoDeviceLeftError
        By `forward`, when no row of the answer can be computed.
    """

    def __init__(
        self,
        model: Any,
        num_devices: int,
        split: Split = "layers",
        *,
        on_failure: OnFailure = "recover",
        max_restarts: int = 100,
        spares: int = 0,
        **options: Any,
    ) -> None:
        if on_failure not in get_args(OnFailure):
            raise UsageError(f"invalid on_failure {on_failure!r}: expected 'recover', 'skip' or 'raise'")
        self._failures = Failures(on_failure, max_restarts, spares)
        super().__init__(model, num_devices, split, **options)

    def __enter__(self) -> FaultTolerantModelSplitter:
        return self

    @property
    def device_states(self) -> DeviceStates:
        """For each device whether it is at work; all False after `close`.

        Set one to False to take a device out, and to True to bring it back with the current weights. A list sets all.
        """
        return DeviceStates(self._devices.state.devices, self._set_states)

    @device_states.setter
    def device_states(self, states: Sequence[bool]) -> None:
        self.device_states.assign(states)

    def reset_device_states(self) -> None:
        """Bring every device back, weights included, and wait until each is at work or lost again."""
        self._thread.run(self._engine.reset)

    def _set_states(self, states: Mapping[int, bool]) -> None:
        self._thread.run(partial(self._engine.set_states, states))
