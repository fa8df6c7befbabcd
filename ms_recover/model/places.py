"""Where a plan writes: the directories, what lies in them, the room on their disks, and what is in the way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from ms_recover.model.actions import FileState

FolderFault = Literal["nowhere", "circle", "no folder", "unreadable"]
"""Why a directory is none: its link leads nowhere or in a circle, it is something else, or it cannot be looked at."""

TargetKind = Literal["file", "folder", "link", "other", "unknown"]
"""What lies under a name: a file, once links are followed; ``link`` for one that leads to none."""

ObstacleKind = Literal["elsewhere", "in the way", "denied", "name", "space", "device"]
"""Why a target cannot be written: its place is another one, something lies there, this user may not, its name is too
long, the disk is full, or the place cannot be looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderFacts:
    """One directory that is written to, or has to be made."""

    real: str
    """Its real path, absolute; of one that is missing the path that it would have."""
    linked: bool = False
    """Whether a link leads to it from the root."""
    base: str = ""
    """The nearest directory that is there, itself or one above it, by its real path."""
    fault: FolderFault | None = None
    at: str = ""
    """The path at fault."""
    words: str = ""
    """The reason of the operating system."""
    writable: bool = True
    """Whether this user may make files in `base`."""
    read_only: bool = False
    """Whether the file system is mounted read-only."""
    sticky: bool = False
    """Whether only the owner of a file in it may replace that."""
    disk: int | None = None
    """The file system, by its device number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetFacts:
    """What lies under a name."""

    kind: TargetKind | None = None
    """None where nothing does."""
    linked: bool = False
    """Whether the name itself is a link."""
    state: FileState | None = None
    """Of a file."""
    freed: int = 0
    """Bytes on the disk that it gives back when it is replaced."""
    foreign: bool = False
    """Whether it is of another user."""
    words: str = ""
    """The reason of the operating system why it cannot be looked at."""
    blocked_by: str = ""
    """What lies under the name of the unfinished file and cannot be used for it, a clause; empty for none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskFacts:
    """A file system."""

    free: int | None = None
    """Bytes for this user; None where the file system does not say."""
    files: int | None = None
    """Files that can be made; None for any number."""
    block: int = 4096
    longest_name: int = 255
    """Bytes of a name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """The places of the files of one plan on this host."""

    root: str
    """As it is named."""
    real_root: str
    user: str = ""
    """Who this process is."""
    folders: Mapping[str, FolderFacts] = field(default_factory=dict)
    """By path below the root."""
    targets: Mapping[str, TargetFacts] = field(default_factory=dict)
    """By path below the root."""
    disks: Mapping[int, DiskFacts] = field(default_factory=dict)
    """By device number."""
    shared: frozenset[str] = frozenset()
    """Targets that are sure to share the blocks of their sources, so that they take no room."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Obstacle:
    """Why a file of a plan cannot be written where it belongs, and what to do."""

    rank: int | None
    """None for a document of all ranks."""
    path: str
    """Relative to the root."""
    kind: ObstacleKind
    reason: str
