"""The backup of one step: files by their paths in the tree, and the objects that hold their bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from ms_recover.errors import VerificationError
from ms_recover.model.inventory import Note
from ms_recover.model.steps import Step
from ms_recover.model.units import Count

BACKUP_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupFile:
    """One file of the tree."""

    path: str
    """Relative to the root of the tree."""
    digest: str
    """Of its bytes, as manifests name it."""
    size: int
    """Bytes."""
    mode: int
    """Permissions."""
    mtime_ns: int
    """Modification time in nanoseconds since the epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupIndex:
    """The files of one step, which all lie in the backup."""

    step: Step
    run_id: str
    """Empty where no manifest names it."""
    world_size: int
    root: str
    """The tree that was copied."""
    made: int
    """When, in seconds since the epoch."""
    files: tuple[BackupFile, ...]
    """Sorted by path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupOutcome:
    """What a copy did."""

    RECORD = (
        "version root url step index files objects bytes uploaded uploaded_bytes verified read_back dry_run "
        "passed_over?"
    )

    version: ClassVar[Literal[1]] = 1
    root: str
    url: str
    """Of the backup, without secrets."""
    step: Step
    index: str
    """Path of the index in the backup."""
    files: Count
    objects: Count
    """Different contents among the files."""
    bytes: Count
    """Of all objects."""
    uploaded: Count
    """Objects that were not there yet, or were damaged."""
    uploaded_bytes: Count
    verified: bool
    """Whether every object that was sent was read back."""
    read_back: Count = 0
    """Objects that were read in the backup and compared."""
    passed_over: tuple[Note, ...] = ()
    """Slices of the tree that do not hold what their manifests say, and why; their bytes came from replicas."""
    dry_run: bool = False
    """Whether nothing was written: `uploaded` is then what would be."""

    @property
    def exit_code(self) -> int:
        """0, or that of damage where a slice of the tree was passed over: the backup is whole all the same."""
        return VerificationError.exit_code if self.passed_over else 0
