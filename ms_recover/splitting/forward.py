"""A forward over the devices: the chunks of a batch through the parts, and their outputs joined again."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Sequence
from typing import Any

from ms_recover.errors import DeviceLostError, NoDeviceLeftError, PartError
from ms_recover.splitting import nested
from ms_recover.splitting.batches import Batch, Whole
from ms_recover.splitting.devices import Devices
from ms_recover.splitting.events import Rows, place_text
from ms_recover.splitting.instructions import FailForward, FailureKind
from ms_recover.splitting.placement import Chunk
from ms_recover.splitting.state import Policy

_log = logging.getLogger(__name__)
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


class Forwards:
    """Runs one forward after the other; the caller sees to it that nothing else runs on the devices."""

    def __init__(self, devices: Devices) -> None:
        self._devices = devices
        self._numbers = itertools.count()

    def warn_of_absent(self) -> None:
        """Log which devices take no part in the next forward."""
        for device in self._devices.state.devices:
            if not device.serving:
                _log.warning("Skipping device %d due to previous failure", device.number)

    async def run(self, batch: Batch | Whole, cuts: Sequence[Rows], parts: range | None) -> tuple[Any, bool]:
        """Send a batch in chunks through these parts, by default all; raise as `ModelSplitter.forward`.

        Returns the output, and whether it has all rows.
        """
        devices, state, history = self._devices, self._devices.state, self._devices.history
        began = history.now
        history.call += 1
        numbers = {next(self._numbers): rows for rows in cuts}
        devices.result = asyncio.get_running_loop().create_future()
        try:
            for number, rows in numbers.items():
                devices.chunks[number] = Chunk(rows, *batch.cut(*rows))
            devices.apply(state.asked(list(numbers), parts))
            result = await devices.result
            history.add_report(numbers, began, state.forward, result)
            if isinstance(result, FailForward):
                raise failure_error(result, state.policy)
            done = [devices.chunks[number] for number in numbers if number not in state.forward.dropped]
            outputs = [nested.unflatten(chunk.skeleton, chunk.leaves) for chunk in done]
            joined = batch.join(outputs, [stop - start for start, stop in (chunk.rows for chunk in done)])
            return joined, len(done) == len(numbers)
        finally:
            state.abandoned()
            devices.result = None
            devices.chunks.clear()


def failure_error(failure: FailForward, policy: Policy) -> DeviceLostError:
    """Return the error that says what failed, and what to do next."""
    error, advice = _FAILURES[failure.kind]
    if failure.kind == "lost" and policy == "plain":
        advice = _PLAIN_LOSS
    why = ": ".join(filter(None, (place_text(failure.device, failure.part), failure.cause, failure.words)))
    return error(f"{why}; {advice}", failure.device, failure.part, failure.cause)
