"""What a scan found in a checkpoint tree."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal

from ms_recover.file_names import WeightKind
from ms_recover.model.groups import GroupInfo
from ms_recover.model.manifest import Manifest
from ms_recover.model.rank_path import RankPath as RankPath  # noqa: PLC0414 (a part of this interface)
from ms_recover.model.slices import Parameter, ParameterList
from ms_recover.model.steps import Position, Step
from ms_recover.model.strategy import Strategy
from ms_recover.model.units import Count, Rank, Size

if TYPE_CHECKING:
    from ms_recover.model.iterations import Document, Iteration, Tracker


@dataclass(frozen=True, slots=True)
class SliceFile:
    """One rank's checkpoint file of one step."""

    RECORD = (
        "rank *step path bytes=size parameters=parameter_count crc=has_crc encryption manifest=has_manifest "
        "problem=any_problem denied part?=kind"
    )

    rank: Rank
    """Rank whose slice it is, by its place and name."""
    step: Step
    """Step by its name."""
    place: RankPath
    """Where it lies, relative to the root."""
    prefix: str
    """File name before ``-{epoch}_{step}``; MindSpore's rerun suffix ``_N`` is part of it."""
    size: Size
    """Bytes."""
    mtime_ns: int
    """Modification time in nanoseconds since the epoch."""
    parameters: tuple[Parameter, ...] = field(default=(), repr=False)
    """What the header lists; for a damaged file, as far as it could be read."""
    problem: str | None = None
    """Why the file is damaged, None when its structure is sound."""
    encryption: str | None = None
    """Cipher mode; the parameters are then unknown."""
    crc: int | None = None
    """CRC-32 claimed by the trailer, where there is one."""
    manifest: Manifest | None = field(default=None, repr=False)
    """The sidecar, where there is one that can be read."""
    manifest_problem: str | None = None
    denied: bool = False
    """The operating system refused to open it or its manifest, for the reason in `problem`: that is no damage."""
    inode: tuple[int, int] | None = None
    """Device and inode number: paths that share them are one file and one witness."""
    kind: WeightKind | None = None
    """In a "weights 2.0" tree of MindFormers, whether it is the rank's model file or its optimizer file."""
    dealt: bool = False
    """The metadata of a safetensors file says ``remove_redundancy``: it has a part of the parameters of its rank."""
    global_step: int | None = None
    """The value of its ``global_step``: read of a few slices of each step, and only where names may not order steps."""
    failing: bool = False
    """The device failed to give its first bytes, for the reason in `problem`: they need not be wrong."""
    step_num: int | None = None
    """The value that MindFormers appends under this name; None for the slices of others."""

    @property
    def path(self) -> str:
        """Path relative to the root."""
        return self.place.of(self.rank)

    @property
    def parameter_count(self) -> Count:
        """How many parameters its header lists."""
        return len(self.parameters)

    @property
    def has_crc(self) -> bool:
        """Whether its trailer claims a CRC."""
        return self.crc is not None

    @property
    def has_manifest(self) -> bool:
        """Whether it has a manifest that can be read."""
        return self.manifest is not None

    @property
    def any_problem(self) -> str | None:
        """Its problem, else that of its manifest."""
        return self.problem or self.manifest_problem

    @property
    def name_has_rank(self) -> bool:
        """Whether the file name itself carries the rank, as MindFormers' do."""
        return "/" not in self.place.parts[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class OrphanManifest:
    """A manifest in a rank's directory whose slice is gone."""

    RECORD = "rank *step path problem part?=kind"

    rank: Rank
    """Rank of the slice, by its place and name."""
    step: Step
    """Step by its name."""
    place: RankPath
    """Where the slice would lie, relative to the root."""
    prefix: str
    """As for `SliceFile`."""
    manifest: Manifest | None = field(default=None, repr=False)
    """None when it cannot be read."""
    problem: str | None = None
    kind: WeightKind | None = None
    """As for `SliceFile`."""

    @property
    def path(self) -> str:
        """Path of the slice that is gone, relative to the root."""
        return self.place.of(self.rank)


@dataclass(frozen=True, slots=True, kw_only=True)
class SetAside:
    """A slice that was set aside, because training went on, or began, from an older step."""

    rank: int
    step: Step
    """Step by its name."""
    path: str
    """Path of the slice before, relative to the root."""
    aside: str
    """Its path now."""
    manifest: Manifest | None = field(default=None, repr=False)
    """Of one rank for each prefix and step only; None for the others, and where it cannot be read."""


@dataclass(frozen=True, slots=True)
class GroupFile:
    """One ``group_info.pb`` that the scan looked at."""

    RECORD = "rank path restore_ranks problem"

    rank: Rank | None
    """Its owner; None when its path names none."""
    path: str
    """Relative to the root; absolute when it was named with ``--group-info``."""
    place: RankPath | None = None
    """Where the same file of another rank lies; None outside the tree."""
    info: GroupInfo | None = None
    """Its contents; None when it is malformed."""
    problem: str | None = None

    @property
    def restore_ranks(self) -> tuple[Rank, ...] | None:
        """The ranks it lists; None when it is malformed."""
        return self.info.restore_ranks if self.info is not None else None


@dataclass(frozen=True, slots=True)
class StrategyFile:
    """One strategy file that the scan looked at."""

    RECORD = "rank path stages devices_per_stage layouts"

    rank: Rank
    """Rank of its directory or in its name; the first of its stage where neither names one."""
    path: str
    """Relative to the root; absolute when it was named with ``--strategy``."""
    strategy: Strategy = field(repr=False)
    """Its contents. Equal files share one object."""
    digest: str = ""
    """Of its bytes, as a manifest's ``strategy_digest`` names it."""

    @property
    def stages(self) -> tuple[Count, ...]:
        """Pipeline stages it names."""
        return self.strategy.stages

    @property
    def devices_per_stage(self) -> Count:
        """Product of its device matrix."""
        return self.strategy.devices_per_stage

    @property
    def layouts(self) -> Count:
        """How many layouts it has."""
        return len(self.strategy.layouts)


@dataclass(frozen=True, slots=True)
class Note:
    """A file or directory that is reported but never used, and why."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class DeniedDirectory:
    """A rank's directory that the operating system refused to read, and why."""

    rank: Rank
    path: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherSet:
    """Slices in a tree that were saved apart from those that a scan is about."""

    pattern: str
    """Where they lie, as ``--pattern`` takes it."""
    kind: str
    """Which parameters they hold, such as ``of the network alone``; empty for whole slices."""
    ranks: int
    """How many ranks have some."""
    newest: Step
    command: str
    """The command that plans their recovery."""

    @property
    def reason(self) -> str:
        """What they are, and the command, as one clause."""
        kind = f" {self.kind}" if self.kind else ""
        many = "1 rank" if self.ranks == 1 else f"{self.ranks} ranks"
        return f"other slices{kind}, of {many} up to step {self.newest}, and no part of this: {self.command}"

    @property
    def text(self) -> str:
        """The same with the pattern ahead."""
        return f"{self.pattern}: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class MetaFile:
    """One ``meta.json`` of MindFormers: the slice from which its own resume begins."""

    rank: int
    path: str
    """Relative to the root."""
    place: RankPath
    """Where the same file of another rank lies."""
    step: Step | None = None
    """None when it cannot be read."""
    file: str = ""
    """Name of the slice."""
    prefix: str = ""
    """Of that name, as for `SliceFile`; empty when it is none of the rank's."""
    problem: str | None = None
    """Why it cannot be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnhealthySlice:
    """A slice of rank 0 whose step MindFormers' health monitor found unsound."""

    prefix: str
    """As for `SliceFile`."""
    step: Step
    path: str
    """Of the ``health_ckpts.json`` that states it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenEvidence:
    """Strategy files or rank lists that a scan saw and did not use, and the option that takes them."""

    option: str
    """Such as ``--strategy 'lists/strategy_rank_{rank}.ckpt'``."""
    example: str
    """Path of one of them."""
    count: int


@dataclass(frozen=True, kw_only=True, eq=False)
class PartClaims:
    """What documents and file names state of a part of a tree: the model files of some iterations, or the optimizer's.

    A tree without iterations is one part of which they state nothing.

    Parameters
    ----------
    kind : str or None
        The kind of its files; None where a slice is one file.
    steps : tuple of Step
        Iterations that must have it, newest first, also those that have no file of it.
    world_size, source
        The number of ranks, and what states it.
    expected : mapping of Step to mapping of int to ParameterList
        For each rank what its file of the iteration must list, by metadata that agrees with the files.
    places : mapping of Step to RankPath
        Where the files of an iteration lie.
    """

    kind: WeightKind | None = None
    steps: tuple[Step, ...] = ()
    world_size: int = 0
    source: str = ""
    expected: Mapping[Step, Mapping[int, ParameterList]] = field(default_factory=dict)
    places: Mapping[Step, RankPath] = field(default_factory=dict)


WHOLE = PartClaims()
"""Those of a tree without iterations."""


@dataclass(frozen=True, slots=True)
class Inventory:
    """Everything a scan found."""

    RECORD = (
        "version root ranks steps slices group_files strategy_files notes denied=denied_directories orphans "
        "iterations? tracker?=tracker_record positions?"
    )

    version: ClassVar[Literal[1]] = 1
    root: str
    """Absolute path of the tree, or its URL without secrets."""
    ranks: tuple[Rank, ...] = ()
    """Ranks that have a slice, a manifest, a rank list or a strategy file, or a directory that cannot be read;
    ascending. Directories without any of these are no ranks.
    """
    slices: tuple[SliceFile, ...] = ()
    """Sorted by rank, step and path."""
    group_files: tuple[GroupFile, ...] = ()
    """Sorted by path."""
    strategy_files: tuple[StrategyFile, ...] = ()
    """Sorted by path."""
    notes: tuple[Note, ...] = ()
    denied: tuple[tuple[int, Note], ...] = ()
    """Ranks whose directory the operating system refused to read, and why."""
    orphans: tuple[OrphanManifest, ...] = ()
    """Manifests whose slices are gone; sorted by rank, step and path."""
    iterations: tuple[Iteration, ...] = ()
    """Of a "weights 2.0" tree, newest first; a rank's slice of an iteration is then its model file and its optimizer
    file.
    """
    tracker: Document[int] | None = None
    """The document that names the newest whole iteration; None where the root is no place for it."""
    part: PartClaims = field(default=WHOLE, compare=False, repr=False)
    """What is stated of it, where it is the inventory of one part of a tree."""
    other_sets: tuple[OtherSet, ...] = ()
    """Slices that were saved apart from these."""
    meta_files: tuple[MetaFile, ...] = ()
    """MindFormers' ``meta.json`` of each rank that has one; sorted by rank."""
    unhealthy: tuple[UnhealthySlice, ...] = ()
    """What ``health_ckpts.json`` calls unsound."""
    seen: tuple[SeenEvidence, ...] = ()
    """Strategy files and rank lists in other folders."""
    crc_later: bool = False
    """CRCs were not checked, because the tree is distant: they are when slices are read."""
    set_aside: tuple[SetAside, ...] = ()
    """Slices of runs that were given up; sorted by rank, step and path."""
    positions: tuple[Position, ...] = ()
    """The places of the steps in their training, once they were asked for."""

    @property
    def denied_directories(self) -> tuple[DeniedDirectory, ...]:
        """Those of `denied`."""
        return tuple(DeniedDirectory(rank, note.path, note.reason) for rank, note in self.denied)

    @property
    def tracker_record(self) -> Tracker | None:
        """The tracker with its iteration."""
        from ms_recover.model.iterations import Tracker  # which other trees need not load

        return None if self.tracker is None else Tracker(self.tracker)

    @property
    def steps(self) -> tuple[Step, ...]:
        """Every step that some file or directory is named after, newest first."""
        named = {one.step for one in self.iterations} | set(self.part.steps)
        return tuple(sorted({file.step for file in self.slices} | named, reverse=True))
