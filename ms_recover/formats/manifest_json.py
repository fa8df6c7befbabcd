"""The fields of a manifest, versions 1 and 2, and the manifest that they state; see docs/formats.md."""

from __future__ import annotations

import json
from collections.abc import Sequence

from ms_recover.formats import codec
from ms_recover.formats.codec import UNSET, Count, Digest, Fields, Rank, Size, UnsetType
from ms_recover.formats.manifest_origin import parse_origin
from ms_recover.model.manifest import MANIFEST_VERSION, Digests, Manifest
from ms_recover.model.provenance import Provenance, ProvenanceKind
from ms_recover.model.slices import Parameter
from ms_recover.model.steps import Step
from ms_recover.model.verdicts import Evidence

_VERSIONS = (1, MANIFEST_VERSION)


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


class ParameterFields(Fields, gc=False):
    """One parameter and the digest of its contents."""

    name: str
    dtype: str
    shape: tuple[Count, ...]
    bytes: Size
    digest: Digest


class VersionFields(Fields):
    """The version of a manifest, whatever else is in it."""

    version: int


class ManifestFields(VersionFields, kw_only=True):
    """A manifest; `origin` is only in version 1, `provenance` only in version 2."""

    tool: str
    origin: str | UnsetType = UNSET
    provenance: ProvenanceFields | UnsetType = UNSET
    run_id: str
    rank: Rank
    world_size: Rank
    epoch: Count
    step: Count
    cumulative_step: Count | None
    file: str
    size: Size
    digest: Digest
    group: tuple[Rank, ...]
    strategy_digest: Digest | None
    parameters: tuple[ParameterFields, ...]


def encode(manifest: Manifest) -> bytes:
    """Return the JSON of a manifest, one parameter a line; equal manifests give equal bytes."""
    parameters = tuple(
        ParameterFields(one.name, one.dtype, one.shape, one.nbytes, digest)
        for one, digest in zip(manifest.parameters, manifest.digests.parameters, strict=True)
    )
    fields = codec.fill(
        ManifestFields,
        manifest,
        version=MANIFEST_VERSION,
        origin=UNSET,
        epoch=manifest.step.epoch,
        step=manifest.step.step,
        digest=manifest.digests.file,
        parameters=parameters,
    )
    head = codec.to_json(fields)
    rows = ",".join(f"\n  {json.dumps(row)}" for row in head.pop("parameters"))
    return f'{json.dumps(head, indent=1)[:-2]},\n "parameters": [{rows}\n ]\n}}\n'.encode()


def decode(data: bytes, like: tuple[Parameter, ...]) -> Manifest:
    """Decode a manifest whose length has been capped; where it lists the parameters `like`, it shares that tuple.

    Raises
    ------
    ValueError
        When it is no manifest of a version that is read, or states what is impossible.
    """
    try:
        fields = codec.decode(data, ManifestFields)
        version = fields.version
    except ValueError:
        version = codec.decode(data, VersionFields).version
        if version in _VERSIONS:
            raise
    if version not in _VERSIONS:
        raise ValueError(f"it has version {version}, this tool reads {_VERSIONS[0]} and {_VERSIONS[1]}")
    return _manifest(fields, like)


def _manifest(fields: ManifestFields, like: tuple[Parameter, ...]) -> Manifest:
    rows, rank, group = fields.parameters, fields.rank, fields.group
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
        digests=Digests(fields.digest, tuple([row.digest for row in rows])),
        parameters=like if _are(rows, like) else _parameters(rows),
        group=group,
        strategy_digest=fields.strategy_digest,
        provenance=_provenance(fields),
        tool=fields.tool,
    )


def _provenance(fields: ManifestFields) -> Provenance:
    if fields.version == 1:
        if not isinstance(fields.origin, str):
            raise ValueError("it has no origin")
        return parse_origin(fields.origin)
    if not isinstance(fields.provenance, ProvenanceFields):
        raise ValueError("it has no provenance")
    return codec.make(Provenance, fields.provenance)


def _are(rows: Sequence[ParameterFields], like: tuple[Parameter, ...]) -> bool:
    return len(rows) == len(like) and all(
        row.name == one.name and row.bytes == one.nbytes and row.dtype == one.dtype and row.shape == one.shape
        for row, one in zip(rows, like, strict=True)
    )


def _parameters(rows: Sequence[ParameterFields]) -> tuple[Parameter, ...]:
    return tuple([Parameter(row.name, row.dtype, row.shape, row.bytes) for row in rows])
