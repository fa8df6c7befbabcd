"""What applying a plan does, and the slices it relies on."""

from __future__ import annotations

from dataclasses import dataclass

from ms_recover.model.verdicts import Evidence


@dataclass(frozen=True, slots=True)
class FileState:
    """Size and modification time of a file as the plan saw it.

    Parameters
    ----------
    bytes : int
        Size.
    mtime_ns : int
        Modification time, nanoseconds since the epoch.
    """

    bytes: int
    mtime_ns: int


@dataclass(frozen=True, slots=True)
class Replica:
    """A slice that can be copied from.

    Parameters
    ----------
    rank : int
        Whose it is.
    path : str
        Relative to the root.
    state : FileState
        What it must still be.
    digest : str or None
        Of the whole file, where it is known.
    """

    rank: int
    path: str
    state: FileState
    digest: str | None = None


@dataclass(frozen=True, slots=True)
class CopyAction:
    """Copy one slice from a rank that holds the same bytes.

    Parameters
    ----------
    rank : int
        Who gets it.
    replica : Replica
        Whom from.
    target : str
        Path relative to the root.
    replaces : FileState or None
        What lay under the target's name when the plan was made.
    reason : str
        Why this source.
    evidence : Evidence
        The ground for the source.
    group : tuple of int
        The ranks that hold the same slice.
    alternatives : tuple of Replica
        Where to copy from when the source fails, in this order.
    borrowed : tuple of str
        Parameters that may differ between peers, so that their values come from the source's rank.
    """

    rank: int
    replica: Replica
    target: str
    replaces: FileState | None
    reason: str
    evidence: Evidence = "structure"
    group: tuple[int, ...] = ()
    alternatives: tuple[Replica, ...] = ()
    borrowed: tuple[str, ...] = ()

    @property
    def bytes(self) -> int:
        """Bytes to copy."""
        return self.replica.state.bytes

    @property
    def source_rank(self) -> int:
        """Rank to copy from."""
        return self.replica.rank

    @property
    def source(self) -> str:
        """Slice to copy from, relative to the root."""
        return self.replica.path

    @property
    def replicas(self) -> tuple[Replica, ...]:
        """Every slice the action may read, the first choice first."""
        return (self.replica, *self.alternatives)

    @property
    def source_state(self) -> FileState:
        """What the source must still be."""
        return self.replica.state
