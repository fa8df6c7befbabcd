"""The documents of an iteration against its files: what they claim in vain, what they omit, what they contradict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ms_recover.model.shard_metadata import ShardMetadata
from ms_recover.model.slices import Parameter

FindingKind = Literal[
    "file missing",
    "file not named",
    "file damaged",
    "parameter missing",
    "parameter not named",
    "parameter differs",
    "other count",
    "other index",
    "other world size",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class ListedFile:
    """A file of an iteration as its header has it."""

    parameters: tuple[Parameter, ...] = ()
    size: int = 0
    problem: str = ""
    """Why its header is no evidence: torn, unreadable. Empty for a sound one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One contradiction between metadata and a file."""

    kind: FindingKind
    file: str
    rank: int | None
    words: str
    """What is wrong, with the expected and the actual value."""


def find_unlisted(metadata: ShardMetadata, files: Mapping[str, ListedFile]) -> Mapping[str, tuple[Parameter, ...]]:
    """Return, for ``"model"`` and ``"opt"``, the parameters that no metadata lists and every sound file has alike.

    MindFormers lists only parameters with a layout: ``global_step`` is in each ``opt`` file of a save that removes no
    redundancy, and in no metadata. Without any sound ``opt`` file, ``global_step`` is returned for such a save.
    """
    raise NotImplementedError


def compare_files(metadata: ShardMetadata, files: Mapping[str, ListedFile]) -> tuple[Finding, ...]:
    """Return every contradiction between metadata and the files of its iteration, by file name."""
    raise NotImplementedError
