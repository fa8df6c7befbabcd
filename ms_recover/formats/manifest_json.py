"""The fields of a manifest, versions 1 and 2, and the manifest that they state; see docs/formats.md."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import get_args

from ms_recover.formats import codec
from ms_recover.formats.codec import (
    UNSET,
    Count,
    Digest,
    Epoch,
    Fields,
    FileName,
    HostName,
    Moment,
    ParameterFields,
    Positive,
    Rank,
    Size,
    StepFields,
    UnsetType,
)
from ms_recover.model.manifest import MANIFEST_VERSION, Digests, Manifest, RunStep, TrainingRecord
from ms_recover.model.provenance import Provenance, ProvenanceKind, ProvenanceSource
from ms_recover.model.slices import Parameter
from ms_recover.model.steps import Step
from ms_recover.model.verdicts import Evidence

_VERSIONS = (1, MANIFEST_VERSION)
_COPIED = re.compile(r"rank (\d{1,9}) \((.*)\)\Z", re.ASCII | re.DOTALL)
_EVIDENCE: tuple[Evidence, ...] = get_args(Evidence)


class SourceFields(Fields):
    """A slice that bytes were taken from."""

    rank: Rank | None
    path: str
    host: str | None


class ProvenanceFields(Fields):
    """The origin of a slice."""

    kind: ProvenanceKind
    evidence: Evidence | None
    sources: tuple[SourceFields, ...]
    borrowed: tuple[str, ...]


class DigestedFields(ParameterFields, gc=False):
    """One parameter and the digest of its contents."""

    digest: Digest


class RunStepFields(StepFields, kw_only=True):
    """A step of a run."""

    run_id: str
    started: Moment | None


class TrainingFields(Fields):
    """Facts about the training that saved a slice."""

    started: Moment | None
    resumed_from: RunStepFields | None
    epoch_steps: Positive | None
    batch_size: Positive | None
    rank_local: tuple[str, ...]
    state_digest: Digest | None
    host: HostName | UnsetType = UNSET
    machine: HostName | UnsetType = UNSET
    resharded_from: Rank | UnsetType = UNSET
    base_prefix: FileName | UnsetType = UNSET
    start_number: Rank | UnsetType = UNSET
    buffers: tuple[tuple[str, Digest], ...] | UnsetType = UNSET
    own_buffers: tuple[str, ...] | UnsetType = UNSET
    states_differ: bool | UnsetType = UNSET


class VersionFields(Fields):
    """The version of a manifest, whatever else is in it."""

    version: int


class ManifestFields(VersionFields, kw_only=True):
    """A manifest; `origin` is only in version 1, `provenance` only in version 2, `training` only where it is known."""

    tool: str
    origin: str | UnsetType = UNSET
    provenance: ProvenanceFields | UnsetType = UNSET
    run_id: str
    rank: Rank
    world_size: Rank
    epoch: Epoch
    step: Count
    cumulative_step: Count | None
    file: str
    size: Size
    digest: Digest
    group: tuple[Rank, ...]
    strategy_digest: Digest | None
    training: TrainingFields | UnsetType = UNSET
    parameters: tuple[DigestedFields, ...]


def encode(manifest: Manifest) -> bytes:
    """Return the JSON of a manifest, one parameter a line; equal manifests give equal bytes."""
    parameters = tuple(
        DigestedFields(one.name, one.dtype, one.shape, one.nbytes, digest)
        for one, digest in zip(manifest.parameters, manifest.digests.parameters, strict=True)
    )
    digest, version = manifest.digests.file, MANIFEST_VERSION
    fields = codec.fill(
        ManifestFields,
        manifest.step,
        manifest,
        version=version,
        digest=digest,
        training=_training_fields(manifest.training),
        parameters=parameters,
    )
    head = codec.to_json(fields)
    rows = ",".join(f"\n  {codec.json_text(row, 0)}" for row in head.pop("parameters"))
    if manifest.ranges:
        head["ranges"] = [
            (parameter, source, runs.source, runs.target, runs.length, runs.loops)
            for parameter, source, runs in manifest.ranges
        ]
    if manifest.cast:
        types = sorted({dtype for _, dtype in manifest.cast})
        head["cast"] = {dtype: [name for name, one in manifest.cast if one == dtype] for dtype in types}
    return f'{codec.json_text(head, 1)[:-2]},\n "parameters": [{rows}\n ]\n}}\n'.encode()


def decode(data: bytes, like: tuple[Parameter, ...]) -> Manifest:
    """Decode a manifest whose length has been capped; where it lists the parameters `like`, it shares that tuple.

    A ValueError says that it is no manifest of a version that is read, or states what is impossible.
    """
    fields = _fields(data)
    rows = fields.parameters
    listed = like if _are(rows, like) else _parameters(rows)
    return _manifest(fields, listed, tuple([row.digest for row in rows]))


def decode_head(data: bytes, parameters: tuple[Parameter, ...], digests: tuple[str, ...]) -> Manifest:
    """Decode a manifest whose parameters are left out of the data, because they are known to be these.

    Errors are those of `decode`.
    """
    return _manifest(_fields(data), parameters, digests)


def _fields(data: bytes) -> ManifestFields:
    try:
        fields = codec.decode(data, ManifestFields)
        version = fields.version
    except ValueError:
        version = codec.decode(data, VersionFields).version
        if version in _VERSIONS:
            raise
    if version not in _VERSIONS:
        raise ValueError(f"it has version {version}, this tool reads {_VERSIONS[0]} and {_VERSIONS[1]}")
    return fields


def _manifest(fields: ManifestFields, parameters: tuple[Parameter, ...], digests: tuple[str, ...]) -> Manifest:
    rank, group = fields.rank, fields.group
    if rank not in group or max(group) >= fields.world_size:
        raise ValueError(
            f"rank {rank} of {fields.world_size} is not in the group {list(group)}, or the group is too large"
        )
    return Manifest(
        run_id=fields.run_id,
        rank=rank,
        world_size=fields.world_size,
        step=Step(fields.epoch, fields.step),
        cumulative_step=fields.cumulative_step,
        file=fields.file,
        size=fields.size,
        digests=Digests(fields.digest, digests),
        parameters=parameters,
        group=group,
        strategy_digest=fields.strategy_digest,
        provenance=_provenance(fields),
        tool=fields.tool,
        training=_training(fields.training),
    )


def _training_fields(training: TrainingRecord | None) -> TrainingFields | UnsetType:
    if training is None:
        return UNSET
    before = training.resumed_from
    resumed_from = codec.fill(RunStepFields, before.step, before) if before is not None else None
    return codec.fill(TrainingFields, training, resumed_from=resumed_from)


def _training(fields: TrainingFields | UnsetType) -> TrainingRecord | None:
    if not isinstance(fields, TrainingFields):
        return None
    before = fields.resumed_from
    resumed_from = (
        RunStep(before.run_id, Step(before.epoch, before.step), before.started) if before is not None else None
    )
    return codec.make_with(TrainingRecord, fields, resumed_from=resumed_from)


def _provenance(fields: ManifestFields) -> Provenance:
    if fields.version == 1:
        if not isinstance(fields.origin, str):
            raise ValueError("it has no origin")
        return parse_origin(fields.origin)
    if not isinstance(fields.provenance, ProvenanceFields):
        raise ValueError("it has no provenance")
    return codec.make(Provenance, fields.provenance)


def parse_origin(text: str) -> Provenance:
    """Return the provenance that a manifest of version 1 states in a sentence.

    Version 1 wrote ``saved``, ``sealed by EVIDENCE``, ``recovered from rank R (PATH), by EVIDENCE`` and
    ``recovered from PATH, PATH, by EVIDENCE``, the last two with borrowed parameters behind a semicolon.
    """
    if text.startswith("sealed"):
        return Provenance(kind="sealed", evidence=_evidence(text.removeprefix("sealed by ")))
    if not text.startswith("recovered"):
        return Provenance(kind="saved")
    main, _, rest = text.partition("; of ")
    borrowed = tuple(name for name in rest.partition(" are the values of ")[2].split(", ") if name)
    main, _, evidence = main.removeprefix("recovered from ").rpartition(", by ")
    copied = _COPIED.match(main)
    if copied is None:
        sources = tuple(ProvenanceSource(None, path) for path in main.split(", ") if path)
        return Provenance(kind="composed", evidence=_evidence(evidence), sources=sources, borrowed=borrowed)
    source = ProvenanceSource(int(copied[1]), copied[2])
    return Provenance(kind="copied", evidence=_evidence(evidence), sources=(source,), borrowed=borrowed)


def _evidence(text: str) -> Evidence:
    return next((one for one in _EVIDENCE if one == text), "structure")


def _are(rows: Sequence[DigestedFields], like: tuple[Parameter, ...]) -> bool:
    return len(rows) == len(like) and all(
        row.name == one.name and row.bytes == one.nbytes and row.dtype == one.dtype and row.shape == one.shape
        for row, one in zip(rows, like, strict=True)
    )


def _parameters(rows: Sequence[DigestedFields]) -> tuple[Parameter, ...]:
    return tuple([Parameter(row.name, row.dtype, row.shape, row.bytes) for row in rows])
