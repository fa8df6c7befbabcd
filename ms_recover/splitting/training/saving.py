"""Slices of a training: the weights of all parts, and the state of their optimizers, behind one step."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from ms_recover.errors import StorageError, VerificationError
from ms_recover.splitting.devices import Devices
from ms_recover.splitting.training.alignment import Holder
from ms_recover.splitting.training.orders import OrderFailedError


async def save_slices(devices: Devices, step: int, holders: Mapping[Holder, int | None], parts: int) -> None:
    """Have a holder of each part write its slices, and make the step the one that counts once all of them are there.

    `holders` are the steps of all holders at work; every part has one at `step`. Raises StorageError when slices cannot
    be written, and DeviceGoneError when a device is lost meanwhile: those of the step before count then.
    """
    store = devices.store
    sources = [
        min(device for device, held in holders if (held, holders[device, held]) == (part, step))
        for part in range(parts)
    ]
    writing = [devices.files.save(device, part, step) for part, device in enumerate(sources)]
    results = await asyncio.gather(*writing, return_exceptions=True)
    try:
        for result in results:
            if isinstance(result, BaseException):
                raise result
        await asyncio.to_thread(store.settle, step)
    except (OrderFailedError, StorageError, VerificationError) as error:
        words = error.words if isinstance(error, OrderFailedError) else str(error)
        raise StorageError(
            f"step {step} is done, and its slices were not saved in {store.directory}: {words}; those of step "
            f"{store.step} are whole: mend this, then call save()"
        ) from error
