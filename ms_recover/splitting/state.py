"""The decisions of a splitter (pure): events in, instructions out.

Every public method of `SplitterState` is an event; it returns the instructions that the shell has to carry out, in
order. Devices, parts and chunks are numbers: processes, sockets, clocks, weights and inputs belong to the shell. One
process after the other serves a device; the generation names the process, and messages of former ones are ignored.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from ms_recover.splitting.events import LossCause
from ms_recover.splitting.instructions import (
    EmitEvent,
    EndWorker,
    FailForward,
    FailureKind,
    FinishForward,
    Instruction,
    LoadPart,
    Loss,
    RunChunk,
)
from ms_recover.splitting.progress import Device, Forward, Task

Policy = Literal["plain", "raise", "skip", "recover"]
"""plain: lost work raises, an exception in a part harms no device. raise: the same, but an exception costs the device.
skip: lost work is left out, and survivors take over lost parts. recover: a fresh process takes over and does lost work
again."""
IN_A_ROW = 3
"""Most fresh processes in a row that a device gets without use."""
DEPTH = 2
"""Most chunks at a device: one that it computes, and one on its way."""


class SplitterState:
    """The parts, the work and the remaining work of every device.

    `holders` are each device's parts, `costs` those of each part. Under "recover" and "skip", and where the caller
    takes a device out, a part without device moves to the survivor with the least total cost. Under "recover" a device
    retires after `max_restarts` fresh processes. At most `IN_A_ROW` of them in a row may fail before they hold their
    parts, or fail over the same chunk.
    """

    def __init__(
        self, holders: Sequence[Sequence[int]], costs: Sequence[float], policy: Policy, max_restarts: int = 3
    ) -> None:
        self.devices = [Device(number, frozenset(parts), set(parts)) for number, parts in enumerate(holders)]
        self.forward = Forward()
        self._costs = tuple(costs)
        self._policy = policy
        self._max_restarts = max_restarts
        self._in_a_row = min(max_restarts, IN_A_ROW)

    @property
    def policy(self) -> Policy:
        """What happens to lost work."""
        return self._policy

    @property
    def settled(self) -> bool:
        """Whether no device is still starting or loading."""
        return not any(device.serving and not device.alive for device in self.devices)

    def begun(self) -> list[Instruction]:
        """Start every device."""
        return [device.start() for device in self.devices]

    def start_fault(self) -> FailForward | None:
        """Return why the splitter cannot work once it is settled: a device is away, under "recover" all of them."""
        away = [device for device in self.devices if not device.alive]
        if not away or (self._policy == "recover" and len(away) < len(self.devices)):
            return None
        first = away[0]
        return FailForward(kind="start", device=first.number, part=None, cause=first.cause, words=first.words)

    def ready(self, device: int, generation: int) -> list[Instruction]:
        """Handle a process that is connected."""
        serving = self._current(device, generation)
        if serving is None:
            return []
        serving.status = "loading"
        return [*serving.load_missing()]

    def held(self, device: int, generation: int, part: int) -> list[Instruction]:
        """Handle a process that has loaded a part."""
        serving = self._current(device, generation)
        if serving is None:
            return []
        serving.held.add(part)
        events: list[Instruction] = []
        if not serving.alive and serving.parts <= serving.held:
            serving.status = "at work"
            kind: Literal["recovered", "ready"] = "recovered" if generation > 1 else "ready"
            events.append(EmitEvent(kind=kind, device=device, cause=serving.cause))
            self._give_back(serving)
        return events + self._dispatch()

    def asked(self, chunks: Sequence[int], parts: range | None = None) -> list[Instruction]:
        """Begin a forward over these chunks, through these parts, by default all.

        No forward before may have used the numbers of the chunks.
        """
        parts = range(len(self._costs)) if parts is None else parts
        waiting = [Task(chunk, parts.start) for chunk in chunks]
        self.forward = Forward(total=len(chunks), waiting=waiting, unfinished=set(chunks), parts=parts, busy=True)
        return self._dispatch()

    def ran(self, device: int, generation: int, chunk: int, part: int) -> list[Instruction]:
        """Handle a chunk that a device has computed."""
        serving = self._current(device, generation)
        if serving is None or Task(chunk, part) not in serving.running:
            return []
        serving.running.remove(Task(chunk, part))
        if chunk in self.forward.unfinished:
            if part + 1 < self.forward.parts.stop:
                self.forward.waiting.append(Task(chunk, part + 1))
            else:
                self.forward.unfinished.discard(chunk)
        return self._dispatch()

    def raised(self, device: int, generation: int, chunk: int, part: int, words: str) -> list[Instruction]:
        """Handle an exception: the first costs the device, one on another process is the fault of the inputs."""
        serving = self._current(device, generation)
        if serving is None or Task(chunk, part) not in serving.running:
            return []
        wanted = chunk in self.forward.unfinished
        known = self.forward.first_raised
        if self._policy == "plain" or (self._policy == "recover" and (chunk in known or not wanted)):
            serving.running.remove(Task(chunk, part))
            if not wanted:
                return self._dispatch()
            return self._forgive(known.values()) + self._fail("part", Loss(device, part, "raised", words))
        known[chunk] = device
        return self.lost(device, generation, "raised", words)

    def lost(self, device: int, generation: int, cause: LossCause, words: str) -> list[Instruction]:
        """Handle the loss of a process: it died, froze, was too slow, raised or did not start."""
        serving = self._current(device, generation)
        if serving is None:
            return []
        tasks = serving.lose(cause, words)
        forward = self.forward
        if forward.busy:
            forward.lost.append(device)
        part = tasks[0].part if tasks else None
        chunk = tasks[0].chunk if tasks else None
        done: list[Instruction] = [
            EndWorker(device, generation),
            EmitEvent(kind="lost", device=device, part=part, chunk=chunk, cause=cause, words=words),
        ]
        deadly = self._is_deadly(device, tasks)
        if deadly:
            done += self._forgive(struck for strikes in forward.strikes.values() for struck in strikes)
        if self._policy == "recover":
            retires = self._keeps_failing(serving, () if deadly else tasks)
            done += self._retire(serving) if retires else [serving.start()]
        elif self._policy == "skip":
            done += self._hand_over()
        if deadly:
            why = f"{words}; every process that got these rows was lost"
            return done + self._fail("part", Loss(device, part, cause, why))
        wanted = [task for task in tasks if task.chunk in forward.unfinished]
        if self._policy == "recover":
            done += self._repeat(device, wanted)
        elif self._policy == "skip":
            for task in wanted:
                done += self._drop(task.chunk, Loss(device, task.part, cause, words))
        elif wanted:
            done += self._fail("lost", Loss(device, part, cause, words))
        return done + self._dispatch()

    def reset(self) -> list[Instruction]:
        """Bring every device back."""
        done: list[Instruction] = [EmitEvent(kind="reset")]
        for device in self.devices:
            if not device.serving:
                done.append(device.bring_back())
                continue
            device.losses = 0
            device.fruitless = 0
            device.parts = set(device.original)
            if device.ready:
                done += device.load_missing()
        return done

    def taken_out(self, device: int) -> list[Instruction]:
        """Take a device out until the caller brings it back; others do its work."""
        found = self.devices[device]
        if not found.serving:
            return []
        tasks = found.take_out()
        done: list[Instruction] = [EndWorker(device, found.generation), EmitEvent(kind="removed", device=device)]
        done += self._hand_over()
        done += self._repeat(device, [task for task in tasks if task.chunk in self.forward.unfinished])
        return done + self._dispatch()

    def brought_back(self, device: int) -> list[Instruction]:
        """Bring back a device that was lost, retired or taken out."""
        found = self.devices[device]
        if found.serving:
            return []
        return [EmitEvent(kind="reset", device=device), found.bring_back(), *self._hand_over()]

    def closed(self) -> None:
        """End all devices: no process is left."""
        for device in self.devices:
            device.held.clear()
            device.running.clear()
            device.status = "closed"

    def awaits(self, device: int, generation: int) -> bool:
        """Whether a device waits for the process of this generation, or has it."""
        return self._current(device, generation) is not None

    def handed_over(self) -> list[Instruction]:
        """Give parts that no process serves to devices at work, until the next reset."""
        return self._hand_over()

    def abandoned(self) -> list[Instruction]:
        """Forget the forward: its caller no longer waits."""
        self.forward.stop()
        return []

    def _is_deadly(self, device: int, tasks: Sequence[Task]) -> bool:
        """Whether this chunk has killed more processes than independent failures explain, or those of every device."""
        if self._policy != "recover" or not tasks or tasks[0].chunk not in self.forward.unfinished:
            return False
        strikes = self.forward.strikes.setdefault(tasks[0].chunk, [])
        strikes.append(device)
        others = [other for other in self.devices if other.serving or other.number == device]
        exhausted = all(strikes.count(other.number) > self._in_a_row for other in others)
        return len(strikes) > 2 * (self._in_a_row + 1) or (exhausted and len(strikes) > 1)

    def _keeps_failing(self, device: Device, tasks: Sequence[Task]) -> bool:
        """Whether a device has used up its fresh processes: in all, in a row, or over the same chunk."""
        strikes = self.forward.strikes.get(tasks[0].chunk, []) if tasks else []
        in_a_row = max(device.fruitless, strikes.count(device.number))
        return device.losses > self._max_restarts or in_a_row > self._in_a_row

    def _forgive(self, devices: Iterable[int]) -> list[Instruction]:
        """Take back losses that the inputs caused."""
        done: list[Instruction] = []
        for device in (self.devices[number] for number in devices):
            device.losses = max(0, device.losses - 1)
            if device.retired and device.losses <= self._max_restarts:
                device.fruitless = 0
                done.append(device.start())
        return done

    def _current(self, device: int, generation: int) -> Device | None:
        """Return the device unless the message comes from a former process."""
        found = self.devices[device]
        return found if found.generation == generation and found.serving else None

    def _retire(self, device: Device) -> list[Instruction]:
        """Retire a device, and hand over its parts."""
        device.status = "retired"
        why = EmitEvent(kind="retired", device=device.number, cause=device.cause, words=device.words)
        return [why, *self._hand_over()]

    def _hand_over(self) -> list[Instruction]:
        """Give each part that no serving device has to the survivor with the least total cost.

        Under "plain" and "raise" the parts of lost devices stay theirs: the caller is to know.
        """
        done: list[Instruction] = []
        survivors = [device for device in self.devices if device.serving]
        gone = [device for device in self.devices if not device.serving]
        for part in range(len(self._costs)) if survivors else ():
            former = [device for device in gone if part in device.parts]
            expected = self._policy in ("plain", "raise") and any(device.status == "away" for device in former)
            if expected or not former or any(part in device.parts for device in survivors):
                continue
            heir = min(survivors, key=lambda other: (sum(self._costs[own] for own in other.parts), other.number))
            heir.parts.add(part)
            heir.held.discard(part)  # of an earlier time, before it was given back
            words = f"from device {former[0].number}"
            done.append(EmitEvent(kind="moved", device=heir.number, part=part, words=words))
            if heir.ready:
                done.append(LoadPart(heir.number, part))
        return done

    def _give_back(self, owner: Device) -> None:
        """Let survivors give up the parts of a device that is back: a part in training has one holder."""
        for heir in self.devices:
            given = (heir.parts - heir.original) & owner.original
            heir.parts -= given

    def _repeat(self, device: int, tasks: Sequence[Task]) -> list[Instruction]:
        """Let work that a device was at run again."""
        self.forward.redone += len(tasks)
        self.forward.waiting += tasks
        return [EmitEvent(kind="redone", device=device, part=task.part, chunk=task.chunk) for task in tasks]

    def _drop(self, chunk: int, why: Loss) -> list[Instruction]:
        self.forward.unfinished.discard(chunk)
        self.forward.dropped[chunk] = why
        return [
            EmitEvent(kind="dropped", device=why.device, part=why.part, chunk=chunk, cause=why.cause, words=why.words)
        ]

    def _fail(self, kind: FailureKind, why: Loss) -> list[Instruction]:
        self.forward.stop()
        return [FailForward(kind=kind, device=why.device, part=why.part, cause=why.cause, words=why.words)]

    def _dispatch(self) -> list[Instruction]:
        """Drop the chunks that no device can compute, send those that one can, end a forward that is done."""
        forward = self.forward
        if not forward.busy:
            return []
        done: list[Instruction] = []
        for task in self._unservable():
            why = self._loss_of(task.part)
            if self._policy != "skip":
                kind: FailureKind = "none left" if self._policy == "recover" else "lost"
                return self._fail(kind, why)
            done += self._drop(task.chunk, why)
        done += self._send_waiting()
        if forward.unfinished:
            return done
        forward.busy = False
        if forward.dropped and len(forward.dropped) == forward.total:
            why = next(iter(forward.dropped.values()))
            return done + self._fail("none left", why)
        return [*done, FinishForward()]

    def _send_waiting(self) -> list[Instruction]:
        """Send waiting chunks, the oldest first, to devices with room."""
        done: list[Instruction] = []
        left: list[Task] = []
        room = self._room()
        for task in sorted(task for task in self.forward.waiting if task.chunk in self.forward.unfinished):
            device = room.get(task.part)
            if device is None:
                left.append(task)
                continue
            device.running.append(task)
            done.append(RunChunk(device.number, task.part, task.chunk))
            room = self._room()
        self.forward.waiting = left
        return done

    def _room(self) -> dict[int, Device]:
        """Return for each part the least busy device that has it now and can take a chunk.

        What a device still holds of a part that it gave back is not used: training has gone on since.
        """
        free = [device for device in self.devices if device.ready and len(device.running) < DEPTH]
        free.sort(key=lambda device: (len(device.running), device.number), reverse=True)
        return {part: device for device in free for part in device.parts & device.held}

    def _unservable(self) -> list[Task]:
        """Return the chunks that still need a part without any device, each with the last such part."""
        served: set[int] = set().union(*(device.parts for device in self.devices if device.serving))
        dead = max((part for part in self.forward.parts if part not in served), default=-1)
        if dead < 0:
            return []
        tasks = [*self.forward.waiting, *(task for device in self.devices for task in device.running)]
        unfinished = self.forward.unfinished
        return [Task(task.chunk, dead) for task in sorted(tasks) if task.part <= dead and task.chunk in unfinished]

    def _loss_of(self, part: int) -> Loss:
        """Return why no device can compute a part."""
        gone = [device for device in self.devices if part in device.parts]
        if not gone:
            return Loss(None, part, "", "no device holds it")
        return Loss(gone[0].number, part, gone[0].cause, gone[0].words)
