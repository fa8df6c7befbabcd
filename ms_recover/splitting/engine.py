"""The shell around `SplitterState`: workers, chunks, weights and clocks, in one event loop."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from ms_recover.errors import (
    BrokenWorldError,
    DeviceLostError,
    InputError,
    MsRecoverError,
    NoDeviceLeftError,
    PartError,
    UsageError,
)
from ms_recover.splitting import nested, weights
from ms_recover.splitting.history import History
from ms_recover.splitting.process import Worker
from ms_recover.splitting.slices import SliceStore
from ms_recover.splitting.state import (
    EmitEvent,
    EndWorker,
    FailForward,
    FinishForward,
    Instruction,
    LoadPart,
    RunChunk,
    SplitterState,
    StartWorker,
)
from ms_recover.splitting.worker import Job
from ms_recover.splitting.worker_pool import WorkerPool
from ms_recover.worlds.manager import WorldManager

_log = logging.getLogger(__name__)
_ERRORS = {"lost": DeviceLostError, "part": PartError, "none left": NoDeviceLeftError}
_WATCH_S = 0.05
_FATE_LOOKS, _FATE_S = 50, 0.001


@dataclass
class _Place:
    """A device's process: which generation of the device, what it computes since when."""

    device: int
    generation: int
    worker: Worker
    ready_at: float
    since: float | None = None
    proof: float = 0.0


@dataclass
class _Chunk:
    rows: tuple[int, int]
    skeleton: Any
    leaves: list[Any]


