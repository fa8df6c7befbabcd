"""Training steps on the devices of a splitter: all or nothing, whatever is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from ms_recover.errors import (
    DeviceLostError,
    NoDeviceLeftError,
    NotSavedError,
    StorageError,
    UsageError,
    VerificationError,
)
from ms_recover.splitting import nested
from ms_recover.splitting.devices import Devices
from ms_recover.splitting.events import Rows
from ms_recover.splitting.instructions import FinishForward, Loss
from ms_recover.splitting.orders import DeviceGoneError, OrderFailedError
from ms_recover.splitting.progress import Forward
from ms_recover.splitting.shared_memory import PartSnapshot
from ms_recover.splitting.slices import SliceStore
from ms_recover.splitting.training.alignment import Holder, align
from ms_recover.splitting.training.gradients import StepGradients
from ms_recover.splitting.training.journal import Entry, Journal
from ms_recover.splitting.training.options import TrainingOptions
from ms_recover.splitting.training.step_loss import StepLoss
from ms_recover.splitting.training.trained_devices import TrainedDevices, words_of


class Trainer(TrainedDevices):
    """Runs one step after the other; the caller sees to it that nothing else runs on the devices.

    A step computes the gradients of all its chunks, and then lets every part's optimizer step. Until all gradients are
    there no value changes. From there on a loss leaves some parts at the step and others before it: whatever comes
    next begins by taking every part to the same step (`align`), from the last snapshot and the batches since.
    """

    def __init__(self, devices: Devices, options: TrainingOptions, parts: int) -> None:
        super().__init__(devices, options, parts)
        self._journal = Journal()
        self._journal.taken(self.step)

    async def train_step(self, batch: Any, cuts: Sequence[Rows]) -> StepLoss:
        """Do one step with a batch cut into chunks; see `ms_recover.splitting.ModelSplitter.train_step`."""
        self.options.check_targets(nested.flatten(nested.unflatten(*batch.cut(0, batch.rows))[0][1])[1])
        batch.keep()
        history = self.devices.history
        began = history.now
        history.call += 1
        entry = Entry(self.step + 1, batch, tuple(cuts), tuple(range(len(cuts))))
        run = Forward(total=len(cuts))
        self.stepping = True
        try:
            loss, counted = await self._step(entry, run)
        finally:
            self.stepping = False
        self.step += 1
        self._journal.add(Entry(entry.step, batch, entry.cuts, counted))
        history.add_report(dict(enumerate(cuts)), began, run, FinishForward())
        await self._keep(loss)
        return loss

    async def _step(self, entry: Entry, run: Forward) -> tuple[StepLoss, tuple[int, ...]]:
        """Do a step until it is done; return the loss and the chunks that counted."""
        self.failures = 0
        while True:
            await self.align()
            try:
                return await self._attempt_step(entry, run, skip=self.policy == "skip")
            except DeviceGoneError as gone:
                self.count_failure(gone, run)

    async def _keep(self, loss: StepLoss) -> None:
        """Take the snapshot and the save that are due behind a step; raises NotSavedError.

        A device that is lost in the snapshot is one that the next step lacks: the last snapshot and the batches since
        are there.
        """
        store = self.devices.store
        try:
            if self.step % self.options.snapshot_steps == 0:
                with suppress(DeviceGoneError):
                    await self._take_snapshot()
            if self.options.save_steps is not None and self.step % self.options.save_steps == 0:
                await self.save(loss)
        except DeviceLostError as error:
            advice = "" if self.policy == "plain" else "then call save()"
            raise _not_saved(store, self.step, f"what was due behind it failed: {error}", loss, advice) from error

    async def save(self, loss: StepLoss | None = None) -> None:
        """Save the slices of the last finished step, unless they are saved; raises as `_save_slices`."""
        self.failures = 0
        while self.devices.store.step != self.step:
            await self.align()
            try:
                await _save_slices(self.devices, self.step, self.holders(), self.parts, loss)
            except DeviceGoneError as gone:
                self.count_failure(gone, None)

    async def align(self) -> None:
        """Take every part to the last finished step; raises DeviceLostError when a part has no device."""
        while True:
            try:
                if self.devices.snapshots.step is None and not await self._take_snapshot():
                    continue
                todo = align(self.parts, self.holders(), self.step, self._journal.snapshot)
                if todo.unserved:
                    await self._find_device(todo.unserved)
                    continue
                if not todo.any:
                    return
                await self._restore(todo.restored)
                for entry in self._journal.entries(todo.repeated):
                    await self._attempt_step(entry, Forward(total=len(entry.counted)), skip=False)
                for part, source, targets in todo.copied:
                    await self._copy(part, source, targets)
            except DeviceGoneError as gone:
                self.count_failure(gone, None)

    async def publish(self) -> None:
        """Take every part to the last finished step, and a snapshot of it, with which later processes begin."""
        self.failures = 0
        if self.devices.snapshots.step is None:
            return  # nothing was trained
        await self.align()
        while self.devices.snapshots.step != self.step:
            try:
                await self._take_snapshot()
            except DeviceGoneError as gone:
                self.count_failure(gone, None)
            await self.align()

    async def recover(self) -> None:
        """Take devices that are back to the last finished step."""
        self.failures = 0
        if self.devices.snapshots.step is not None:
            await self.align()

    async def _find_device(self, unserved: Sequence[int]) -> None:
        """Wait for a device of each part, or hand the parts over, or raise."""
        if any(device.serving and part in device.parts for device in self.state.devices for part in unserved):
            await self.devices.wait_for_change()
            return
        if self.policy == "skip" and self.devices.hand_over():
            return
        for part in unserved:
            gone = [device for device in self.state.devices if part in device.parts]
            why = Loss(gone[0].number, part, gone[0].cause, gone[0].words) if gone else Loss(None, part, "", "")
            none_left = not any(device.serving for device in self.state.devices)
            error = NoDeviceLeftError if none_left and self.policy in ("recover", "skip") else DeviceLostError
            raise error(
                f"{words_of(why)}; {self.advice}",
                why.device,
                why.part,
                why.cause,
            )

    async def _restore(self, holders: Sequence[tuple[int, int]]) -> None:
        current = self.devices.snapshots.current
        for device, part in holders:
            self.devices.versions[device, part] = None
        await _all(self._load(device, part, current[part]) for device, part in holders)

    async def _load(self, device: int, part: int, snapshot: PartSnapshot) -> None:
        fields = {"path": snapshot.path, "digest": snapshot.digest}
        await self.order(device, part, action="load", **fields)
        self.devices.versions[device, part] = snapshot.step

    async def _copy(self, part: int, source: int, targets: Sequence[int]) -> None:
        """Give devices the values of one that is at the step."""
        path = self.devices.memory.path("copy", part)
        saved = await self.order(source, part, action="save", path=path)
        snapshot = PartSnapshot(self.step, path, saved.fields["digest"], tuple(saved.fields["layout"]))
        results = await asyncio.gather(
            *(self._load(target, part, snapshot) for target in targets), return_exceptions=True
        )
        for result in results:
            if isinstance(result, BaseException) and not isinstance(result, DeviceGoneError):
                raise result

    async def _take_snapshot(self) -> bool:
        """Take a snapshot of all parts; raises DeviceGoneError, and the one before stays in place."""
        holders = self.holders()
        store = self.devices.snapshots
        sources = [
            min((device for device, held in holders if held == part and holders[device, held] == self.step), default=-1)
            for part in range(self.parts)
        ]
        if -1 in sources:
            if store.step is None:
                await self._find_device([part for part, source in enumerate(sources) if source < 0])
            return False

        async def save(part: int, device: int) -> PartSnapshot:
            path = store.next_path(part)
            answer = await self.order(device, part, action="save", path=path)
            return PartSnapshot(self.step, path, answer.fields["digest"], tuple(answer.fields["layout"]))

        store.taken(await _all(save(part, device) for part, device in enumerate(sources)))
        self._journal.taken(self.step)
        return True

    async def _attempt_step(self, entry: Entry, run: Forward, *, skip: bool) -> tuple[StepLoss, tuple[int, ...]]:
        """Do a step once; return the loss and the chunks that counted, or raise DeviceGoneError."""
        self.attempt += 1
        work = StepGradients(self, entry, run, skip=skip and self.options.split == "batch")
        await work.compute()
        counted = work.counted
        if not counted:
            why = next(iter(run.dropped.values()))
            raise NoDeviceLeftError(
                f"{words_of(why)}; no row of the step could be computed, the weights are those before it: bring the "
                "devices back with reset_device_states",
                why.device,
                why.part,
                why.cause,
            )
        await self._update(entry, work)
        rows = sum(stop - start for start, stop in (entry.cuts[chunk] for chunk in counted))
        total = np.float32(0)
        for chunk in counted:
            total = np.float32(total + np.float32(work.losses[chunk]))
        if self.options.reduction == "mean" and rows < entry.total:
            total = np.float32(total * np.float32(entry.total / rows))
        self.devices.memory.keep("gradients", [])
        return StepLoss(float(total), rows=rows, total=entry.total, step=entry.step), counted

    async def _square_sums(self, entry: Entry, work: StepGradients) -> list[float]:
        """Return the sums of the squares of all gradients in forward order; none where each part has all gradients."""
        if self.options.clip_norm is None or self.parts == 1:
            return []
        fields: dict[str, Any] = {"step": entry.step, "attempt": self.attempt, "chunks": len(work.counted)}
        holders = sorted((part, device) for device, part in work.all_holders())
        answers = await _all(self.order(device, part, action="norm", **fields) for part, device in holders)
        return [total for answer in answers for total in answer.fields["sums"]]

    async def _update(self, entry: Entry, work: StepGradients) -> None:
        """Let the optimizer of every part step, in every device that holds it at the step before."""
        sums = await self._square_sums(entry, work)
        holders = work.all_holders()  # now: a process that came meanwhile has no gradients
        rows = sum(stop - start for start, stop in (entry.cuts[chunk] for chunk in work.counted))
        factor = entry.total / rows if self.options.reduction == "mean" else 1.0
        paths = [work.paths[chunk] for chunk in work.counted] if self.options.split == "batch" else []

        async def update(device: int, part: int) -> bool:
            self.devices.versions[device, part] = None
            fields: dict[str, Any] = {
                "step": entry.step,
                "attempt": self.attempt,
                "paths": paths,
                "factor": factor,
                "chunks": len(work.counted),
                "sums": sums,
            }
            answer = await self.order(device, part, action="update", **fields)
            self.devices.versions[device, part] = entry.step
            return bool(answer.fields["changed"])

        results = await asyncio.gather(*(update(device, part) for device, part in holders), return_exceptions=True)
        gone = [result for result in results if isinstance(result, DeviceGoneError)]
        for result in results:
            if isinstance(result, BaseException) and not isinstance(result, DeviceGoneError):
                raise result
        updated = {part for (device, part), step in self.holders().items() if step == entry.step}
        if gone and (len(updated) < self.parts or self.policy in ("plain", "raise")):
            raise gone[0]
        if len(updated) < self.parts:
            raise DeviceGoneError(next(device for device, part in holders if part not in updated))
        if self.options.split == "batch" and len(self.state.devices) > 1 and any(result is True for result in results):
            self.devices.versions = dict.fromkeys(self.devices.versions)
            raise UsageError(
                "the model changes parameters that are not trained (statistics of the batch, as in BatchNorm), which "
                'differ between the devices of split="batch": use split="layers"; the weights are those before the step'
            )


async def _all(work: Any) -> list[Any]:
    """Wait for all of these, then raise the first error."""
    results = await asyncio.gather(*work, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return list(results)


async def _save_slices(
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
        raise _not_saved(store, step, f"its slices were not saved in {store.directory}: {words}", loss) from error


def _not_saved(
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
