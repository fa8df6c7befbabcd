"""The devices of a splitter and the progress of its forward (pure)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from ms_recover.splitting.events import LossCause
from ms_recover.splitting.instructions import LoadPart, Loss, StartWorker

DeviceStatus = Literal["away", "starting", "loading", "at work", "retired", "out", "closed"]
"""away: no process serves the device. starting: its process is on its way. loading: its process lacks a part. at work:
its process has held all its parts. retired: it failed too often and gets no further process. out: the caller took it
out. closed: the splitter is."""


@dataclass(frozen=True, order=True)
class Task:
    """A chunk that has reached a part."""

    chunk: int
    part: int


@dataclass
class Device:
    """One device of the splitter."""

    number: int
    original: frozenset[int]
    """Parts assigned when the splitter was made."""
    parts: set[int] = field(default_factory=set)
    """Parts assigned now; more than the original ones after another device retired."""
    held: set[int] = field(default_factory=set)
    """Parts that its process has loaded."""
    generation: int = 0
    """Number of its process, from 1; 0 before the first."""
    status: DeviceStatus = "away"
    losses: int = 0
    """Processes lost since the last reset."""
    fruitless: int = 0
    """Processes in a row that were lost before they held their parts."""
    running: list[Task] = field(default_factory=list)
    """Chunks sent to its process and not answered, oldest first."""
    cause: LossCause = ""
    words: str = ""
    """The reason of its last loss."""

    @property
    def serving(self) -> bool:
        """Whether a process is there or on its way."""
        return self.status in ("starting", "loading", "at work")

    @property
    def ready(self) -> bool:
        """Whether its process is there."""
        return self.status in ("loading", "at work")

    @property
    def alive(self) -> bool:
        """Whether its process has held all its parts."""
        return self.status == "at work"

    @property
    def retired(self) -> bool:
        """Whether it gets no further process."""
        return self.status == "retired"

    def start(self) -> StartWorker:
        """Begin the next generation."""
        self.generation += 1
        self.status = "starting"
        return StartWorker(self.number, self.generation)

    def lose(self, cause: LossCause, words: str) -> list[Task]:
        """Give its process up; return the chunks that were sent to it."""
        tasks = self.running
        self.running = []
        self.held.clear()
        self.losses += 1
        self.fruitless = 0 if self.alive else self.fruitless + 1
        self.status = "away"
        self.cause = cause
        self.words = words
        return tasks

    def take_out(self) -> list[Task]:
        """Give its process up because the caller wants so; return the chunks that were sent to it."""
        tasks = self.running
        self.running = []
        self.held.clear()
        self.status = "out"
        self.cause = ""
        self.words = "it was taken out"
        return tasks

    def bring_back(self) -> StartWorker:
        """Begin anew with the original parts."""
        self.losses = 0
        self.fruitless = 0
        self.parts = set(self.original)
        return self.start()

    def load_missing(self) -> list[LoadPart]:
        """Return the loads of assigned parts that its process does not hold."""
        return [LoadPart(self.number, part) for part in sorted(self.parts - self.held)]


@dataclass
class Forward:
    """The progress of one forward."""

    total: int = 0
    """Number of its chunks."""
    waiting: list[Task] = field(default_factory=list)
    """Chunks at no device."""
    unfinished: set[int] = field(default_factory=set)
    """Chunks that are neither computed nor dropped."""
    parts: range = range(0)
    """The parts that each chunk passes through."""
    busy: bool = False
    first_raised: dict[int, int] = field(default_factory=dict)
    """For each chunk that raised, the device where it did so first."""
    strikes: dict[int, list[int]] = field(default_factory=dict)
    """For each chunk the devices lost while they computed it."""
    dropped: dict[int, Loss] = field(default_factory=dict)
    lost: list[int] = field(default_factory=list)
    """Devices lost meanwhile, in order."""
    redone: int = 0
    """Number of chunks sent again."""

    def stop(self) -> None:
        """Forget what is still to do."""
        self.waiting.clear()
        self.unfinished.clear()
        self.busy = False
