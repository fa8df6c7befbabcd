"""The devices that a training's steps run on: which of them hold which part, and how many are lost in a row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ms_recover.errors import DeviceLostError, PartError
from ms_recover.splitting.devices import Devices
from ms_recover.splitting.events import place_text
from ms_recover.splitting.instructions import Loss
from ms_recover.splitting.orders import DeviceGoneError, OrderFailedError
from ms_recover.splitting.progress import Forward
from ms_recover.splitting.protocol import Message
from ms_recover.splitting.training.options import TrainingOptions

MOST_FAILURES = 16
"""Most losses in a row, without a finished step between, that are taken for independent failures."""


class TrainedDevices:
    """Devices that train one step after the other."""

    def __init__(self, devices: Devices, options: TrainingOptions, parts: int) -> None:
        self.devices = devices
        self.state = devices.state
        self.options = options
        self.parts = parts
        self.policy = devices.state.policy
        self.attempt = 0
        self.failures = 0
        self.step = devices.store.step
        """Number of finished steps."""
        self.stepping = False

    def holders(self) -> dict[tuple[int, int], int | None]:
        """Return the step of each part in each device at work; a part in layers counts where it is assigned."""
        alive = {device.number: device for device in self.state.devices if device.alive}
        return {
            (device, part): step
            for (device, part), step in self.devices.versions.items()
            if device in alive and part in alive[device].parts
        }

    async def order(self, device: int, part: int, tensors: Sequence[Any] = (), **fields: Any) -> Message:
        """Send an order; what a part raises is the caller's to know."""
        try:
            return await self.devices.order(device, part, tensors, **fields)
        except OrderFailedError as error:
            raise PartError(
                f"{place_text(error.device, error.part)}: {error.words}; check the inputs, the model, the loss and the "
                f"optimizer; {self.standing}",
                error.device,
                error.part,
                "raised",
            ) from None

    @property
    def advice(self) -> str:
        """What the caller can do after a step that was given up."""
        how = "bring the devices back with reset_device_states"
        if self.policy == "plain":
            how = "go on from the last save with a new splitter, or use FaultTolerantModelSplitter, which goes on"
        return f"{self.standing}: {how}"

    @property
    def standing(self) -> str:
        """Which step the weights are those of."""
        return (
            "the weights are those before the step" if self.stepping else f"the weights are those of step {self.step}"
        )

    def count_failure(self, gone: DeviceGoneError, run: Forward | None) -> None:
        """Count a lost device; raise where the step is given up."""
        device = self.state.devices[gone.device]
        if run is not None:
            run.lost.append(gone.device)
        self.failures += 1
        if self.policy in ("plain", "raise"):
            raise DeviceLostError(
                f"{words_of(Loss(gone.device, None, device.cause, device.words))}; {self.advice}",
                gone.device,
                None,
                device.cause,
            ) from None
        if self.failures > MOST_FAILURES:
            raise PartError(
                f"{words_of(Loss(gone.device, None, device.cause, device.words))}; {self.failures} processes were "
                f"lost in a row: check the batch and the model; {self.standing}",
                gone.device,
                None,
                device.cause,
            ) from None


def words_of(why: Loss) -> str:
    """Return a loss as text: its place, cause and description."""
    return ": ".join(filter(None, (place_text(why.device, why.part), why.cause, why.words)))
