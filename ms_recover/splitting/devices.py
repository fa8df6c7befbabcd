"""The devices of a splitter: their workers, messages, chunks and clocks."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from typing import Any, cast

from ms_recover.errors import BrokenWorldError, InputError, MsRecoverError
from ms_recover.splitting.events import LossCause, Outcome, Rows
from ms_recover.splitting.history import History
from ms_recover.splitting.instructions import (
    EmitEvent,
    EndWorker,
    FailForward,
    FinishForward,
    Instruction,
    LoadPart,
    RunChunk,
    StartWorker,
)
from ms_recover.splitting.job import WorkerJobs
from ms_recover.splitting.options import Options
from ms_recover.splitting.orders import DeviceGoneError, OrderFailedError, Orders
from ms_recover.splitting.part_files import PartFiles
from ms_recover.splitting.placement import Chunk, Placement, exit_reason
from ms_recover.splitting.protocol import Message, OrderKind
from ms_recover.splitting.shared_memory import SharedMemory, Snapshots
from ms_recover.splitting.slices import SliceStore
from ms_recover.splitting.state import SplitterState
from ms_recover.splitting.values import SliceFile
from ms_recover.splitting.worker_pool import WorkerPool
from ms_recover.tensors.arrays import to_host

_log = logging.getLogger(__name__)
_WATCH_S = 0.05
_LOAD_POLL_S = 0.5
_STALL_S = 1.0
"""A sleep that lasts so much longer was one of the whole process, which counts against no device."""


class Devices:
    """The shell around `SplitterState`: carries out its instructions and passes the workers' messages to it."""

    def __init__(self, options: Options, state: SplitterState, store: SliceStore, jobs: WorkerJobs) -> None:
        self.state = state
        self.history = History(options.on_event)
        self.store = store
        self._jobs = jobs
        self._chunk_limit = options.timeout
        self._placements: dict[int, Placement] = {}
        self._lost_since: dict[int, float | None] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing = False
        self.chunks: dict[int, Chunk] = {}
        """The chunks of the forward that runs, by number."""
        self.result: asyncio.Future[FinishForward | FailForward] | None = None
        """The outcome of the forward that runs."""
        self.orders = Orders()
        """The orders of training that are not answered."""
        self.memory = SharedMemory()
        self.snapshots = Snapshots(self.memory)
        self.versions: dict[tuple[int, int], int | None] = {}
        """By device and part that its process holds: the number of updates in the values, None when unknown."""
        self.changed = asyncio.Event()
        """Set after every change of a device or spare."""
        self.files = PartFiles(store, jobs.part_fields, self.order)
        self.pool = WorkerPool(jobs, options.failures.spares, self._run_in_background, self.changed.set)

    @property
    def processes(self) -> list[int | None]:
        """For each device the id of the process that serves it."""
        placements = [self._placements.get(device.number) for device in self.state.devices]
        return [None if placement is None else placement.worker.process_id for placement in placements]

    def begin(self) -> None:
        """Watch the clocks, and start the spares."""
        self._run_in_background(self._watch_clocks())
        self.pool.start_spares()

    async def close(self) -> None:
        """End every worker."""
        self._closing = True
        self.orders.close()
        for task in list(self._tasks):
            task.cancel()
        while self._tasks:
            await asyncio.wait(self._tasks)
        self._placements.clear()
        await self.pool.close()
        self.memory.close()

    def apply(self, instructions: Sequence[Instruction]) -> None:
        """Carry out instructions of the state."""
        for instruction in instructions:
            self._carry_out(instruction)
        self.changed.set()

    def _carry_out(self, instruction: Instruction) -> None:
        match instruction:
            case RunChunk(device, part, chunk):
                placement = self._placements[device]
                if placement.since is None:
                    placement.since = self.history.now
                self._run_in_background(self._send_chunk(placement, part, chunk))
            case LoadPart(device, part):
                self._run_in_background(self._load(self._placements[device], part))
            case StartWorker(device, generation):
                self._run_in_background(self._serve(device, generation))
            case EndWorker(device, generation):
                self._end_worker(device, generation)
            case EmitEvent():
                self._emit(instruction)
            case FinishForward() | FailForward() if self.result is not None and not self.result.done():
                self.result.set_result(instruction)

    def _end_worker(self, device: int, generation: int) -> None:
        placement = self._placements.get(device)
        if placement is None or placement.generation != generation:
            return
        del self._placements[device]
        self.versions = {holder: step for holder, step in self.versions.items() if holder[0] != device}
        self.orders.lost(device)
        self._lost_since[device] = placement.since
        placement.worker.kill()
        self._run_in_background(self.pool.end(placement.worker))

    def _emit(self, event: EmitEvent) -> None:
        """Record an event, and the chunk that was lost with a device."""
        device = event.device
        rows = self.chunks[event.chunk].rows if event.chunk in self.chunks else None
        if device is not None and event.kind == "lost":
            since = self._lost_since.pop(device, None)
            if event.part is not None and rows is not None and since is not None:
                self.history.add_span(device, event.part, rows, since, "lost")
        if device is not None and event.kind == "recovered":
            placement = self._placements[device]
            self.history.add_event(event, rows, placement.ready_at, placement.proof)
        else:
            self.history.add_event(event, rows)

    def _run_in_background(self, work: Coroutine[Any, Any, None]) -> None:
        if self._closing:
            work.close()
            return
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, device: int, generation: int) -> None:
        try:
            worker = await self.pool.acquire(device)
        except Exception as error:
            _log_unexpected(error)
            self.apply(self.state.lost(device, generation, "start", str(error)))
            return
        if not self.state.awaits(device, generation):  # it was taken out meanwhile
            await self.pool.end(worker)
            return
        placement = Placement(device, generation, worker, ready_at=self.history.now)
        self._placements[device] = placement
        self.apply(self.state.ready(device, generation))
        self._run_in_background(self._receive_all(placement))

    async def _receive_all(self, placement: Placement) -> None:
        """Pass a worker's messages to the state, until it is lost."""
        try:
            while self._is_current(placement):
                message = await placement.worker.channel.receive()
                if self._is_current(placement):
                    self._receive(placement, message)
        except BrokenWorldError as error:
            words = await exit_reason(placement.worker, error) or error.words or str(error)
            self._lose(placement, cast(LossCause, error.cause), words)
        except Exception as error:  # no message of a worker may end the splitter
            self._lose_by(error, placement, "protocol")

    def _receive(self, placement: Placement, message: Message) -> None:
        device, generation, fields = placement.device, placement.generation, message.fields
        match message.kind:
            case "held":
                if self.snapshots.step not in (None, fields["step"]):  # there is a newer snapshot meanwhile
                    self._run_in_background(self._load(placement, fields["part"]))
                    return
                self.versions[device, fields["part"]] = fields["step"] or 0
                self.apply(self.state.held(device, generation, fields["part"]))
            case "ran":
                part, number = fields["part"], fields["chunk"]
                self._end_chunk(placement, part, number, fields["seconds"], "done")
                if number in self.chunks:
                    self.chunks[number] = Chunk(self.chunks[number].rows, fields["skeleton"], message.tensors)
                self.apply(self.state.ran(device, generation, number, part))
            case "raised":
                part, number = fields["part"], fields["chunk"]
                self._end_chunk(placement, part, number, None, "raised")
                self.apply(self.state.raised(device, generation, number, part, fields["words"]))
            case "done" | "failed":
                self.orders.answered(fields["order"], message)
                placement.since = self.history.now if self.orders.at(device) else None
            case "unable":
                self._lose(placement, "weights", fields["words"])
            case _:
                raise InputError(f"invalid message of device {device}'s worker: {message.kind!r}")

    async def wait_for_change(self) -> None:
        """Wait until a device or spare changes."""
        self.changed.clear()
        await self.changed.wait()

    def hand_over(self) -> bool:
        """Give parts without a device to others; return whether there is one."""
        instructions = self.state.handed_over()
        self.apply(instructions)
        return bool(instructions)

    def emit(self, event: EmitEvent, rows: Rows | None) -> None:
        """Record an event that concerns these rows."""
        self.history.add_event(event, rows)

    async def order(
        self, device: int, part: int, /, tensors: Sequence[Any] = (), kind: OrderKind = "train", **fields: Any
    ) -> Message:
        """Send an order to a device, and wait for the answer.

        Raises DeviceGoneError when the device is lost, and OrderFailedError when the part raises.
        """
        placement = self._placements.get(device)
        if placement is None:
            raise DeviceGoneError(device)
        number, answer = self.orders.add(device, part)
        if placement.since is None:
            placement.since = self.history.now
        # in the background: a message that is cut off would break the world
        self._run_in_background(self._send_order(placement, kind, tensors, {"part": part, "order": number, **fields}))
        return await answer

    async def _send_order(
        self, placement: Placement, kind: OrderKind, tensors: Sequence[Any], fields: dict[str, Any]
    ) -> None:
        try:
            await placement.worker.channel.send(kind, tensors, **fields)
        except BrokenWorldError:
            return  # `_receive_all` handles it
        except Exception as error:
            self._lose_by(error, placement, "protocol")

    async def _send_chunk(self, placement: Placement, part: int, number: int) -> None:
        chunk = self.chunks.get(number)
        if chunk is None:  # the forward was given up meanwhile
            placement.since = None
            self.apply(self.state.ran(placement.device, placement.generation, number, part))
            return
        try:
            await placement.worker.channel.send("run", chunk.leaves, part=part, chunk=number, skeleton=chunk.skeleton)
        except BrokenWorldError:
            return  # `_receive_all` handles it
        except Exception as error:
            self._lose_by(error, placement, "protocol")

    async def _load(self, placement: Placement, part: int) -> None:
        """Send a part with its weights, from a snapshot or slice; lose the device if it does not hold it in time.

        A part that has neither is made by the worker, which writes its slices.
        """
        limit = self._jobs.local.timeout
        channel = placement.worker.channel
        try:
            if self.snapshots.current:
                fields = self.snapshots.current[part].fields()
                await channel.send("hold", part=part, device=placement.device, **fields)
            elif await asyncio.wait_for(self._was_made(placement, part), limit):
                return
            else:
                await self._send_slice(placement, part)
        except OrderFailedError as error:
            self._lose(placement, "weights", error.words)
            return
        except asyncio.TimeoutError:
            self._lose(placement, "timeout", f"part {part} was not ready within {limit:g} s")
            return
        except (BrokenWorldError, DeviceGoneError):
            return  # `_receive_all` handles it
        except Exception as error:
            self._lose_by(error, placement, "weights")
            return
        waited = 0.0
        while self._is_current(placement) and part not in self.state.devices[placement.device].held:
            if waited > limit:
                self._lose(placement, "timeout", f"part {part} was not ready within {limit:g} s")
                return
            before = self.history.now
            await asyncio.sleep(min(_LOAD_POLL_S, limit))
            waited += min(self.history.now - before, _STALL_S)

    async def _was_made(self, placement: Placement, part: int) -> bool:
        """Have a device make a part that has no slice yet, and hold it; return whether it did."""
        async with self.files.making[part]:
            if self.store.is_saved(part) or not self._is_current(placement):
                return False
            await self.files.make(placement.device, part, remote=placement.worker.remote)
            self.versions[placement.device, part] = 0
            self.apply(self.state.held(placement.device, placement.generation, part))
            return True

    async def _send_slice(self, placement: Placement, part: int) -> None:
        """Prove a part's slice and send its place, or its weights to another host."""
        channel = placement.worker.channel
        began = self.history.now
        path, repaired = await asyncio.to_thread(self.store.path, part)
        placement.proof += self.history.now - began
        if repaired:
            self._emit(EmitEvent(kind="repaired", device=placement.device, part=part, words=repaired))
        if placement.worker.remote:
            file = SliceFile(path)
            tensors = [to_host(await asyncio.to_thread(file.read, name)) for name in file.weights]
            await channel.send("hold", tensors, part=part, names=file.weights, **self._jobs.part_fields[part])
        else:
            step = self.store.step
            await channel.send("hold", part=part, path=path, device=placement.device, step=step)

    async def _watch_clocks(self) -> None:
        """Lose devices that take too long for a chunk, and replace dead spares."""
        while True:
            before = self.history.now
            await asyncio.sleep(_WATCH_S)
            stall = self.history.now - before
            if stall > _STALL_S:  # this process was stopped: the answers that came meanwhile are not read yet
                for placement in self._placements.values():
                    placement.since = placement.since and placement.since + stall
            for placement in list(self._placements.values()):
                if placement.since is not None and self.history.now - placement.since > self._chunk_limit:
                    self._lose(placement, "timeout", f"a chunk took longer than {self._chunk_limit:g} s")
            self.pool.replace_dead_spares()

    def _end_chunk(self, placement: Placement, part: int, number: int, seconds: float | None, outcome: Outcome) -> None:
        """Record a chunk that a device has computed or refused; the device goes on to its next one."""
        now = self.history.now
        since = placement.since
        placement.since = now if len(self.state.devices[placement.device].running) > 1 else None
        if number in self.chunks:
            began = since if seconds is None else now - seconds
            self.history.add_span(placement.device, part, self.chunks[number].rows, began or now, outcome)

    def _is_current(self, placement: Placement) -> bool:
        return self._placements.get(placement.device) is placement

    def _lose(self, placement: Placement, cause: LossCause, words: str) -> None:
        self.apply(self.state.lost(placement.device, placement.generation, cause, words))

    def _lose_by(self, error: Exception, placement: Placement, cause: LossCause) -> None:
        _log_unexpected(error)
        self._lose(placement, cause, str(error))


def _log_unexpected(error: Exception) -> None:
    """Log the traceback of a programming error: callers see only its message."""
    if not isinstance(error, MsRecoverError | OSError):
        _log.error("unexpected error in the splitter", exc_info=error)
