"""What a splitter does about what happens (pure): events in, instructions out.

Every public method of `SplitterState` is an event; it returns the instructions that the shell has to carry out, in
order. No process, socket, clock, weight or input is in here: devices, parts and chunks are numbers. A device is served
by one process after the other; its generation says by which, and what a former one says is not heard any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from ms_recover.splitting.events import EventKind

Policy = Literal["plain", "raise", "skip", "recover"]
"""plain: work that is lost raises, a part that raises harms no device. raise: likewise, but its device is lost. skip:
what is lost is left out. recover: a fresh process takes over and does it again."""
IN_A_ROW = 3
"""Fresh processes that a device gets in a row when they are of no use."""
DEPTH = 2
"""Chunks at a device: one that it computes, and one on its way meanwhile."""


class StartWorker(NamedTuple):
    """Have a process serve this device."""

    device: int
    generation: int


class LoadPart(NamedTuple):
    """Have the device hold a part, weights included."""

    device: int
    part: int


class RunChunk(NamedTuple):
    """Send a chunk to the device, for this part."""

    device: int
    part: int
    chunk: int


class EndWorker(NamedTuple):
    """End the process that serves the device, if it still lives."""

    device: int
    generation: int


class FinishForward(NamedTuple):
    """The forward is over; chunks that are not dropped are there."""


class FailForward(NamedTuple):
    """The forward is over and raises."""

    kind: Literal["lost", "part", "none left"]
    device: int | None
    part: int | None
    cause: str
    words: str


class EmitEvent(NamedTuple):
    """Tell people."""

    kind: EventKind
    device: int | None = None
    part: int | None = None
    chunk: int | None = None
    cause: str = ""
    words: str = ""


Instruction = StartWorker | LoadPart | RunChunk | EndWorker | FinishForward | FailForward | EmitEvent


class Task(NamedTuple):
    """A chunk that has reached a part."""

    chunk: int
    part: int


class Dropped(NamedTuple):
    """Why a chunk was given up."""

    device: int | None
    part: int
    cause: str
    words: str


@dataclass
class Device:
    """One device as the splitter sees it; ``original`` are the parts it was made for."""

    number: int
    original: frozenset[int]
    parts: set[int] = field(default_factory=set)
    held: set[int] = field(default_factory=set)
    generation: int = 0
    serving: bool = False
    """A process of this generation is there, or on its way."""
    ready: bool = False
    """The process is there."""
    alive: bool = False
    """The process is there and has held all its parts since."""
    retired: bool = False
    losses: int = 0
    fruitless: int = 0
    """Processes in a row that did not come to hold their parts."""
    running: list[Task] = field(default_factory=list)
    cause: str = ""
    words: str = ""
    """Why it was lost last."""


class SplitterState:
    """Who holds what, who does what, and what is left to do.

    Parameters
    ----------
    holders : sequence of sequence of int
        For each device the parts that it holds.
    costs : sequence of float
        Of each part; a part without device moves to the survivor that has the least to do.
    policy : str
        See `Policy`.
    max_restarts : int
        Fresh processes that a device gets before it is retired, under "recover"; of those that hold nothing or die over
        the same chunk at most `IN_A_ROW`, one after the other.
    """

    def __init__(
        self, holders: Sequence[Sequence[int]], costs: Sequence[float], policy: Policy, max_restarts: int = 3
    ) -> None:
        self.devices = [Device(number, frozenset(parts), set(parts)) for number, parts in enumerate(holders)]
        self._costs, self._policy, self._max_restarts = tuple(costs), policy, max_restarts
        self._in_a_row = min(max_restarts, IN_A_ROW)
        self._queue: list[Task] = []
        self._open: set[int] = set()
        self._total = 0
        self._raised: dict[int, int] = {}  # the device where a chunk raised first
        self._strikes: dict[int, list[int]] = {}  # the devices lost over a chunk
        self.dropped: dict[int, Dropped] = {}
        """Chunks of this forward that are given up, and why."""
        self.lost_now: list[int] = []
        """Devices lost during this forward."""
        self.redone = 0
        """Chunks of this forward that were run again."""
        self.busy = False

    @property
    def settled(self) -> bool:
        """Whether every device is at work or known not to be."""
        return not any(device.serving and not device.alive for device in self.devices)

    def begun(self) -> list[Instruction]:
        """Start every device."""
        return [self._start(device) for device in self.devices]

    def start_fault(self) -> FailForward | None:
        """Say what is wrong after the start: any device away, or all of them where others take over."""
        away = [device for device in self.devices if not device.alive]
        if not away or (self._policy == "recover" and len(away) < len(self.devices)):
            return None
        return FailForward(kind="lost", device=away[0].number, part=None, cause=away[0].cause, words=away[0].words)

    def ready(self, device: int, generation: int) -> list[Instruction]:
        """Note that a device's process can be talked to."""
        at = self._current(device, generation)
        if at is None:
            return []
        at.ready = True
        return [LoadPart(device, part) for part in sorted(at.parts)]

    def held(self, device: int, generation: int, part: int) -> list[Instruction]:
        """Note that a device holds a part."""
        at = self._current(device, generation)
        if at is None:
            return []
        at.held.add(part)
        notes: list[Instruction] = []
        if not at.alive and at.parts <= at.held:
            at.alive = True
            notes.append(EmitEvent(kind="recovered" if generation > 1 else "ready", device=device, cause=at.cause))
        return notes + self._dispatch()

    def asked(self, chunks: Sequence[int]) -> list[Instruction]:
        """Begin a forward over these chunks; their numbers were never used before."""
        self.dropped, self.lost_now, self.redone = {}, [], 0
        self._queue = [Task(chunk, 0) for chunk in chunks]
        self._open, self._total, self.busy = set(chunks), len(chunks), True
        self._raised, self._strikes = {}, {}
        return self._dispatch()

    def ran(self, device: int, generation: int, chunk: int, part: int) -> list[Instruction]:
        """Take note of a chunk that a device has computed."""
        at = self._current(device, generation)
        if at is None or Task(chunk, part) not in at.running:
            return []
        at.running.remove(Task(chunk, part))
        if chunk in self._open:
            if part + 1 < len(self._costs):
                self._queue.append(Task(chunk, part + 1))
            else:
                self._open.discard(chunk)
        return self._dispatch()

    def raised(self, device: int, generation: int, chunk: int, part: int, words: str) -> list[Instruction]:
        """Judge an exception: the device's fault, or, when it comes again elsewhere, that of what it was given."""
        at = self._current(device, generation)
        if at is None or Task(chunk, part) not in at.running:
            return []
        wanted = chunk in self._open
        if self._policy == "plain" or (self._policy == "recover" and (chunk in self._raised or not wanted)):
            at.running.remove(Task(chunk, part))
            if not wanted:
                return self._dispatch()
            return self._forgive(self._raised.values()) + self._fail("part", device, part, "raised", words)
        self._raised[chunk] = device
        return self.lost(device, generation, "raised", words)

    def lost(self, device: int, generation: int, cause: str, words: str) -> list[Instruction]:
        """Give a device up: it died, froze, was too slow, raised or did not start."""
        at = self._current(device, generation)
        if at is None:
            return []
        tasks, at.running = at.running, []
        at.losses += 1
        at.fruitless = 0 if at.alive else at.fruitless + 1
        at.serving = at.ready = at.alive = False
        at.held.clear()
        at.cause, at.words = cause, words
        if self.busy:
            self.lost_now.append(device)
        part, chunk = (tasks[0].part, tasks[0].chunk) if tasks else (None, None)
        done: list[Instruction] = [
            EndWorker(device, generation),
            EmitEvent(kind="lost", device=device, part=part, chunk=chunk, cause=cause, words=words),
        ]
        struck = self._struck_down(device, tasks)
        if struck:
            done += self._forgive(self._strikes[tasks[0].chunk])
        if self._policy == "recover":
            done += self._retire(at) if self._keeps_failing(at, tasks) else [self._start(at)]
        wanted = [task for task in tasks if task.chunk in self._open]
        if struck:
            return done + self._fail("part", device, part, cause, f"{words}, as every process that got these rows")
        if self._policy == "recover":
            self.redone += len(wanted)
            done += [EmitEvent(kind="redone", device=device, part=task.part, chunk=task.chunk) for task in wanted]
            self._queue += wanted
        elif self._policy == "skip":
            for task in wanted:
                done += self._drop(task.chunk, Dropped(device, task.part, cause, words))
        elif wanted:
            done += self._fail("lost", device, part, cause, words)
        return done + self._dispatch()

    def reset(self) -> list[Instruction]:
        """Bring every device back."""
        done: list[Instruction] = [EmitEvent(kind="reset")]
        for device in self.devices:
            device.losses, device.fruitless, device.retired = 0, 0, False
            device.parts = set(device.original)
            if not device.serving:
                done.append(self._start(device))
            elif device.ready:
                done += [LoadPart(device.number, part) for part in sorted(device.parts - device.held)]
        return done

    def abandoned(self) -> list[Instruction]:
        """Forget the forward: nobody waits for it any more."""
        self._queue, self._open, self.busy = [], set(), False
        return []

    def _struck_down(self, device: int, tasks: Sequence[Task]) -> bool:
        """Tell whether a chunk takes down every process that computes it, more than one device may fail by itself."""
        if self._policy != "recover" or not tasks or tasks[0].chunk not in self._open:
            return False
        strikes = self._strikes.setdefault(tasks[0].chunk, [])
        strikes.append(device)
        return len(strikes) > 2 * (self._in_a_row + 1)

    def _keeps_failing(self, device: Device, tasks: Sequence[Task]) -> bool:
        """Tell whether a fresh process would be one too many: in all, without use, or over the same chunk."""
        strikes = self._strikes.get(tasks[0].chunk, []) if tasks else []
        in_a_row = max(device.fruitless, strikes.count(device.number))
        return device.losses > self._max_restarts or in_a_row > self._in_a_row

    def _forgive(self, devices: Iterable[int]) -> list[Instruction]:
        """Take back losses that were not the devices' fault."""
        done: list[Instruction] = []
        for device in (self.devices[number] for number in devices):
            device.losses = max(0, device.losses - 1)
            if device.retired and device.losses <= self._max_restarts:
                device.retired, device.fruitless = False, 0
                done.append(self._start(device))
        return done

    def _current(self, device: int, generation: int) -> Device | None:
        at = self.devices[device]
        return at if at.generation == generation and at.serving else None

    def _start(self, device: Device) -> StartWorker:
        device.generation += 1
        device.serving = True
        return StartWorker(device.number, device.generation)

    def _retire(self, device: Device) -> list[Instruction]:
        """Give a device up for good; parts that only it had move to the survivor with the least to do."""
        device.retired = True
        done: list[Instruction] = [
            EmitEvent(
                kind="retired", device=device.number, part=None, chunk=None, cause=device.cause, words=device.words
            )
        ]
        left = [other for other in self.devices if not other.retired]
        for part in sorted(device.parts):
            if not left or any(part in other.parts for other in left):
                continue
            heir = min(left, key=lambda other: (sum(self._costs[own] for own in other.parts), other.number))
            heir.parts.add(part)
            done.append(
                EmitEvent(
                    kind="moved",
                    device=heir.number,
                    part=part,
                    chunk=None,
                    cause="",
                    words=f"from device {device.number}",
                )
            )
            if heir.ready:
                done.append(LoadPart(heir.number, part))
        return done

    def _drop(self, chunk: int, why: Dropped) -> list[Instruction]:
        self._open.discard(chunk)
        self.dropped[chunk] = why
        return [
            EmitEvent(kind="dropped", device=why.device, part=why.part, chunk=chunk, cause=why.cause, words=why.words)
        ]

    def _fail(
        self,
        kind: Literal["lost", "part", "none left"],
        device: int | None,
        part: int | None,
        cause: str,
        words: str,
    ) -> list[Instruction]:
        self.abandoned()
        return [FailForward(kind=kind, device=device, part=part, cause=cause, words=words)]

    def _dispatch(self) -> list[Instruction]:
        """Send what can be sent, give up what never can, and end the forward when nothing is left."""
        if not self.busy:
            return []
        done: list[Instruction] = []
        for task in self._doomed():
            why = self._why(task.part)
            if self._policy != "skip":
                return self._fail("none left" if self._policy == "recover" else "lost", *why)
            done += self._drop(task.chunk, why)
        waiting, self._queue = sorted(task for task in self._queue if task.chunk in self._open), []
        room = self._room()
        for task in waiting:  # older chunks first
            if task.part in room:
                device = room[task.part]
                device.running.append(task)
                done.append(RunChunk(device.number, task.part, task.chunk))
                room = self._room()
            else:
                self._queue.append(task)
        if self._open:
            return done
        self.busy = False
        if self.dropped and len(self.dropped) == self._total:
            why = next(iter(self.dropped.values()))
            return done + self._fail("none left", *why)
        return [*done, FinishForward()]

    def _room(self) -> dict[int, Device]:
        """For each part that can be sent a chunk: the device that holds it and has least to do."""
        free = [device for device in self.devices if device.ready and len(device.running) < DEPTH]
        free.sort(key=lambda device: (len(device.running), device.number), reverse=True)
        return {part: device for device in free for part in device.held}

    def _doomed(self) -> list[Task]:
        """List the chunks that have to go to a part that nobody serves, each with the last such part."""
        served: set[int] = set().union(*(it.parts | it.held for it in self.devices if it.serving))
        dead = max((part for part in range(len(self._costs)) if part not in served), default=-1)
        if dead < 0:
            return []
        tasks = [*self._queue, *(task for device in self.devices for task in device.running)]
        return [Task(task.chunk, dead) for task in sorted(tasks) if task.part <= dead and task.chunk in self._open]

    def _why(self, part: int) -> Dropped:
        """Say why nobody holds a part."""
        gone = [device for device in self.devices if part in device.parts]
        if not gone:
            return Dropped(None, part, "", "no device holds it")
        return Dropped(gone[0].number, part, gone[0].cause, gone[0].words)
