"""The plan of a checkpoint that is cut anew for other ranks: what each new file is taken from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from types import MappingProxyType
from typing import ClassVar, Literal

from ms_recover.file_names import WeightKind
from ms_recover.model.actions import Replica
from ms_recover.model.axes import DEFAULT_ORDER, Axes
from ms_recover.model.compose import MissingRegion, Runs
from ms_recover.model.inventory import Note
from ms_recover.model.plan import RejectedStep, texts_of_passed_over
from ms_recover.model.shard_metadata import CommonInfo, ShardMetadata
from ms_recover.model.slices import Parameter, ParameterList
from ms_recover.model.steps import Step
from ms_recover.model.strategy import Strategy
from ms_recover.model.texts import name_some
from ms_recover.model.units import Count, Digest, Rank, Size

Box = tuple[tuple[int, int], ...]
"""First index and the one behind the last, for each dimension of a global tensor."""

OutputFormat = Literal["ckpt", "safetensors", "mindformers"]
"""A file a rank as MindSpore saves it, or an iteration of MindFormers' format "weights 2.0"."""
CastType = Literal["bfloat16", "float16", "float32"]
"""The types that parameters can be cast to."""
CAST_TYPES: Mapping[str, tuple[str, int]] = MappingProxyType(
    {"bfloat16": ("BFloat16", 2), "float16": ("Float16", 2), "float32": ("Float32", 4)}
)
"""MindSpore's name of each, and bytes per element."""
_SIZES = dict(CAST_TYPES.values())
FLOATS = ("Float16", "BFloat16", "Float32", "Float64")
"""The types whose values can be cast."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReshardOptions:
    """What the operator wants written. Of `strategy`, `axes` and `full` exactly one is given.

    Parameters
    ----------
    strategy : str or None
        A strategy file, or a folder of them: those of the training or serving job to come.
    axes : Axes or None
        The sizes of the parallel axes of that job; the cuts of the source keep their meaning.
    order : tuple of str
        Of `axes`, the one that neighbouring ranks differ in first.
    optimizer_shards : int
        With `axes`: into how many shards the optimizer cuts what it cuts in the source; 0 as there, -1 for as many as
        there are replicas.
    full : bool
        One checkpoint of whole parameters.
    shard_size : int
        Bytes of a file of a full checkpoint at most, unless one parameter alone has more; 0 for one file.
    rename : tuple of (str, str)
        Old and new names, or dotted parts of names.
    form : OutputFormat or None
        The format of the files; None for that of the source.
    pattern : str or None
        Where slices lie below the output, with ``{rank} {prefix} {epoch} {step}``; None for the places of the source.
    common : tuple of (str, float)
        For MindFormers' format: members of ``common.json``, and their values in the place of those of the source.
    dtype : CastType or None
        The type that floating-point parameters of the network are cast to; None for that of the source.
    """

    strategy: str | None = None
    axes: Axes | None = None
    order: tuple[str, ...] = DEFAULT_ORDER
    optimizer_shards: int = 0
    full: bool = False
    shard_size: int = 4 << 30
    rename: tuple[tuple[str, str], ...] = ()
    form: OutputFormat | None = None
    pattern: str | None = None
    common: tuple[tuple[str, float], ...] = ()
    dtype: CastType | None = None


@dataclass(frozen=True, slots=True, eq=False)
class ReshardSource:
    """A slice that bytes are taken from."""

    replica: Replica
    listed: ParameterList
    digests: tuple[str, ...] = ()
    """Of each parameter's contents, in the order of `listed`; empty where they are not known."""
    proven: bool = False
    """Whether its own manifest is a verdict."""

    def digest_of(self, name: str) -> str | None:
        """Return the digest of a parameter's contents; None where it is not known."""
        return self.digests[self.listed.index[name]] if self.digests else None


@dataclass(frozen=True, slots=True)
class HeldRegion:
    """A region of a global tensor, and the sources whose parameter is that region, by number; the best first."""

    box: Box
    holders: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Overlap:
    """Two regions of one parameter that pipeline stages cut differently; where they overlap they must be equal."""

    parameter: str
    dtype: str
    item_size: int
    one: HeldRegion
    other: HeldRegion


@dataclass(frozen=True, slots=True)
class TakenPiece:
    """What one held region gives to one part of the target."""

    region: int
    """Index into the regions of the transfer."""
    runs: Runs


