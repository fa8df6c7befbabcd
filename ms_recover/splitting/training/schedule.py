"""The operations of a step's gradients, and the order in which devices get them (pure).

A part goes forward over as many chunks as there are parts behind it, then takes turns: one forward, one backward
(1F1B). So it holds the activations of at most one chunk more than there are parts behind it, and adds its gradients in
chunk order. The last part goes forward and backward over a chunk at once. A single part, held by all devices, has no
order: every chunk is on its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

DEPTH = 2
"""Most operations at a device: one that it computes, and one on its way."""


@dataclass(frozen=True, order=True)
class Op:
    """A chunk's way through a part: forward, backward, or both at once."""

    kind: Literal["backward", "both", "forward"]
    part: int
    chunk: int


def order_of(part: int, parts: int, chunks: Sequence[int]) -> tuple[Op, ...]:
    """Return the operations of a part in their order."""
    if part == parts - 1:
        return tuple(Op("both", part, chunk) for chunk in chunks)
    ahead = min(parts - 1 - part, len(chunks))
    found = [Op("forward", part, chunk) for chunk in chunks[:ahead]]
    for index, chunk in enumerate(chunks):
        if index + ahead < len(chunks):
            found.append(Op("forward", part, chunks[index + ahead]))
        found.append(Op("backward", part, chunk))
    return tuple(found)


def slot_of(op: Op, parts: int, index: int) -> tuple[str, int, int] | None:
    """Return the piece of memory that takes the output of an operation on the chunk at this index, or its gradients.

    It is none where no part needs them. Before two neighbours use a piece again, the one has read it: at most as many
    chunks are between them as the first of them goes ahead, and one more.
    """
    if op.kind == "forward":
        return "forward", op.part, index % (parts - op.part)
    return ("backward", op.part, index % (parts - op.part + 1)) if op.part else None


class Schedule:
    """The operations of a step that wait, run and are done."""

    def __init__(self, parts: int, chunks: Sequence[int]) -> None:
        self._parts = parts
        self._waiting = [list(order_of(part, parts, chunks)) for part in range(parts)]
        self._running: list[tuple[int, Op]] = []
        self._done: set[Op] = set()

    @property
    def finished(self) -> bool:
        """Whether nothing waits or runs."""
        return not self._running and not any(self._waiting)

    def assign(self, holders: Mapping[int, Sequence[int]]) -> list[tuple[int, Op]]:
        """Return the operations to send now, and mark them as running; `holders` are the parts of each device."""
        sent: list[tuple[int, Op]] = []
        while (found := self._next(holders)) is not None:
            device, op = found
            self._waiting[op.part].remove(op)
            self._running.append(found)
            sent.append((device, op))
        return sent

    def done(self, device: int, op: Op) -> None:
        """Handle an answer."""
        self._running.remove((device, op))
        self._done.add(op)

    def lost(self, device: int, op: Op) -> None:
        """Let an operation of a lost device wait again, in chunk order; of a single part, where each is on its own."""
        self._running.remove((device, op))
        self._waiting[op.part].append(op)
        self._waiting[op.part].sort()

    def drop(self, op: Op) -> None:
        """Give up a waiting operation."""
        self._waiting[op.part].remove(op)

    def _next(self, holders: Mapping[int, Sequence[int]]) -> tuple[int, Op] | None:
        """Return the next operation and the least busy device that can take it: backward first, late parts first."""
        busy = {device: sum(1 for other, _ in self._running if other == device) for device in holders}
        for device in sorted(
            (device for device in holders if busy[device] < DEPTH), key=lambda each: (busy[each], each)
        ):
            heads = [self._waiting[part][0] for part in holders[device] if self._waiting[part]]
            ready = [op for op in heads if self._has_inputs(op)]
            if ready:
                return device, min(ready, key=lambda op: (op.kind == "forward", -op.part))
        return None

    def _has_inputs(self, op: Op) -> bool:
        if op.kind == "backward":
            behind: Literal["both", "backward"] = "both" if op.part + 1 == self._parts - 1 else "backward"
            return Op(behind, op.part + 1, op.chunk) in self._done and Op("forward", op.part, op.chunk) in self._done
        return op.part == 0 or Op("forward", op.part - 1, op.chunk) in self._done
