"""What applying a plan did."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from ms_recover.model.actions import CopyAction
from ms_recover.model.plan import Action, RejectedStep, of_this_run
from ms_recover.model.steps import Step
from ms_recover.model.units import Digest, Rank, Size
from ms_recover.model.verdicts import ActionStatus


@dataclass(frozen=True, slots=True)
class ActionResult:
    """What became of one action."""

    RECORD = "rank source_rank source target status bytes digest error dropped borrowed? set_aside?"

    rank: Rank
    source_rank: Rank | None
    """Whose it is a copy of; None when it is put together from several."""
    source: str
    """Path relative to the root, as `target`."""
    target: str
    status: ActionStatus
    """Its end; ``already there``: the target held the source's bytes."""
    bytes: Size = 0
    """Bytes copied."""
    digest: Digest | None = None
    """``xxh3_128:`` and the digest of the bytes under the target's name, in hexadecimal."""
    error: str | None = None
    dropped: tuple[str, ...] = ()
    """Sources that proved damaged and were passed over, and why."""
    borrowed: tuple[str, ...] = ()
    """Parameters of which each rank has its own values, and the slice now has those of another rank."""
    set_aside: str | None = None
    """Where the slice that lay there is kept, because nothing proves it damaged."""

    @classmethod
    def failed(cls, action: Action, error: str) -> ActionResult:
        """Return the result of an action that ended by an error."""
        if isinstance(action, CopyAction):
            source_rank, source = action.source_rank, action.source
        else:
            source_rank, source = None, f"{len(action.source_ranks)} slices"
        return cls(action.rank, source_rank, source, action.target, "failed", error=error)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What applying a plan did."""

    RECORD = (
        "version root step verified partial ok results group_files errors rejected_steps documents?of_iteration "
        "meta_files? strategy_files? set_aside?"
    )

    version: ClassVar[Literal[1]] = 1
    root: str
    """Absolute path of the tree."""
    step: Step
    """The step every rank now has, when nothing failed."""
    results: tuple[ActionResult, ...]
    """In the plan's order."""
    group_files: tuple[str, ...]
    """Rank lists that were written, relative to the root."""
    verified: bool
    """Whether targets were read back."""
    errors: tuple[str, ...] = ()
    """Errors that belong to no action."""
    exit_code: int = 0
    """0, or the code of the gravest error."""
    partial: bool = False
    """Whether only parts of slices were written, because they cannot be had whole."""
    rejected_steps: tuple[RejectedStep, ...] = ()
    """Newer steps that the plan gave up, newest first."""
    documents: tuple[str, ...] = ()
    """Documents of MindFormers that were written, relative to the root."""
    meta_files: tuple[str, ...] = ()
    """``meta.json`` of MindFormers that were written, relative to the root."""
    strategy_files: tuple[str, ...] = ()
    """Strategy files that were written, relative to the root."""
    set_aside: tuple[str, ...] = ()
    """Slices of steps that were given up, by their names now, relative to the root."""

    @property
    def ok(self) -> bool:
        """Whether everything was done, and nothing is wrong."""
        return self.exit_code == 0

    @property
    def of_iteration(self) -> bool:
        """Whether the step has documents of MindFormers."""
        return self.step.is_iteration

    @property
    def failed(self) -> bool:
        """Whether something that the plan had to do was not done."""
        return bool(self.errors) or any(result.status == "failed" for result in self.results)

    @property
    def given_up(self) -> tuple[RejectedStep, ...]:
        """Newer steps of the planned run."""
        return of_this_run(self.rejected_steps)