class Engine:
    """Carries out what the state decides.

    Parameters
    ----------
    state : SplitterState
    store : SliceStore
    job : Job
        Of every worker, but for the name of its world.
    manager, guest_manager : WorldManager
        For the worlds with workers of this host, and of others; ended by `close`.
    record : Record
    chunk_limit : float
        Seconds that a chunk may take on a device.
    spares : int
        Workers that wait for a device to be lost.
    guests : mapping of int to Job
        The jobs of devices whose workers somebody else starts.
    about : callable
        Returns what such a worker has to know of a part.
    """

    def __init__(
        self,
        state: SplitterState,
        store: SliceStore,
        job: Job,
        manager: WorldManager,
        guest_manager: WorldManager,
        record: History,
        chunk_limit: float,
        spares: int = 0,
        guests: Mapping[int, Job] = MappingProxyType({}),
        about: Callable[[int], Mapping[str, Any]] | None = None,
    ) -> None:
        self.state, self._store, self._job = state, store, job
        self._manager, self._guest_manager = manager, guest_manager
        self._record, self._chunk_limit, self._about = record, chunk_limit, about
        self._numbers = itertools.count()
        self._places: dict[int, _Place] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._chunks: dict[int, _Chunk] = {}
        self._since: dict[int, float | None] = {}
        self._over: asyncio.Future[FailForward | None] | None = None
        self._changed = asyncio.Event()
        self._crew = WorkerPool(manager, guest_manager, job, guests, spares, self._go, self._changed.set)
        self._turn = asyncio.Lock()
        self._watch: asyncio.Task[None] | None = None
        self.closing = False

    @property
    def processes(self) -> list[int | None]:
        """The process id that serves each device."""
        places = [self._places.get(device.number) for device in self.state.devices]
        return [None if place is None else place.worker.number for place in places]

    @property
    def spares(self) -> int:
        """Workers that wait."""
        return len(self._crew.spares)

    async def begin(self) -> None:
        """Start all workers; returns when every device is at work, and the spares are there.

        Raises
        ------
        DeviceLostError
            When a device does not start and nothing is to take its place.
        """
        self._watch = asyncio.ensure_future(self._watch_clocks())
        self._apply(self.state.begun())
        self._crew.hire()
        await self._settle()
        if fault := self.state.start_fault():
            raise _error(fault)

    async def _settle(self) -> None:
        """Wait until every device is at work or known not to be, and the spares likewise."""
        while not (self.state.settled and self._crew.settled):
            self._changed.clear()
            await self._changed.wait()
            self._check_open()

    async def forward(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], cuts: Sequence[tuple[int, int]]) -> Any:
        """Send chunks through the parts; return the output.

        Raises
        ------
        DeviceLostError
        UsageError
            When the outputs of chunks cannot be joined.
        """
        async with self._turn:
            self._check_open()
            began = self._record.now
            self._record.call += 1
            numbers = {next(self._numbers): rows for rows in cuts}
            self._over = asyncio.get_running_loop().create_future()
            try:
                for number, (start, stop) in numbers.items():
                    skeleton, leaves = nested.flatten(nested.cut(args, dict(kwargs), start, stop))
                    self._chunks[number] = _Chunk((start, stop), skeleton, [nested.to_host(leaf) for leaf in leaves])
                self._apply(self.state.asked(list(numbers)))
                fault = await self._over
                self._record.forward_over(numbers, began, self.state, fault)
                if fault is not None:
                    raise _error(fault)
                done = [self._chunks[number] for number in numbers if number not in self.state.dropped]
                outputs = [nested.unflatten(chunk.skeleton, chunk.leaves) for chunk in done]
                return nested.join(outputs, [stop - start for start, stop in (chunk.rows for chunk in done)])
            finally:
                self.state.abandoned()
                self._over = None
                self._chunks.clear()

    async def reset(self) -> None:
        """Bring every device back; returns when every device is at work or lost again."""
        async with self._turn:
            self._check_open()
            self._apply(self.state.reset())
            self._crew.hire()
            await self._settle()

    def _check_open(self) -> None:
        if self.closing:
            raise UsageError("this splitter was closed while it worked")

    async def close(self) -> None:
        """End every worker."""
        self.closing = True
        if self._over is not None and not self._over.done():
            self._over.set_exception(UsageError("this splitter was closed while it worked"))
        self._changed.set()
        async with self._turn:  # who waits for it is told as well
            pass
        if self._watch is not None:
            self._watch.cancel()
        for task in list(self._tasks):
            task.cancel()
        while self._tasks:
            await asyncio.wait(self._tasks)
        self._places.clear()
        await self._crew.close()
        await asyncio.gather(self._manager.__aexit__(), self._guest_manager.__aexit__())

    # --- carrying out -------------------------------------------------------------------------------------------

    def _apply(self, instructions: Sequence[Instruction]) -> None:
        for instruction in instructions:
            match instruction:
                case RunChunk(device, part, chunk):
                    place = self._places[device]
                    place.since = self._record.now if place.since is None else place.since
                    self._go(self._send(place, part, chunk))
                case LoadPart(device, part):
                    self._go(self._load(self._places[device], part))
                case StartWorker(device, generation):
                    self._go(self._serve(device, generation))
                case EndWorker(device, generation):
                    place_lost = self._places.get(device)
                    if place_lost is not None and place_lost.generation == generation:
                        self._note_lost(self._places.pop(device))
                case EmitEvent():
                    self._note(instruction)
                case FinishForward():
                    self._end_forward(None)
                case FailForward():
                    self._end_forward(instruction)
        self._changed.set()

    def _go(self, work: Coroutine[Any, Any, None]) -> None:
        if self.closing:
            work.close()
            return
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _unforeseen(self, error: Exception) -> None:
        """Log where an error came from that is none of ours: who waits for a device hears its words only."""
        if not isinstance(error, MsRecoverError | OSError):
            _log.error("the splitter erred", exc_info=error)

    def _end_forward(self, fault: FailForward | None) -> None:
        if self._over is not None and not self._over.done():
            self._over.set_result(fault)

    def _note_lost(self, place: _Place) -> None:
        """Record what a lost device was at, and end its process."""
        self._since[place.device] = place.since
        place.worker.kill()
        self._go(self._crew.end(place.worker))

    async def _serve(self, device: int, generation: int) -> None:
        try:
            worker = await self._crew.take(device)
        except Exception as error:
            self._unforeseen(error)
            self._apply(self.state.lost(device, generation, "start", str(error)))
            return
        place = _Place(device=device, generation=generation, worker=worker, ready_at=self._record.now)
        self._places[device] = place
        self._apply(self.state.ready(device, generation))
        self._go(self._listen(worker, place))

    async def _listen(self, worker: Worker, place: _Place) -> None:
        """Take what a worker says to the state, until it is lost."""
        device, generation = place.device, place.generation
        try:
            while self._places.get(device) is place:
                word, fields, leaves = await worker.line.hear()
                if self._places.get(device) is place:
                    self._heard(place, word, fields, leaves)
        except BrokenWorldError as error:
            for _ in range(_FATE_LOOKS):  # the end of the connection is seen before that of the process
                if worker.remote or error.cause not in ("eof", "reset") or worker.fate:
                    break
                await asyncio.sleep(_FATE_S)
            words = worker.fate or error.words or str(error)
            self._apply(self.state.lost(device, generation, error.cause, words))
        except Exception as error:  # nothing a worker says may end the splitter
            self._unforeseen(error)
            self._apply(self.state.lost(device, generation, "protocol", str(error)))

    def _heard(self, place: _Place, word: str, fields: Mapping[str, Any], leaves: list[Any]) -> None:
        device, generation = place.device, place.generation
        if word == "held":
            self._apply(self.state.held(device, generation, fields["part"]))
        elif word == "ran":
            part, number = fields["part"], fields["chunk"]
            self._computed(place, part, number, fields["seconds"], "done")
            if number in self._chunks:
                self._chunks[number] = _Chunk(self._chunks[number].rows, fields["skeleton"], leaves)
            self._apply(self.state.ran(device, generation, number, part))
        elif word == "raised":
            part, number = fields["part"], fields["chunk"]
            self._computed(place, part, number, None, "raised")
            self._apply(self.state.raised(device, generation, number, part, fields["words"]))
        elif word == "unable":
            self._apply(self.state.lost(device, generation, "weights", fields["words"]))
        else:
            raise InputError(f"the worker of device {device} said {word!r}")

    async def _send(self, place: _Place, part: int, number: int) -> None:
        chunk = self._chunks.get(number)
        if chunk is None:  # the forward was given up meanwhile
            place.since = None
            self._apply(self.state.ran(place.device, place.generation, number, part))
            return
        try:
            await place.worker.line.say("run", chunk.leaves, part=part, chunk=number, skeleton=chunk.skeleton)
        except BrokenWorldError:
            return  # `_listen` hears of it too
        except Exception as error:
            self._unforeseen(error)
            self._apply(self.state.lost(place.device, place.generation, "protocol", str(error)))

    async def _load(self, place: _Place, part: int) -> None:
        try:
            began = self._record.now
            path, repaired = await asyncio.to_thread(self._store.path, part)
            place.proof += self._record.now - began
            if repaired:
                self._note(
                    EmitEvent(kind="repaired", device=place.device, part=part, chunk=None, cause="", words=repaired)
                )
            if place.worker.remote:
                held = await asyncio.to_thread(weights.read, path)
                about = {"part": part, "names": list(held), **(self._about(part) if self._about else {})}
                await place.worker.line.say("hold", [nested.to_host(one) for one in held.values()], **about)
            else:
                await place.worker.line.say("hold", part=part, path=path, device=place.device)
        except BrokenWorldError:
            return  # `_listen` hears of it too
        except Exception as error:
            self._unforeseen(error)
            self._apply(self.state.lost(place.device, place.generation, "weights", str(error)))
            return
        await asyncio.sleep(self._job.timeout)
        if self._places.get(place.device) is place and part not in self.state.devices[place.device].held:
            words = f"part {part} was not ready within {self._job.timeout:g} s"
            self._apply(self.state.lost(place.device, place.generation, "timeout", words))

    async def _watch_clocks(self) -> None:
        """Give up devices that take too long for a chunk, and spares that died."""
        while True:
            await asyncio.sleep(_WATCH_S)
            for place in list(self._places.values()):
                if place.since is not None and self._record.now - place.since > self._chunk_limit:
                    words = f"a chunk took longer than {self._chunk_limit:g} s"
                    self._apply(self.state.lost(place.device, place.generation, "timeout", words))
            self._crew.look()

    def _computed(self, place: _Place, part: int, number: int, seconds: float | None, outcome: Any) -> None:
        """Note that a device has done with a chunk, and that it goes on to the next."""
        now, since = self._record.now, place.since
        place.since = now if len(self.state.devices[place.device].running) > 1 else None
        if number in self._chunks:
            began = since if seconds is None else now - seconds
            self._record.computed(place.device, part, self._chunks[number].rows, began or now, outcome)

    def _note(self, note: EmitEvent) -> None:
        rows = self._chunks[note.chunk].rows if note.chunk in self._chunks else None
        device, recovery = note.device, None
        since = self._since.pop(device, None) if device is not None and note.kind == "lost" else None
        if device is not None and note.part is not None and rows is not None and since is not None:
            self._record.computed(device, note.part, rows, since, "lost")
        if device is not None and note.kind == "recovered":
            recovery = (self._places[device].ready_at, self._places[device].proof)
        self._record.happened(note, rows, recovery)


def _error(fault: FailForward) -> DeviceLostError:
    where = "" if fault.device is None else f"device {fault.device}"
    where += "" if fault.part is None else f"{where and ', '}part {fault.part}"
    why = ": ".join(word for word in (where, fault.cause, fault.words) if word)
    next_steps = {
        "lost": "the answer is not whole; bring the devices back (reset_device_states) or make a new splitter",
        "part": "look at the inputs and the model",
        "none left": "nothing of the answer could be computed; bring the devices back with reset_device_states",
    }
    return _ERRORS[fault.kind](f"{why}; {next_steps[fault.kind]}", fault.device, fault.part, fault.cause)
