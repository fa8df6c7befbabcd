"""The forwards, resets and the end of a splitter, in one event loop."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any

from ms_recover.errors import DeviceLostError, NoDeviceLeftError, PartError, UsageError
from ms_recover.splitting import nested
from ms_recover.splitting.batches import Batch, Whole
from ms_recover.splitting.devices import Devices
from ms_recover.splitting.events import Rows, place_text
from ms_recover.splitting.instructions import FailForward, FailureKind
from ms_recover.splitting.placement import Chunk
from ms_recover.splitting.training.step_loss import StepLoss
from ms_recover.splitting.training.trainer import Trainer

_log = logging.getLogger(__name__)
_CLOSED = "this splitter was closed while it worked"
_FAILURES: dict[FailureKind, tuple[type[DeviceLostError], str]] = {
    "start": (DeviceLostError, "the splitter did not start; see what its process printed, or raise start_timeout"),
    "lost": (DeviceLostError, "the answer is incomplete; bring the devices back with reset_device_states"),
    "part": (PartError, "check the inputs and the model"),
    "none left": (
        NoDeviceLeftError,
        "no row of the answer could be computed; bring the devices back with reset_device_states",
    ),
}
_PLAIN_LOSS = "the answer is incomplete; make a new splitter, or use FaultTolerantModelSplitter, which goes on"


class Engine:
    """Runs one forward or reset after the other on the devices."""

    def __init__(self, devices: Devices) -> None:
        self.devices = devices
        self.state = devices.state
        self.trainer: Trainer | None = None
        """Trains the parts, where a loss and an optimizer were given."""
        self._numbers = itertools.count()
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
            raise self._error(failure)

    async def forward(self, batch: Batch | Whole, cuts: Sequence[Rows], parts: range | None = None) -> tuple[Any, bool]:
        """Send a batch in chunks through these parts, by default all; raise as `ModelSplitter.forward`.

        Returns the output, and whether it has all rows.
        """
        async with self._turn:
            self._check_open()
            if parts is None:
                for device in self.state.devices:
                    if not device.serving:
                        _log.warning("Skipping device %d due to previous failure", device.number)
            if self.trainer is not None:
                await self.trainer.publish()
            history = self.devices.history
            began = history.now
            history.call += 1
            chunks = self.devices.chunks
            numbers = {next(self._numbers): rows for rows in cuts}
            self.devices.result = asyncio.get_running_loop().create_future()
            try:
                for number, rows in numbers.items():
                    chunks[number] = Chunk(rows, *batch.cut(*rows))
                self.devices.apply(self.state.asked(list(numbers), parts))
                result = await self.devices.result
                history.add_report(numbers, began, self.state.forward, result)
                if isinstance(result, FailForward):
                    raise self._error(result)
                done = [chunks[number] for number in numbers if number not in self.state.forward.dropped]
                outputs = [nested.unflatten(chunk.skeleton, chunk.leaves) for chunk in done]
                joined = batch.join(outputs, [stop - start for start, stop in (chunk.rows for chunk in done)])
                return joined, len(done) == len(numbers)
            finally:
                self.state.abandoned()
                self.devices.result = None
                chunks.clear()

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

    def _error(self, failure: FailForward) -> DeviceLostError:
        error, advice = _FAILURES[failure.kind]
        if failure.kind == "lost" and self.state.policy == "plain":
            advice = _PLAIN_LOSS
        why = ": ".join(filter(None, (place_text(failure.device, failure.part), failure.cause, failure.words)))
        return error(f"{why}; {advice}", failure.device, failure.part, failure.cause)
