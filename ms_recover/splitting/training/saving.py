"""Slices of a training: the weights of all parts, and the state of their optimizers, behind one step."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from ms_recover.errors import NotSavedError, StorageError, VerificationError
from ms_recover.splitting.devices import Devices
from ms_recover.splitting.orders import OrderFailedError
from ms_recover.splitting.slices import SliceStore
from ms_recover.splitting.training.alignment import Holder
from ms_recover.splitting.training.step_loss import StepLoss


async def save_slices(
    devices: Devices, step: int, holders: Mapping[Holder, int | None], parts: int, loss: StepLoss | None = None
) -> None:
    """Have a holder of each part write its slices, and make the step the one that counts once all of them are there.

    `holders` are the steps of all holders at work; every part has one at `step`. Raises NotSavedError when slices
    cannot be written, with the `loss` of the step if it was done just now, and DeviceGoneError when a device is lost
    meanwhile: those of the step before count then.
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
        raise not_saved(store, step, f"its slices were not saved in {store.directory}: {words}", loss) from error


def not_saved(
    store: SliceStore, step: int, words: str, loss: StepLoss | None, advice: str = "mend this, then call save()"
) -> NotSavedError:
    """Return the error about a step that counts, and something that failed behind it."""
    value = "" if loss is None else f" (loss {loss:.6g})"
    end = f"; {advice}" if advice else ""
    return NotSavedError(
        f"step {step} is done and counts{value}, and {words}; the slices of step {store.step} are whole{end}",
        step,
        store.step,
        loss,
    )
