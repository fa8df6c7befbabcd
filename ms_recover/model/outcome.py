"""What applying a plan did."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ms_recover.model.plan import RejectedStep
from ms_recover.model.steps import Step
from ms_recover.model.verdicts import ActionStatus

OUTCOME_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class ActionResult:
    """What became of one action.

    Parameters
    ----------
    rank : int
        Who got the slice.
    source_rank : int or None
        Whose it is a copy of; None when it is put together from several.
    source, target : str
        Paths relative to the root.
    status : ActionStatus
        Its end; ``already there``: the target held the source's bytes.
    bytes : int
        Bytes copied.
    digest : str or None
        ``xxh3_128:`` and the digest of the bytes under the target's name, in hexadecimal.
    error : str or None
        What went wrong.
    dropped : tuple of str
        Sources that proved damaged and were passed over, and why.
    """

    rank: int
    source_rank: int | None
    source: str
    target: str
    status: ActionStatus
    bytes: int = 0
    digest: str | None = None
    error: str | None = None
    dropped: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """What applying a plan did.

    Parameters
    ----------
    root : str
        Absolute path of the tree.
    step : Step
        The step every rank now has, when nothing failed.
    results : tuple of ActionResult
        In the plan's order.
    group_files : tuple of str
        Rank lists that were written, relative to the root.
    verified : bool
        Whether targets were read back.
    errors : tuple of str
        Errors that belong to no action.
    exit_code : int
        0, or the code of the gravest error.
    partial : bool
        Whether only parts of slices were written, because they cannot be had whole.
    rejected_steps : tuple of RejectedStep
        Newer steps that the plan gave up, newest first.
    """

    root: str
    step: Step
    results: tuple[ActionResult, ...]
    group_files: tuple[str, ...]
    verified: bool
    errors: tuple[str, ...] = ()
    exit_code: int = 0
    partial: bool = False
    rejected_steps: tuple[RejectedStep, ...] = ()
