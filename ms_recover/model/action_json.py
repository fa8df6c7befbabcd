"""Actions as JSON, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

from ms_recover.model.actions import CopyAction, FileState, Replica
from ms_recover.model.compose import KINDS, ComposeAction, ComposedParameter, MissingRegion, Piece, Runs
from ms_recover.model.json_values import as_kind, choice, count, get, inside, text_or_none
from ms_recover.model.slices import Parameter
from ms_recover.model.verdicts import Evidence

_MOST_BYTES = 1 << 63
_EVIDENCE: tuple[Evidence, ...] = get_args(Evidence)
_MOST_LOOPS = 64


def copy_to_json(action: CopyAction) -> dict[str, Any]:
    """Return a copy action as plain JSON values."""
    return {
        "kind": "copy",
        "rank": action.rank,
        "source_rank": action.source_rank,
        "source": action.source,
        "target": action.target,
        "bytes": action.source_state.bytes,
        "source_mtime_ns": action.source_state.mtime_ns,
        "source_digest": action.replica.digest,
        "replaces": _state_to_json(action.replaces),
        "reason": action.reason,
        "evidence": action.evidence,
        "group": list(action.group),
        "alternatives": [_replica_to_json(replica) for replica in action.alternatives],
        "borrowed": list(action.borrowed),
    }


def compose_to_json(action: ComposeAction) -> dict[str, Any]:
    """Return a compose action as plain JSON values.

    A piece's ``runs`` are ``[offset in the source's contents, offset in the target's contents, bytes, loops]``, each
    loop ``[how often, source stride, target stride]`` in bytes, outermost first.
    """
    return {
        "kind": action.kind,
        "rank": action.rank,
        "sources": [_replica_to_json(source) for source in action.sources],
        "model": action.model,
        "target": action.target,
        "bytes": action.bytes,
        "replaces": _state_to_json(action.replaces),
        "reason": action.reason,
        "evidence": action.evidence,
        "group": list(action.group),
        "borrowed": list(action.borrowed),
        "parameters": [
            {
                "name": item.parameter.name,
                "dtype": item.parameter.dtype,
                "shape": list(item.parameter.shape),
                "bytes": item.parameter.nbytes,
                "pieces": [
                    {
                        "source": piece.source,
                        "runs": [piece.runs.source, piece.runs.target, piece.runs.length, list(piece.runs.loops)],
                        "source_bytes": piece.source_bytes,
                        "digest": piece.digest,
                        "alternatives": list(piece.alternatives),
                    }
                    for piece in item.pieces
                ],
            }
            for item in action.parameters
        ],
    }


def missing_to_json(region: MissingRegion) -> dict[str, Any]:
    """Return a missing region as plain JSON values."""
    return {
        "parameter": region.parameter,
        "region": [list(pair) for pair in region.region],
        "bytes": region.bytes,
        "reason": region.reason,
    }


def missing_from_json(data: Mapping[str, Any]) -> MissingRegion:
    """Read a missing region back; errors as for `copy_from_json`."""
    region = tuple(_numbers(pair, 2) for pair in get(data, "region", list))
    name, reason = get(data, "parameter", str), get(data, "reason", str)
    return MissingRegion(
        name, tuple((start, stop) for start, stop in region), count(data, "bytes", _MOST_BYTES), reason
    )


def copy_from_json(data: Mapping[str, Any]) -> CopyAction:
    """Read a copy action back.

    Raises
    ------
    KeyError, TypeError, ValueError
        When it cannot be one.
    """
    state = FileState(count(data, "bytes", _MOST_BYTES), get(data, "source_mtime_ns", int))
    source = Replica(count(data, "source_rank"), inside(data, "source"), state, text_or_none(data, "source_digest"))
    group = tuple(as_kind(rank, int) for rank in get(data, "group", list))
    rank, evidence = count(data, "rank"), choice(data, "evidence", _EVIDENCE)
    if evidence != "layout" and (rank not in group or source.rank not in group):
        raise ValueError(f"rank {rank} is to copy from rank {source.rank} in the group {list(group)}")
    return CopyAction(
        rank=rank,
        replica=source,
        target=inside(data, "target"),
        replaces=_state(data["replaces"]),
        reason=get(data, "reason", str),
        evidence=evidence,
        group=group,
        alternatives=tuple(_replica(as_kind(item, dict)) for item in get(data, "alternatives", list)),
        borrowed=tuple(as_kind(name, str) for name in get(data, "borrowed", list)),
    )


def compose_from_json(data: Mapping[str, Any]) -> ComposeAction:
    """Read a compose action back; errors as for `copy_from_json`."""
    sources = tuple(_replica(as_kind(item, dict)) for item in get(data, "sources", list))
    if data["kind"] not in KINDS:
        raise ValueError(f"unknown action {data['kind']!r}")
    return ComposeAction(
        rank=count(data, "rank"),
        sources=sources,
        model=count(data, "model", len(sources)),
        parameters=tuple(_composed(as_kind(item, dict), len(sources)) for item in get(data, "parameters", list)),
        target=inside(data, "target"),
        replaces=_state(data["replaces"]),
        reason=get(data, "reason", str),
        evidence=choice(data, "evidence", _EVIDENCE),
        group=tuple(as_kind(rank, int) for rank in get(data, "group", list)),
        borrowed=tuple(as_kind(name, str) for name in get(data, "borrowed", list)),
        kind=choice(data, "kind", KINDS),
    )


def _composed(data: Mapping[str, Any], sources: int) -> ComposedParameter:
    shape = _numbers(data["shape"])
    parameter = Parameter(get(data, "name", str), get(data, "dtype", str), shape, count(data, "bytes", _MOST_BYTES))
    pieces = tuple(_piece(as_kind(item, dict), sources, parameter.nbytes) for item in get(data, "pieces", list))
    if sum(piece.runs.bytes for piece in pieces) != parameter.nbytes:
        raise ValueError(f"the pieces of {parameter.name!r} are not {parameter.nbytes} bytes")
    return ComposedParameter(parameter, pieces)


def _piece(data: Mapping[str, Any], sources: int, nbytes: int) -> Piece:
    source, target, length, told = get(data, "runs", list)
    loops = [_numbers(loop, 3) for loop in as_kind(told, list)]
    if len(loops) > _MOST_LOOPS or length == 0 or any(times < 1 for times, _, _ in loops):
        raise ValueError("a piece has no bytes, or too many loops")
    begin, into, size = _numbers([source, target, length], 3)
    runs = Runs(begin, into, size, tuple((times, far, on) for times, far, on in loops))
    available = count(data, "source_bytes", _MOST_BYTES)
    for start, limit, strides in ((runs.source, available, 1), (runs.target, nbytes, 2)):
        end = start + sum((loop[0] - 1) * loop[strides] for loop in runs.loops) + runs.length
        if end > limit:
            raise ValueError(f"a piece ends {end - limit} bytes behind its parameter")
    alternatives = _numbers(data["alternatives"])
    if any(other >= sources for other in alternatives):
        raise ValueError("a piece names a source that is not there")
    return Piece(count(data, "source", sources), runs, available, text_or_none(data, "digest"), alternatives)


def _numbers(values: object, length: int | None = None) -> tuple[int, ...]:
    numbers = tuple(as_kind(value, int) for value in as_kind(values, list))
    if any(not 0 <= number < _MOST_BYTES for number in numbers) or length not in (None, len(numbers)):
        raise ValueError(f"{list(numbers)} are no {length or ''} numbers")
    return numbers


def _replica_to_json(replica: Replica) -> dict[str, Any]:
    return {
        "rank": replica.rank,
        "path": replica.path,
        "bytes": replica.state.bytes,
        "mtime_ns": replica.state.mtime_ns,
        "digest": replica.digest,
    }


def _replica(data: Mapping[str, Any]) -> Replica:
    state = FileState(count(data, "bytes", _MOST_BYTES), get(data, "mtime_ns", int))
    return Replica(count(data, "rank"), inside(data, "path"), state, text_or_none(data, "digest"))


def _state_to_json(state: FileState | None) -> dict[str, int] | None:
    return None if state is None else {"bytes": state.bytes, "mtime_ns": state.mtime_ns}


def _state(data: object) -> FileState | None:
    if data is None:
        return None
    told = as_kind(data, dict)
    return FileState(count(told, "bytes", _MOST_BYTES), get(told, "mtime_ns", int))
