"""The batches of the steps since the last snapshot, to repeat these steps (pure).

MindSpore cannot undo a step: an optimizer writes over the weights. Where a device is lost while some parts have stepped
and others have not, all go back to the snapshot, and these batches bring them to the step again, without a file such as
MindSpore's checkpoints and with the bits of a run that nobody disturbed. That holds with operators that give the same
bits each time; checked with MindSpore 2.10.0 on CPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ms_recover.splitting.events import Rows


@dataclass(frozen=True, eq=False)
class Entry:
    """A step: its batch, and the chunks that counted in it."""

    step: int
    """Number of the step, from 1."""
    batch: Any
    cuts: tuple[Rows, ...]
    """The rows of each chunk of the whole batch, in order."""
    counted: tuple[int, ...]
    """Chunks, by their place in `cuts`, of which the gradient is made."""

    @property
    def total(self) -> int:
        """Number of rows of the batch."""
        return self.cuts[-1][1]


class Journal:
    """The entries behind the last snapshot."""

    def __init__(self) -> None:
        self.snapshot = 0
        """Step of the last snapshot."""
        self._entries: dict[int, Entry] = {}

    def add(self, entry: Entry) -> None:
        """Add a finished step, the next one."""
        if entry.step != self.snapshot + len(self._entries) + 1:
            raise ValueError(f"step {entry.step} does not follow step {self.snapshot + len(self._entries)}")
        self._entries[entry.step] = entry

    def taken(self, step: int) -> None:
        """Handle a snapshot that is complete: earlier steps are never repeated again."""
        self.snapshot = step
        self._entries = {number: entry for number, entry in self._entries.items() if number > step}

    def entries(self, steps: Sequence[int]) -> list[Entry]:
        """Return these steps."""
        return [self._entries[step] for step in steps]
