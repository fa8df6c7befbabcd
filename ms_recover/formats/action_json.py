"""The fields of actions in a plan, and the actions that they state; docs/plan.md describes them."""

from __future__ import annotations

from typing import TypeVar

from ms_recover.formats.codec import (
    UNSET,
    Count,
    Digest,
    Extent,
    Fields,
    Loops,
    ParameterFields,
    Path,
    Positive,
    Rank,
    Size,
    UnsetType,
    fill,
    make_with,
)
from ms_recover.model.actions import CopyAction, FileState, Replica
from ms_recover.model.compose import ComposeAction, ComposedParameter, Piece, Runs
from ms_recover.model.slices import Parameter
from ms_recover.model.verdicts import Evidence

_ComposeT = TypeVar("_ComposeT", bound="ComposeFields")


class StateFields(Fields):
    """Size and modification time of a file as the plan saw it."""

    bytes: Size
    mtime_ns: int


class ReplicaFields(Fields):
    """A slice that can be read."""

    rank: Rank
    path: Path
    bytes: Size
    mtime_ns: int
    digest: Digest | None


class CopyFields(Fields, tag_field="kind", tag="copy"):
    """Copy one slice from a rank that holds the same bytes."""

    rank: Rank
    source_rank: Rank
    source: Path
    target: Path
    bytes: Size
    source_mtime_ns: int
    source_digest: Digest | None
    replaces: StateFields | None
    reason: str
    evidence: Evidence
    group: tuple[Rank, ...]
    alternatives: tuple[ReplicaFields, ...]
    borrowed: tuple[str, ...]
    set_aside: Path | UnsetType = UNSET


class PieceFields(Fields):
    """A part of one parameter, and the source that gives it."""

    source: Count
    runs: tuple[Size, Size, Positive, Loops]  # offsets in the source's and the target's contents, bytes of a run, loops
    source_bytes: Size
    digest: Digest | None
    alternatives: tuple[Count, ...]


class ComposedFields(ParameterFields):
    """One parameter of a composed slice, and the pieces that are all of it."""

    pieces: tuple[PieceFields, ...]


class ComposeFields(Fields, tag_field="kind", tag="compose"):
    """Put one slice together from pieces of several others."""

    rank: Rank
    sources: tuple[ReplicaFields, ...]
    model: Count
    target: Path
    bytes: Size
    replaces: StateFields | None
    reason: str
    evidence: Evidence
    group: tuple[Rank, ...]
    borrowed: tuple[str, ...]
    parameters: tuple[ComposedFields, ...]
    set_aside: Path | UnsetType = UNSET


class PartialFields(ComposeFields, tag_field="kind", tag="partial"):
    """Write the parameters that survive of a slice that cannot be had whole."""


class MissingFields(Fields):
    """A part of a parameter that no sound slice holds."""

    parameter: str
    region: tuple[Extent, ...]
    bytes: Size
    reason: str


def copy_fields(action: CopyAction) -> CopyFields:
    """Return the fields of a copy action."""
    return fill(
        CopyFields,
        action,
        source_mtime_ns=action.replica.state.mtime_ns,
        source_digest=action.replica.digest,
        alternatives=_replica_fields(action.alternatives),
    )


def compose_fields(action: ComposeAction, kind: type[_ComposeT]) -> _ComposeT:
    """Return the fields of a compose action, or of a partial one, as `kind`."""
    parameters = tuple(_composed_fields(item) for item in action.parameters)
    return fill(
        kind,
        action,
        sources=_replica_fields(action.sources),
        parameters=parameters,
    )


def read_copy(fields: CopyFields) -> CopyAction:
    """Return the copy action that fields state; a ValueError when it copies from outside its group without layouts."""
    rank, group = fields.rank, fields.group
    if fields.evidence != "layout" and (rank not in group or fields.source_rank not in group):
        raise ValueError(f"rank {rank} copies from rank {fields.source_rank}, not both are in the group {list(group)}")
    state = FileState(fields.bytes, fields.source_mtime_ns)
    return make_with(
        CopyAction,
        fields,
        replica=Replica(fields.source_rank, fields.source, state, fields.source_digest),
        replaces=_read_state(fields.replaces),
        alternatives=_read_replicas(fields.alternatives),
    )


def read_compose(fields: ComposeFields) -> ComposeAction:
    """Return the compose action that fields state; a ValueError when pieces contradict its sources or parameters."""
    sources = len(fields.sources)
    if fields.model >= sources:
        raise ValueError(f"model is {fields.model}, there are {sources} sources")
    return make_with(
        ComposeAction,
        fields,
        sources=_read_replicas(fields.sources),
        parameters=tuple(_read_composed(item, sources) for item in fields.parameters),
        replaces=_read_state(fields.replaces),
        kind="partial" if isinstance(fields, PartialFields) else "compose",
    )


def _composed_fields(item: ComposedParameter) -> ComposedFields:
    listed = item.parameter
    pieces = tuple(
        fill(PieceFields, one, runs=(one.runs.source, one.runs.target, one.runs.length, one.runs.loops))
        for one in item.pieces
    )
    return ComposedFields(listed.name, listed.dtype, listed.shape, listed.nbytes, pieces)


def _read_composed(fields: ComposedFields, sources: int) -> ComposedParameter:
    parameter = Parameter(fields.name, fields.dtype, fields.shape, fields.bytes)
    pieces = tuple(_read_piece(piece, sources, parameter) for piece in fields.pieces)
    if sum(piece.runs.bytes for piece in pieces) != parameter.nbytes:
        raise ValueError(f"the pieces of {parameter.name!r} are not {parameter.nbytes} bytes")
    return ComposedParameter(parameter, pieces)


def _read_piece(fields: PieceFields, sources: int, parameter: Parameter) -> Piece:
    runs = Runs(*fields.runs)
    for start, limit, stride in ((runs.source, fields.source_bytes, 1), (runs.target, parameter.nbytes, 2)):
        end = start + sum((loop[0] - 1) * loop[stride] for loop in runs.loops) + runs.length
        if end > limit:
            raise ValueError(f"a piece of {parameter.name!r} ends {end - limit} bytes behind its parameter")
    if max((fields.source, *fields.alternatives)) >= sources:
        raise ValueError(f"a piece of {parameter.name!r} names a source that is not listed")
    return Piece(fields.source, runs, fields.source_bytes, fields.digest, fields.alternatives)


def _replica_fields(replicas: tuple[Replica, ...]) -> tuple[ReplicaFields, ...]:
    return tuple(fill(ReplicaFields, replica.state, replica) for replica in replicas)


def _read_replicas(replicas: tuple[ReplicaFields, ...]) -> tuple[Replica, ...]:
    return tuple(Replica(one.rank, one.path, FileState(one.bytes, one.mtime_ns), one.digest) for one in replicas)


def _read_state(fields: StateFields | None) -> FileState | None:
    return None if fields is None else FileState(fields.bytes, fields.mtime_ns)
