"""Everything that the actions of one plan share while they are carried out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ms_recover.model.manifest import Manifest
from ms_recover.model.outcome import ActionResult
from ms_recover.model.plan import Action
from ms_recover.model.steps import Step
from ms_recover.model.verdicts import ActionStatus
from ms_recover.stores.store import Store, never


def _ignore(count: int) -> None:
    pass


@dataclass(frozen=True, kw_only=True)
class ActionContext:
    """The plan's facts and the means of an action."""

    tree: Store
    """That of the slices which are not `elsewhere`."""
    elsewhere: Mapping[str, Store] = field(default_factory=dict)
    """Stores of other slices, by path."""
    step: Step | None = None
    """None where no manifest is written."""
    world_size: int = 0
    run_id: str | None = None
    lost: frozenset[int] = frozenset()
    """Ranks that the operator declared lost: what their slices left proves nothing."""
    verify: bool = True
    """Read each file back from the device and compare its digest before it gets its final name."""
    stop: Callable[[], bool] = never
    progress: Callable[[int], None] = _ignore
    """Given the bytes written since the last call."""

    def source(self, path: str) -> Store:
        """Return the store that has a slice."""
        return self.elsewhere.get(path, self.tree)


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """What an action left at its target."""

    status: ActionStatus
    source: str
    """Paths of the slices that bytes were taken from."""
    source_rank: int | None = None
    """That of the one slice, if it was copied."""
    bytes: int = 0
    """Bytes that were written; none where they lay there already."""
    digest: str | None = None
    kept: str | None = None
    """Path of the slice that was set aside."""
    manifest: Manifest | None = None
    """What the slice is proven by; None for a part of one."""
    dropped: tuple[str, ...] = ()
    """The sources that proved bad, and why."""

    @property
    def is_there(self) -> bool:
        """Whether the bytes lay there already."""
        return self.status == "already there"

    def result_of(self, action: Action) -> ActionResult:
        """Return the result of an action that ended well."""
        return ActionResult(
            rank=action.rank,
            source_rank=self.source_rank,
            source=self.source,
            target=action.target,
            status=self.status,
            bytes=self.bytes,
            digest=self.digest,
            borrowed=action.borrowed,
            set_aside=self.kept,
            dropped=self.dropped,
        )
