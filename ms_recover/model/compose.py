"""A slice put together from pieces of several others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from math import prod

from ms_recover.model.actions import FileState, Replica
from ms_recover.model.slices import Parameter
from ms_recover.model.units import Extent, Size
from ms_recover.model.verdicts import ComposeKind, Evidence


@dataclass(frozen=True, slots=True)
class Runs:
    """Byte runs of one length at regular distances, from one parameter's contents into another's."""

    source: int
    """Where the first run begins, in bytes from the start of the contents of the source's parameter."""
    target: int
    """Likewise in the target's parameter."""
    length: int
    loops: tuple[tuple[int, int, int], ...] = ()
    """How runs repeat, outermost first: how often, and the distances of the beginnings in source and target in bytes.
    No loop means one run.
    """

    @property
    def bytes(self) -> int:
        """Bytes of all runs together."""
        return self.length * prod(count for count, _, _ in self.loops)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Yield where each run begins in the source and in the target."""
        for steps in product(*(range(count) for count, _, _ in self.loops)):
            source, target = self.source, self.target
            for step, (_, source_stride, target_stride) in zip(steps, self.loops, strict=True):
                source += step * source_stride
                target += step * target_stride
            yield source, target


@dataclass(frozen=True, slots=True)
class Piece:
    """What one slice gives to one parameter."""

    source: int
    """Index into the action's sources."""
    runs: Runs
    source_bytes: int
    """Length of the parameter's contents in the source, in bytes."""
    digest: str | None = None
    """Of those contents, where it is known."""
    alternatives: tuple[int, ...] = ()
    """Other sources whose parameter has the same contents."""

    @property
    def whole(self) -> bool:
        """Whether the piece is all of the source's parameter."""
        return not self.runs.loops and self.runs.length == self.source_bytes

    @property
    def reads_all(self) -> bool:
        """Whether all of the source's parameter is read, each byte once and in order."""
        length = self.runs.length
        for count, stride, _ in reversed(self.runs.loops):
            if stride != length:
                return False
            length *= count
        return length == self.source_bytes


@dataclass(frozen=True, slots=True)
class ComposedParameter:
    """One parameter of the slice, and the pieces that are all of it."""

    parameter: Parameter
    """As the finished slice lists it."""
    pieces: tuple[Piece, ...]
    """They do not overlap; none for contents of no bytes."""


@dataclass(frozen=True, slots=True)
class MissingRegion:
    """A part of a parameter that no sound slice holds."""

    parameter: str
    region: tuple[Extent, ...]
    """First index and the one behind the last, for each dimension of the global tensor; of the slice's own tensor
    where no layout states the global one.
    """
    bytes: Size
    reason: str


@dataclass(frozen=True, slots=True)
class ComposeAction:
    """Put one slice together from several others."""

    rank: int
    sources: tuple[Replica, ...]
    model: int
    """Index of the source whose form is followed: format, CRC trailer, how large tensors are split."""
    parameters: tuple[ComposedParameter, ...]
    """In the order of the finished slice."""
    target: str
    """Path relative to the root."""
    replaces: FileState | None
    """What lay under the target's name when the plan was made."""
    reason: str
    evidence: Evidence = "layout"
    group: tuple[int, ...] = ()
    """The ranks that hold the same slice."""
    borrowed: tuple[str, ...] = ()
    """Parameters that may differ between ranks, so that their values come from another rank."""
    kind: ComposeKind = "compose"
    """``"compose"`` for a whole slice under its own name, ``"partial"`` for those of its parameters that survive,
    ``"complete"`` for all parameters of the stage.
    """
    set_aside: str | None = None
    """As for `ms_recover.model.actions.CopyAction`."""

    def because(self, reason: str) -> ComposeAction:
        """Return the action with another reason."""
        return replace(self, reason=reason)

    @property
    def bytes(self) -> int:
        """Bytes of contents that are put together."""
        return sum(item.parameter.nbytes for item in self.parameters)

    @property
    def replicas(self) -> tuple[Replica, ...]:
        """Every slice the action may read."""
        return self.sources

    @property
    def source_ranks(self) -> tuple[int, ...]:
        """Ranks that pieces come from, ascending."""
        return self._ranks_of(self.parameters)

    @property
    def lenders(self) -> tuple[int, ...]:
        """Ranks that the borrowed values are of, ascending."""
        return self._ranks_of(item for item in self.parameters if item.parameter.name in self.borrowed)

    def _ranks_of(self, items: Iterable[ComposedParameter]) -> tuple[int, ...]:
        used = {piece.source for item in items for piece in item.pieces}
        return tuple(sorted({self.sources[index].rank for index in used}))
