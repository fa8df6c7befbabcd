"""The shell around `SplitterState`: forwards, resets and the end of a splitter, in one event loop."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ms_recover.errors import DeviceLostError, NoDeviceLeftError, PartError, UsageError
from ms_recover.splitting import batches, nested
from ms_recover.splitting.devices import Chunk, Devices
from ms_recover.splitting.events import Rows
from ms_recover.splitting.history import History
from ms_recover.splitting.instructions import FailForward, FailureKind, FinishForward, Instruction
from ms_recover.splitting.job import WorkerJobs
from ms_recover.splitting.slices import SliceStore
from ms_recover.splitting.state import SplitterState

_CLOSED = "this splitter was closed while it worked"


class _Failure(NamedTuple):
    error: type[DeviceLostError]
    advice: str


_FAILURES: dict[FailureKind, _Failure] = {
    "lost": _Failure(
        DeviceLostError,
        "the answer is incomplete; bring the devices back (reset_device_states) or make a new splitter",
    ),
    "part": _Failure(PartError, "check the inputs and the model"),
    "none left": _Failure(
        NoDeviceLeftError, "no row of the answer could be computed; bring the devices back with reset_device_states"
    ),
}


class Engine:
    """Carries out the instructions of the state.

    Parameters
    ----------
    state, store, jobs, history
    chunk_limit : float
        Seconds that a chunk may take on a device.
    spares : int
        Number of idle workers to keep.
    """

    def __init__(
        self,
        *,
        state: SplitterState,
        store: SliceStore,
        jobs: WorkerJobs,
        history: History,
        chunk_limit: float,
        spares: int,
    ) -> None:
        self.state = state
        self._history = history
        self._devices = Devices(
            state=state,
            store=store,
            jobs=jobs,
            history=history,
            chunk_limit=chunk_limit,
            spares=spares,
            apply=self._apply,
        )
        self._numbers = itertools.count()
        self._result: asyncio.Future[FailForward | None] | None = None
        self._turn = asyncio.Lock()
        self._closing = False

    @property
    def processes(self) -> list[int | None]:
        """For each device the id of the process that serves it."""
        return self._devices.processes

    @property
    def spares(self) -> int:
        """Number of idle workers."""
        return len(self._devices.pool.spares)

    async def begin(self) -> None:
        """Start all workers, spares included, and wait until they are at work.

        Raises
        ------
        DeviceLostError
            When a device does not start and no other one takes its parts.
        """
        self._apply(self.state.begun())
        self._devices.begin()
        await self._settle()
        if failure := self.state.start_fault():
            raise _error(failure)

    async def forward(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], cuts: Sequence[Rows]) -> Any:
        """Send chunks through the parts; return the output.

        Raises
        ------
        DeviceLostError
        UsageError
            When the outputs of chunks cannot be joined.
        """
        async with self._turn:
            self._check_open()
            began = self._history.now
            self._history.call += 1
            chunks = self._devices.chunks
            numbers = {next(self._numbers): rows for rows in cuts}
            self._result = asyncio.get_running_loop().create_future()
            try:
                for number, rows in numbers.items():
                    skeleton, leaves = nested.flatten(batches.cut(args, kwargs, *rows))
                    chunks[number] = Chunk(rows, skeleton, [batches.to_host(leaf) for leaf in leaves])
                self._apply(self.state.asked(list(numbers)))
                failure = await self._result
                self._history.add_report(numbers, began, self.state.forward, failure)
                if failure is not None:
                    raise _error(failure)
                done = [chunks[number] for number in numbers if number not in self.state.forward.dropped]
                outputs = [nested.unflatten(chunk.skeleton, chunk.leaves) for chunk in done]
                return batches.join(outputs, [stop - start for start, stop in (chunk.rows for chunk in done)])
            finally:
                self.state.abandoned()
                self._result = None
                chunks.clear()

    async def reset(self) -> None:
        """Bring every device back, and wait until each is at work or lost again."""
        async with self._turn:
            self._check_open()
            self._apply(self.state.reset())
            self._devices.pool.start_spares()
            await self._settle()

    async def close(self) -> None:
        """End every worker."""
        self._closing = True
        if self._result is not None and not self._result.done():
            self._result.set_exception(UsageError(_CLOSED))
        self._devices.changed.set()
        async with self._turn:  # forwards that wait for their turn fail first
            pass
        await self._devices.close()

    async def _settle(self) -> None:
        """Wait until no device and no spare is still starting."""
        while not (self.state.settled and self._devices.pool.settled):
            self._devices.changed.clear()
            await self._devices.changed.wait()
            self._check_open()

    def _check_open(self) -> None:
        if self._closing:
            raise UsageError(_CLOSED)

    def _apply(self, instructions: Sequence[Instruction]) -> None:
        for instruction in instructions:
            match instruction:
                case FinishForward():
                    self._end_forward(None)
                case FailForward():
                    self._end_forward(instruction)
                case _:
                    self._devices.carry_out(instruction)
        self._devices.changed.set()

    def _end_forward(self, failure: FailForward | None) -> None:
        if self._result is not None and not self._result.done():
            self._result.set_result(failure)


def _error(failure: FailForward) -> DeviceLostError:
    numbers = (("device", failure.device), ("part", failure.part))
    where = ", ".join(f"{name} {number}" for name, number in numbers if number is not None)
    why = ": ".join(word for word in (where, failure.cause, failure.words) if word)
    known = _FAILURES[failure.kind]
    return known.error(f"{why}; {known.advice}", failure.device, failure.part, failure.cause)
