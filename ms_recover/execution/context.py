"""Everything that the actions of one plan share while they are carried out."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ms_recover.model.outcome import ActionResult
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
    elsewhere: Mapping[str, Store] = field(default_factory=dict)
    """Stores of the slices that do not lie below the root, by path."""
    step: Step | None = None
    """None where no manifest is written."""
    world_size: int = 0
    run_id: str | None = None
    verify: bool = True
    """Read each file back from the device and compare its digest before it gets its final name."""
    stop: Callable[[], bool] = never
    progress: Callable[[int], None] = _ignore
    """Given the bytes written since the last call."""
    syncs: DirectorySyncs | None = None
    """Directories that the caller syncs when everything is done; None to sync them at once."""
    journal: Journal | None = None

    def source(self, path: str) -> Store:
        """Return the store that has a slice."""
        return self.elsewhere.get(path) or LocalStore(self.root)

    def path(self, relative: str) -> str:
        """Return the absolute path of a file of the tree."""
        return os.path.join(self.root, relative)

    def new_file(self, target: str, source: str) -> AtomicFile:
        """Return the file that is to become a target; a missing directory is made like that of the source."""
        path, like = self.path(target), os.path.dirname(self.path(source))
        with explained("making the directory of", path):
            make_directory(os.path.dirname(path), like if os.path.isdir(like) else self.root, self.root, self.syncs)
        return AtomicFile(path)

    def commit(self, file: AtomicFile) -> None:
        """Give a durable file its final name."""
        with explained("committing", file.target):
            file.commit(self.syncs)


def result_of(
    action: Action, source_rank: int | None, source: str, status: ActionStatus, size: int, digest: str
) -> ActionResult:
    """Return the result of an action that wrote `size` bytes, or found its target there."""
    return ActionResult(
        rank=action.rank,
        source_rank=source_rank,
        source=source,
        target=action.target,
        status=status,
        bytes=size,
        digest=digest,
        borrowed=action.borrowed,
    )
