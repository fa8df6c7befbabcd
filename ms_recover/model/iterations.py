"""The iterations of a MindFormers "weights 2.0" tree: the documents beside their files, and what these state."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, TypeVar

from ms_recover.model.actions import FileState
from ms_recover.model.shard_metadata import CommonInfo, ShardMetadata
from ms_recover.model.steps import Step
from ms_recover.model.units import Count

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Document(Generic[_T]):
    """A document of MindFormers: ``metadata.json``, ``common.json`` or the tracker."""

    RECORD = "path there problem"

    path: str
    """Relative to the root, also of one that is not there."""
    state: FileState | None = None
    """None when it is not there."""
    value: _T | None = field(default=None, repr=False)
    """Its contents; None when it is not there or damaged."""
    problem: str | None = None
    """Why it cannot be read."""
    digest: str = ""
    """Of its bytes, where they were read."""

    @property
    def there(self) -> bool:
        """Whether there is such a file."""
        return self.state is not None


@dataclass(frozen=True, slots=True)
class Tracker:
    """The document that names the newest whole iteration, and that iteration, as a record."""

    RECORD = "*document iteration"

    document: Document[int]

    @property
    def iteration(self) -> Count | None:
        """None where it cannot be read."""
        return self.document.value


@dataclass(frozen=True, slots=True, kw_only=True)
class Iteration:
    """The directory of one iteration."""

    RECORD = "*step directory metadata common"

    step: Step
    directory: str
    """Relative to the root; empty where the root is the directory."""
    metadata: Document[ShardMetadata]
    common: Document[CommonInfo]
    global_step: int | None = None
    """The value that its optimizer files hold; read only where `common` cannot be."""
