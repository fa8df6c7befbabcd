"""Everything that the actions of one plan share while they are carried out."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ms_recover.execution.manifests import own_manifest
from ms_recover.execution.set_aside import keep_outvoted
from ms_recover.execution.targets import check_place, check_refused
from ms_recover.model.manifest import Manifest
from ms_recover.model.outcome import ActionResult
from ms_recover.model.places import Obstacle
from ms_recover.model.plan import Action
from ms_recover.model.steps import Step
from ms_recover.model.verdicts import ActionStatus
from ms_recover.stores.atomic import AtomicFile
from ms_recover.stores.directories import DirectorySyncs, make_directory
from ms_recover.stores.local_store import LocalStore
from ms_recover.stores.store import Store, never
from ms_recover.system_errors import explained

if TYPE_CHECKING:
    from ms_recover.execution.journal import Journal


def _ignore(count: int) -> None:
    pass


@dataclass(frozen=True, kw_only=True)
class ActionContext:
    """The plan's facts and the means of an action."""

    root: str
    follow: tuple[str, ...] = ()
    """As for `ms_recover.model.plan.Plan`."""
    refused: Mapping[str, Obstacle] = field(default_factory=dict)
    """Targets that are not written because of what is in the way, by path."""
    elsewhere: Mapping[str, Store] = field(default_factory=dict)
    """Stores of the slices that do not lie below the root, by path."""
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
    syncs: DirectorySyncs | None = None
    """Directories that the caller syncs when everything is done; None to sync them at once."""
    journal: Journal | None = None

    def check_place(self, action: Action) -> None:
        """Check that an action's target can be written; errors as for `ms_recover.execution.targets.check_place`."""
        check_refused(action.target, self.refused)
        check_place(self.root, action.target, action.rank, self.follow)

    def source(self, path: str) -> Store:
        """Return the store that has a slice."""
        return self.elsewhere.get(path) or LocalStore(self.root)

    def path(self, relative: str) -> str:
        """Return the absolute path of a file of the tree."""
        return os.path.join(self.root, relative)

    def own_manifest(self, action: Action) -> Manifest | None:
        """Return the manifest that a lost or damaged slice left, where it proves the bytes that an action must give."""
        if action.rank in self.lost:
            return None
        return own_manifest(self.path(action.target), action.rank, self.step, self.run_id)

    def new_file(self, target: str, source: str) -> AtomicFile:
        """Return the file that is to become a target; a missing directory is made like that of the source."""
        path, like = self.path(target), os.path.dirname(self.path(source))
        with explained("making the directory of", path):
            make_directory(os.path.dirname(path), like if os.path.isdir(like) else self.root, self.root, self.syncs)
        return AtomicFile(path)

    def commit(self, file: AtomicFile, action: Action | None = None) -> str | None:
        """Give a durable file its final name; return where the slice is kept that an action sets aside before."""
        kept = None
        if action is not None and action.set_aside is not None:
            kept = keep_outvoted(LocalStore(self.root), action.target)
        with explained("committing", file.target):
            file.commit(self.syncs)
        return kept

    def kept_before(self, action: Action) -> str | None:
        """Return where the slice lies that an action has set aside, whose target was found there."""
        kept = action.set_aside
        return kept if kept is not None and os.path.lexists(self.path(kept)) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What an action left at its target."""

    status: ActionStatus
    bytes: int = 0
    """Bytes that were written; none where they lay there already."""
    digest: str | None = None
    kept: str | None = None
    """Path of the slice that was set aside."""


def result_of(action: Action, source_rank: int | None, source: str, written: Written) -> ActionResult:
    """Return the result of an action that ended well."""
    return ActionResult(
        rank=action.rank,
        source_rank=source_rank,
        source=source,
        target=action.target,
        status=written.status,
        bytes=written.bytes,
        digest=written.digest,
        borrowed=action.borrowed,
        set_aside=written.kept,
    )
