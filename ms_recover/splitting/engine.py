"""The forwards, training steps, resets and the end of a splitter, one after the other in one event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any

from ms_recover.errors import UsageError
from ms_recover.splitting.batches import Batch, Whole
from ms_recover.splitting.devices import Devices
from ms_recover.splitting.events import Rows
from ms_recover.splitting.forward import Forwards, failure_error
from ms_recover.splitting.training.step_loss import StepLoss
from ms_recover.splitting.training.trainer import Trainer

_CLOSED = "this splitter was closed while it worked"


class Engine:
    """Runs one forward, training step or reset after the other on the devices.

    The `trainer` trains the parts, where a loss and an optimizer were given.
    """

    def __init__(self, devices: Devices, trainer: Trainer | None) -> None:
        self.devices = devices
        self.state = devices.state
        self.trainer = trainer
        self._forwards = Forwards(devices)
        self._turn = asyncio.Lock()
        self._closing = False

    async def begin(self) -> None:
        """Start all workers, spares included, and wait until they are at work.

        Raises DeviceLostError when a device does not start and no other one takes its parts.
        """
        self.devices.apply(self.state.begun())
        self.devices.begin()
        await self._settle()
        if failure := self.state.start_fault():
            raise failure_error(failure, self.state.policy)

    async def forward(self, batch: Batch | Whole, cuts: Sequence[Rows], parts: range | None = None) -> tuple[Any, bool]:
        """Send a batch in chunks through these parts, by default all; raise as `ModelSplitter.forward`.

        Returns the output, and whether it has all rows.
        """
        async with self._turn:
            self._check_open()
            if parts is None:
                self._forwards.warn_of_absent()
            if self.trainer is not None:
                await self.trainer.publish()
            return await self._forwards.run(batch, cuts, parts)

    async def reset(self) -> None:
        """Bring every device back, and wait until each is at work or lost again."""
        async with self._turn:
            self._check_open()
            self.devices.apply(self.state.reset())
            self.devices.pool.start_spares()
            await self._settle()
            if self.trainer is not None:
                await self.trainer.recover()

    async def train_step(self, batch: Batch, cuts: Sequence[Rows]) -> StepLoss:
        """Do one training step; return its loss or raise as `ModelSplitter.train_step`."""
        async with self._turn:
            self._check_open()
            if self.trainer is None:
                raise UsageError("this splitter does not train: give it loss_fn= and optimizer=")
            return await self.trainer.train_step(batch, cuts)

    async def read_weights(self) -> dict[str, Any]:
        """Return the weights of all parts as parameters, by name."""
        async with self._turn:
            self._check_open()
            if self.trainer is not None:
                await self.trainer.publish()
            if self.devices.snapshots.current:
                return await asyncio.to_thread(self.devices.snapshots.weights)
            return await asyncio.to_thread(self.devices.store.weights)

    async def save(self) -> None:
        """Save the slices of the last finished step, unless they are saved."""
        async with self._turn:
            self._check_open()
            if self.trainer is not None:
                await self.trainer.save()

    async def set_states(self, states: Mapping[int, bool]) -> None:
        """Bring devices back or take them out, and wait until each that comes is at work or lost again.

        In training a device comes back between two steps: within one, its part has another holder.
        """
        async with self._turn if self.trainer is not None and any(states.values()) else nullcontext():
            self._check_open()
            for device, wanted in sorted(states.items(), key=lambda pair: not pair[1]):  # who comes can take over parts
                self.devices.apply(self.state.brought_back(device) if wanted else self.state.taken_out(device))
            await self._settle()

    async def close(self) -> None:
        """End every worker."""
        self._closing = True
        if self.devices.result is not None and not self.devices.result.done():
            self.devices.result.set_exception(UsageError(_CLOSED))
        self.devices.changed.set()
        async with self._turn:  # forwards that wait for their turn fail first
            pass
        await self.devices.close()
        self.state.closed()
        await asyncio.get_running_loop().shutdown_default_executor()

    async def _settle(self) -> None:
        """Wait until no device and no spare is still starting."""
        while not (self.state.settled and self.devices.pool.settled):
            self.devices.changed.clear()
            await self.devices.changed.wait()
            self._check_open()

    def _check_open(self) -> None:
        if self._closing:
            raise UsageError(_CLOSED)