@dataclass(frozen=True, slots=True)
class TargetPart:
    """One part of a tensor as the target cuts it."""

    box: Box
    pieces: tuple[TakenPiece, ...]
    whole: bool = True
    """Whether the pieces are all of it."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a slice's tensor."""
        return tuple(stop - start for start, stop in self.box)


@dataclass(frozen=True, slots=True, eq=False)
class Transfer:
    """How parameters of one type and shape move that are cut alike in the source and alike in the target.

    `cells` has the part that each rank of a target stage holds, by its place in the stage, `parts` these parts.
    """

    dtype: str
    shape: tuple[int, ...]
    item_size: int
    regions: tuple[HeldRegion, ...]
    cells: tuple[tuple[int, ...], ...]
    parts: Mapping[tuple[int, ...], TargetPart]

    @property
    def nbytes(self) -> int:
        """Bytes of the whole tensor."""
        return prod(self.shape) * self.item_size


@dataclass(frozen=True, slots=True)
class MovedParameter:
    """One parameter of the target."""

    name: str
    source_name: str
    transfer: int
    """Index into the transfers of the plan."""
    own: bool = False
    """Each rank has its own values: the target's rank r gets those of rank r modulo the ranks of the source."""
    cast: str | None = None
    """The type that its values are cast to; None where they stay as they are."""

    def item_size(self, transfer: Transfer) -> int:
        """Return the bytes of an element in the output."""
        return _SIZES[self.cast] if self.cast is not None else transfer.item_size


@dataclass(frozen=True, slots=True)
class TargetFile:
    """One file to write: the parameters by their numbers, in order, as the rank at `place` of its stage holds them."""

    rank: int
    target: str
    """Relative to the output."""
    parameters: tuple[int, ...]
    place: int = 0
    stage: int = 0
    group: tuple[Rank, ...] = ()
    """The ranks that hold the same slice."""
    lacks: bool = False
    """Whether it lacks parameters of which not even the shape is known."""
    kind: WeightKind | None = None
    """In MindFormers' format, whether it is the rank's model file or its optimizer file."""


@dataclass(frozen=True, slots=True)
class ReadSource:
    """A slice that bytes are taken from, and how many."""

    rank: Rank
    path: str
    bytes: Size
    digest: Digest | None


