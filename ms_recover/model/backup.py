"""The backup of one step: files by their paths in the tree, and the objects that hold their bytes."""

from __future__ import annotations

from dataclasses import dataclass

from ms_recover.model.steps import Step

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

    root: str
    url: str
    """Of the backup, without secrets."""
    step: Step
    index: str
    """Path of the index in the backup."""
    files: int
    objects: int
    """Different contents among the files."""
    bytes: int
    """Of all objects."""
    uploaded: int
    """Objects that were not there yet, or were damaged."""
    uploaded_bytes: int
    verified: bool
    """Whether every object was read back."""
