"""What applying a plan does, and the slices it relies on."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ms_recover.model.verdicts import Evidence


@dataclass(frozen=True, slots=True)
class FileState:
    """Size and modification time of a file as the plan saw it."""

    bytes: int
    mtime_ns: int
    """Modification time in nanoseconds since the epoch."""


@dataclass(frozen=True, slots=True)
class Replica:
    """A slice that can be copied from."""

    rank: int
    path: str
    """Relative to the root."""
    state: FileState
    """The state it must still have."""
    digest: str | None = None
    """Of the whole file, where it is known."""


@dataclass(frozen=True, slots=True)
class CopyAction:
    """Copy one slice from a rank that holds the same bytes."""

    rank: int
    replica: Replica
    target: str
    """Path relative to the root."""
    replaces: FileState | None
    """What lay under the target's name when the plan was made."""
    reason: str
    evidence: Evidence = "structure"
    group: tuple[int, ...] = ()
    """The ranks that hold the same slice."""
    alternatives: tuple[Replica, ...] = ()
    """Where to copy from when the source fails, in this order."""
    borrowed: tuple[str, ...] = ()
    """Parameters that may differ between peers, so that their values come from the source's rank."""
    set_aside: str | None = None
    """Where the slice that is replaced is kept, relative to the root, because nothing proves it damaged."""

    def because(self, reason: str) -> CopyAction:
        """Return the action with another reason."""
        return replace(self, reason=reason)

    @property
    def bytes(self) -> int:
        """Bytes to copy."""
        return self.replica.state.bytes

    @property
    def source_rank(self) -> int:
        """Rank to copy from."""
        return self.replica.rank

    @property
    def lenders(self) -> tuple[int, ...]:
        """Ranks that the borrowed values are of."""
        return (self.source_rank,) if self.borrowed else ()

    @property
    def source(self) -> str:
        """Slice to copy from, relative to the root."""
        return self.replica.path

    @property
    def replicas(self) -> tuple[Replica, ...]:
        """Every slice the action may read, the first choice first."""
        return (self.replica, *self.alternatives)
