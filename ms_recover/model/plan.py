"""A recovery plan: what is there, what will be copied from where, and why."""

from __future__ import annotations

from dataclasses import dataclass

from ms_recover.model.inventory import Note
from ms_recover.model.steps import Step

PLAN_VERSION = 1


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
class RankVerdict:
    """What a plan says about one rank at one step.

    Parameters
    ----------
    rank : int
        The rank.
    state : str
        ``"ok"``, ``"missing"``, ``"damaged"`` or ``"lost"`` (declared lost by the operator).
    verdict : str
        ``"keep"``, ``"copy"`` or ``"unrecoverable"``.
    reason : str
        Why, for the operator.
    path : str or None
        The rank's slice, relative to the root: the file kept, or the target of the copy.
    source_rank : int or None
        Rank to copy from.
    source : str or None
        Its slice, relative to the root.
    evidence : str or None
        What the slice rests on: ``"manifest"``, ``"vote"`` (other ranks hold the same contents) or ``"structure"``.
    """

    rank: int
    state: str
    verdict: str
    reason: str
    path: str | None = None
    source_rank: int | None = None
    source: str | None = None
    evidence: str | None = None


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
    evidence : str
        What the source rests on; see `RankVerdict`.
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
    evidence: str = "structure"
    group: tuple[int, ...] = ()
    alternatives: tuple[Replica, ...] = ()
    borrowed: tuple[str, ...] = ()

    @property
    def source_rank(self) -> int:
        """Rank to copy from."""
        return self.replica.rank

    @property
    def source(self) -> str:
        """Slice to copy from, relative to the root."""
        return self.replica.path

    @property
    def source_state(self) -> FileState:
        """What the source must still be."""
        return self.replica.state


@dataclass(frozen=True, slots=True)
class GroupWrite:
    """Write the ``group_info.pb`` that a recovered directory had lost.

    Parameters
    ----------
    rank : int
        Its owner.
    target : str
        Path relative to the root.
    restore_ranks : tuple of int
        The ranks it lists.
    """

    rank: int
    target: str
    restore_ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RejectedStep:
    """A step newer than the planned one, and why it cannot be recovered."""

    step: Step
    reason: str


@dataclass(frozen=True, slots=True)
class StepAssessment:
    """Every rank's verdict at one step.

    Parameters
    ----------
    step : Step
        The step.
    ranks : tuple of RankVerdict
        Index = rank.
    actions : tuple of CopyAction
        One per rank whose verdict is ``"copy"``, by rank.
    run_id : str or None
        The run whose slices these are; None when no manifest says so.
    disagreements : tuple of str
        Groups whose members hold different contents, with nothing to say who is right.
    """

    step: Step
    ranks: tuple[RankVerdict, ...]
    actions: tuple[CopyAction, ...]
    run_id: str | None = None
    disagreements: tuple[str, ...] = ()

    @property
    def recoverable(self) -> bool:
        """Whether every rank keeps its slice or gets one."""
        return all(rank.verdict != "unrecoverable" for rank in self.ranks)


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do so that every rank has its slice of one step.

    Parameters
    ----------
    root : str
        Absolute path of the tree.
    world_size : int
        Number of ranks.
    world_size_from : str
        What the world size rests on.
    step : Step or None
        The newest recoverable step; None when there is none.
    actions : tuple of CopyAction
        By rank; empty when nothing is to do or nothing can be done.
    group_files : tuple of GroupWrite
        By rank.
    ranks : tuple of RankVerdict
        At `step`, or at the newest step when none is recoverable.
    rejected_steps : tuple of RejectedStep
        Newest first.
    notes : tuple of Note
        What was seen and not used, and inputs that are damaged.
    run_id : str or None
        The run whose slices the step is made of; None when no manifest says so.
    disagreements : tuple of str
        Why nothing is planned although slices are there: replicas differ, with nothing to say who is right.
    """

    root: str
    world_size: int
    world_size_from: str
    step: Step | None
    actions: tuple[CopyAction, ...]
    group_files: tuple[GroupWrite, ...]
    ranks: tuple[RankVerdict, ...]
    rejected_steps: tuple[RejectedStep, ...] = ()
    notes: tuple[Note, ...] = ()
    run_id: str | None = None
    disagreements: tuple[str, ...] = ()

    @property
    def recoverable(self) -> bool:
        """Whether there is a step that every rank can be brought to."""
        return self.step is not None

    @property
    def bytes_to_copy(self) -> int:
        """Bytes that the actions will copy."""
        return sum(action.source_state.bytes for action in self.actions)
