"""The iterations of a MindFormers "weights 2.0" tree: the documents beside their files, and what these state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from ms_recover.file_names import WeightKind
from ms_recover.model.actions import FileState
from ms_recover.model.rank_path import RankPath
from ms_recover.model.shard_metadata import CommonInfo, ShardMetadata
from ms_recover.model.slices import ParameterList
from ms_recover.model.steps import Step

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Document(Generic[_T]):
    """A document of MindFormers: ``metadata.json``, ``common.json`` or the tracker."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Iteration:
    """The directory of one iteration."""

    step: Step
    directory: str
    """Relative to the root; empty where the root is the directory."""
    metadata: Document[ShardMetadata]
    common: Document[CommonInfo]
    global_step: int | None = None
    """The value that its optimizer files hold; read only where `common` cannot be."""


@dataclass(frozen=True, kw_only=True, eq=False)
class PartClaims:
    """What documents and file names state of one part of some iterations: the model files, or those of the optimizer.

    Parameters
    ----------
    kind : str
        The part.
    steps : tuple of Step
        Iterations that must have it, newest first, also those that have no file of it.
    world_size, source
        The number of ranks, and what states it.
    expected : mapping of Step to mapping of int to ParameterList
        For each rank what its file of the iteration must list, by metadata that agrees with the files.
    places : mapping of Step to RankPath
        Where the files of an iteration lie.
    """

    kind: WeightKind
    steps: tuple[Step, ...]
    world_size: int
    source: str
    expected: Mapping[Step, Mapping[int, ParameterList]] = field(default_factory=dict)
    places: Mapping[Step, RankPath] = field(default_factory=dict)