@dataclass(frozen=True, slots=True)
class PlannedFile:
    """A file to write: the ranks with the same contents, and what it holds."""

    rank: Rank
    path: str
    parameters: Count
    bytes: Size
    group: tuple[Rank, ...]
    partial: bool


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ReshardPlan:
    """How the slices of one step are cut anew."""

    RECORD = (
        "version root output format=form step run_id world_size target_ranks=ranks full complete sources=read_sources "
        "files=planned_files missing disagreements left_out own_values=own cast=casts rejected_steps warnings"
    )

    version: ClassVar[Literal[1]] = 1
    root: str
    output: str
    form: OutputFormat
    step: Step
    run_id: str | None
    world_size: Rank
    """Ranks of the source."""
    ranks: Rank
    """Ranks of the target; 1 for a full checkpoint."""
    full: bool = False
    sources: tuple[ReshardSource, ...] = ()
    transfers: tuple[Transfer, ...] = ()
    parameters: tuple[MovedParameter, ...] = ()
    files: tuple[TargetFile, ...] = ()
    strategies: tuple[Strategy, ...] = ()
    """The strategy of each stage of the target; none for a full checkpoint."""
    devices: int = 1
    """Ranks of a stage of the target."""
    missing: tuple[MissingRegion, ...] = ()
    """What nobody holds."""
    disagreements: tuple[str, ...] = ()
    """Sources that differ, with nothing to settle who is right."""
    left_out: tuple[str, ...] = ()
    """Parameters of the source that the target does not name."""
    overlaps: tuple[Overlap, ...] = ()
    """What only contents can show to be equal."""
    rejected_steps: tuple[RejectedStep, ...] = ()
    """Newer steps that cannot be had whole."""
    metadata: ShardMetadata | None = None
    """The ``metadata.json`` of an output in MindFormers' format; None for others, and while something is missing."""
    common: CommonInfo | None = None
    """The ``common.json`` beside it."""
    warnings: tuple[str, ...] = ()
    notes: tuple[Note, ...] = ()
    reads: Mapping[int, int] = field(default_factory=dict)
    """Bytes that are taken from each source, by its number, once they were counted."""

    @property
    def read_sources(self) -> tuple[ReadSource, ...]:
        """The sources that give bytes."""
        used = [(one.replica, self.reads[number]) for number, one in enumerate(self.sources) if number in self.reads]
        return tuple(ReadSource(one.rank, one.path, size, one.digest) for one, size in used)

    @property
    def planned_files(self) -> tuple[PlannedFile, ...]:
        """The files, and what each holds."""
        return tuple(
            PlannedFile(
                one.rank, one.target, len(self.parts_of(one)), self.bytes_of(one), one.group, self.is_partial(one)
            )
            for one in self.files
        )

    @property
    def complete(self) -> bool:
        """Whether every part of every file has a source."""
        return not self.missing and not self.disagreements

    @property
    def written_step(self) -> Step:
        """The step as the output names it."""
        number = self.common.step_num if self.common is not None else None
        return self.step if number is None else Step.iteration(number)

    @property
    def own(self) -> tuple[str, ...]:
        """The parameters of which each rank has its own values."""
        return tuple(one.name for one in self.parameters if one.own)

    @property
    def every_warning(self) -> tuple[str, ...]:
        """The warnings, and before them what else must not be overlooked: older steps, values of one rank."""
        texts = texts_of_passed_over(self.rejected_steps)
        if self.own:
            how = "the ranks of the target get those of one rank"
            texts.append(f"each rank had its own values of {name_some(self.own)}: {how}")
        return (*texts, *self.warnings)

    @property
    def casts(self) -> Mapping[str, str]:
        """The type that each parameter is cast to, by its name; those that stay as they are left out."""
        return {one.name: one.cast for one in self.parameters if one.cast is not None}

    def listed(self, file: TargetFile) -> tuple[Parameter, ...]:
        """Return the parameters that a file lists; those that cannot be had whole are left out."""
        found = []
        for one, part, transfer in self.parts_of(file):
            shape = part.shape
            found.append(Parameter(one.name, one.cast or transfer.dtype, shape, prod(shape) * one.item_size(transfer)))
        return tuple(found)

    def parts_of(self, file: TargetFile) -> Sequence[tuple[MovedParameter, TargetPart, Transfer]]:
        """Return what a file holds, without what cannot be had whole."""
        found = []
        for number in file.parameters:
            one = self.parameters[number]
            transfer = self.transfers[one.transfer]
            part = transfer.parts[transfer.cells[file.place]]
            if part.whole:
                found.append((one, part, transfer))
        return found

    def is_partial(self, file: TargetFile) -> bool:
        """Whether a file lacks parameters that it should list."""
        return file.lacks or (not self.complete and len(self.parts_of(file)) < len(file.parameters))

    def bytes_of(self, file: TargetFile) -> int:
        """Return the bytes of contents of a file."""
        return sum(prod(part.shape) * one.item_size(transfer) for one, part, transfer in self.parts_of(file))


def written_parameters(parameters: Iterable[Parameter], casts: Mapping[str, str]) -> list[Parameter]:
    """Return parameters as the output lists them: with the types that they are cast to, by their names."""
    return [
        replace(one, dtype=casts[one.name], nbytes=prod(one.shape) * _SIZES[casts[one.name]])
        if one.name in casts
        else one
        for one in parameters
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReshardResult:
    """What became of one file."""

    RECORD = "rank path=target status bytes digest sources error dropped"

    rank: Rank
    target: str
    status: Literal["written", "already there", "failed", "planned"]
    """``planned`` of a dry run: it would be written."""
    bytes: Size = 0
    digest: Digest | None = None
    sources: tuple[str, ...] = ()
    error: str | None = None
    dropped: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReshardOutcome:
    """What a reshard did."""

    RECORD = (
        "version root output step results documents compared compared_bytes partial left_out warnings errors exit_code "
        "dry_run"
    )

    version: ClassVar[Literal[1]] = 1
    root: str
    output: str
    step: Step
    results: tuple[ReshardResult, ...]
    documents: tuple[str, ...] = ()
    """Strategy files, rank lists and the index, relative to the output."""
    compared: Count = 0
    """Regions of the source that were cut back out of the output and compared, with their bytes in `compared_bytes`."""
    compared_bytes: Size = 0
    errors: tuple[str, ...] = ()
    exit_code: Count = 0
    partial: bool = False
    left_out: tuple[str, ...] = ()
    warnings: tuple[str, ...] = field(default=())
    """Those of the plan, older steps and values of one rank among them."""
    dry_run: bool = False
    """Whether nothing was written: `documents` are then those that would be."""
