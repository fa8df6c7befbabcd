"""The gradients of one step: its operations, sent to devices in order, and again when one is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ms_recover.splitting import nested
from ms_recover.splitting.instructions import EmitEvent, Loss
from ms_recover.splitting.orders import DeviceGoneError
from ms_recover.splitting.progress import Forward
from ms_recover.splitting.training.journal import Entry
from ms_recover.splitting.training.schedule import Op, Schedule, slot_of
from ms_recover.splitting.training.trained_devices import MOST_FAILURES, TrainedDevices

_ELSEWHERE = np.empty(0)
"""In place of a tensor that lies in shared memory."""


class StepGradients:
    """The gradients of one step's chunks."""

    def __init__(self, trained: TrainedDevices, entry: Entry, run: Forward, *, skip: bool) -> None:
        self._trained = trained
        self._entry = entry
        self._run = run
        self._skip = skip
        self._schedule = Schedule(trained.parts, entry.counted)
        self._processes = {device.number: device.generation for device in trained.state.devices}
        self._values: dict[tuple[str, int, int], tuple[Any, tuple[str, Any]]] = {}
        """What a part left for its neighbour: its description, and the place of its tensors."""
        self.losses: dict[int, float] = {}
        self.paths: dict[int, str] = {}

    @property
    def counted(self) -> tuple[int, ...]:
        """The chunks with a gradient, in order."""
        return tuple(chunk for chunk in self._entry.counted if chunk in self.losses)

    @property
    def holders(self) -> list[tuple[int, int]]:
        """Devices and parts that are at the step before.

        In layers they must have been there when this began: a fresh process has none of the step's activations and
        gradients, even where its snapshot is of the step before.
        """
        trained, before = self._trained, self._entry.step - 1
        return [
            (device, part)
            for (device, part), step in sorted(trained.holders().items())
            if step == before
            and (trained.parts == 1 or trained.state.devices[device].generation == self._processes[device])
        ]

    def all_holders(self) -> list[tuple[int, int]]:
        """Return the `holders`; raises DeviceGoneError where a part has lost its device."""
        found = self.holders
        missing = set(range(self._trained.parts)) - {part for _, part in found}
        if missing:
            raise DeviceGoneError(next(each.number for each in self._trained.state.devices if missing & each.parts))
        return found

    async def compute(self) -> None:
        """Send the operations to the devices until all are done or dropped; raises DeviceGoneError otherwise."""
        running: dict[asyncio.Task[None], tuple[int, Op]] = {}
        try:
            while not self._schedule.finished:
                for device, op in self._schedule.assign(self._seats()):
                    running[asyncio.ensure_future(self._carry_out(device, op))] = device, op
                if not running:
                    await self._wait_for_device()
                    continue
                await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for task in [task for task in running if task.done()]:
                    device, op = running.pop(task)
                    self._finish(device, op, task)
        except asyncio.CancelledError:
            for task in running:
                task.cancel()
            raise
        except BaseException:
            if running:
                await asyncio.wait(running)  # each is answered, or its device lost
                for task in running:
                    task.exception()
            raise

    def _seats(self) -> Mapping[int, Sequence[int]]:
        """Return the parts of each device that are at the step before; each part once, unless all devices hold it."""
        held = self.holders
        found: dict[int, list[int]] = {}
        taken: set[int] = set()
        for device, part in held:
            if self._trained.parts == 1 or part not in taken:
                taken.add(part)
                found.setdefault(device, []).append(part)
        return found

    async def _wait_for_device(self) -> None:
        """Handle operations that no device can take now."""
        if self._seats():
            self.all_holders()  # a part of layers is lost: everything begins again
        gone = next((device.number for device in self._trained.state.devices if not device.alive), 0)
        if not self._skip:
            raise DeviceGoneError(gone)
        device = self._trained.state.devices[gone]
        for chunk in self._entry.counted:
            if chunk not in self.losses and chunk not in self._run.dropped:
                self._drop(Op("both", 0, chunk), Loss(gone, 0, device.cause, device.words))

    def _finish(self, device: int, op: Op, task: asyncio.Task[None]) -> None:
        """Handle an operation's end."""
        trained = self._trained
        try:
            task.result()
            self._schedule.done(device, op)
        except DeviceGoneError:
            if trained.options.split != "batch" or trained.policy in ("plain", "raise"):
                raise
            self._schedule.lost(device, op)
            lost = trained.state.devices[device]
            self._run.lost.append(device)
            if self._skip:
                self._drop(op, Loss(device, op.part, lost.cause, lost.words))
                return
            self._run.redone += 1
            trained.failures += 1
            if trained.failures > MOST_FAILURES:
                trained.count_failure(DeviceGoneError(device), None)
            trained.devices.emit(EmitEvent(kind="redone", device=device, part=op.part), self._entry.cuts[op.chunk])

    def _drop(self, op: Op, why: Loss) -> None:
        self._schedule.drop(op)
        self._run.dropped[op.chunk] = why
        event = EmitEvent(kind="dropped", device=why.device, part=why.part, cause=why.cause, words=why.words)
        self._trained.devices.emit(event, self._entry.cuts[op.chunk])

    async def _carry_out(self, device: int, op: Op) -> None:
        """Send an operation with its tensors, and keep what the next one needs."""
        trained, rows = self._trained, self._entry.cuts[op.chunk]
        tensors, fields = self._inputs(device, op)
        answer = await trained.order(
            device,
            op.part,
            tensors,
            action=op.kind,
            step=self._entry.step,
            attempt=trained.attempt,
            chunk=op.chunk,
            into=(into := self._piece(op)),
            **fields,
        )
        history = trained.devices.history
        history.add_span(device, op.part, rows, history.now - answer.fields["seconds"], "done")
        if op.kind == "forward":
            self._values["forward", op.part, op.chunk] = answer.fields["skeleton"], (into, answer.fields["layout"])
            return
        if op.part:
            self._values["backward", op.part, op.chunk] = None, (into, answer.fields["layout"])
        if op.kind == "both":
            self.losses[op.chunk] = answer.fields["loss"]
            if fields["path"]:
                self.paths[op.chunk] = fields["path"]

    def _inputs(self, device: int, op: Op) -> tuple[list[Any], dict[str, Any]]:
        """Return the tensors and fields of an operation's message."""
        if op.kind == "backward":
            return [], {"given": self._values.pop(("backward", op.part + 1, op.chunk))[1]}
        trained, entry = self._trained, self._entry
        start, stop = entry.cuts[op.chunk]
        arguments: tuple[Any, ...]
        arguments, targets = nested.unflatten(*entry.batch.cut(start, stop))[0]
        given, wanted = None, 0
        if op.part:
            skeleton, given = self._values.pop(("forward", op.part - 1, op.chunk))
            wanted = len(given[1])
            arguments = (nested.unflatten(skeleton, [_ELSEWHERE] * wanted),)
        if op.kind == "forward":
            skeleton, leaves = nested.flatten(arguments)
            return leaves[wanted:], {"skeleton": skeleton, "wanted": wanted, "given": given}
        skeleton, leaves = nested.flatten((*arguments, *targets))
        path = ""
        if trained.options.split == "batch":
            generation = trained.state.devices[device].generation
            path = trained.devices.memory.path("gradients", device, generation, op.chunk)
        weight = (stop - start) / entry.total if trained.options.reduction == "mean" else 1.0
        return leaves[wanted:], {
            "skeleton": skeleton,
            "wanted": wanted,
            "given": given,
            "inputs": len(arguments),
            "weight": weight,
            "path": path,
        }

    def _piece(self, op: Op) -> str:
        """Return where an operation leaves its tensors for the part behind or before; empty where nobody needs any."""
        slot = slot_of(op, self._trained.parts, self._entry.counted.index(op.chunk))
        return self._trained.devices.memory.path("relay", *slot) if slot else ""
