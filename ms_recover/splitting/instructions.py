"""Instructions of a splitter's state to its shell (pure)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ms_recover.splitting.events import EventKind, LossCause

FailureKind = Literal["start", "lost", "part", "none left"]
"""start: a device did not start. lost: a device with unfinished work is lost. part: a part raised on these inputs, or
these inputs end every process. none left: no device is left."""


@dataclass(frozen=True)
class StartWorker:
    """Start a process, the device's next generation."""

    device: int
    generation: int


@dataclass(frozen=True)
class LoadPart:
    """Load a part with its weights into the device's process."""

    device: int
    part: int


@dataclass(frozen=True)
class RunChunk:
    """Send a chunk to the device, for this part."""

    device: int
    part: int
    chunk: int


@dataclass(frozen=True)
class EndWorker:
    """End the device's process of this generation, if it still lives."""

    device: int
    generation: int


@dataclass(frozen=True)
class FinishForward:
    """End the forward with an answer; every chunk is computed or dropped."""


@dataclass(frozen=True)
class Loss:
    """The device and part at which work was lost, and the cause."""

    device: int | None
    part: int | None
    cause: LossCause
    words: str


@dataclass(frozen=True, kw_only=True)
class FailForward(Loss):
    """End the forward with an error."""

    kind: FailureKind


@dataclass(frozen=True, kw_only=True)
class EmitEvent:
    """Record an event and report it to the user."""

    kind: EventKind
    device: int | None = None
    part: int | None = None
    chunk: int | None = None
    cause: LossCause = ""
    words: str = ""


Instruction = StartWorker | LoadPart | RunChunk | EndWorker | FinishForward | FailForward | EmitEvent
