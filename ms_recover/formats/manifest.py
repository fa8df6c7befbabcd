"""Manifests as JSON: ``<slice file name>.manifest.json``, versions 1 and 2; see docs/formats.md."""

from __future__ import annotations

import json
import os
import re
from typing import Any, get_args

from ms_recover.errors import FormatError
from ms_recover.formats.reading import read_small
from ms_recover.model.manifest import DIGEST, MANIFEST_VERSION, Digests, Manifest
from ms_recover.model.provenance import Provenance, ProvenanceKind, ProvenanceSource
from ms_recover.model.slices import Parameter
from ms_recover.model.steps import Step
from ms_recover.model.verdicts import Evidence

MAX_SIZE = 256 << 20
"""Longest manifest that is read, in bytes: a million parameters fit."""

_DIGEST = re.compile(rf"{DIGEST}:[0-9a-f]{{32}}\Z", re.ASCII)
_MAX_RANK = 1 << 24
_COPIED = re.compile(r"rank (\d{1,9}) \((.*)\)\Z", re.ASCII | re.DOTALL)
EVIDENCE: tuple[Evidence, ...] = get_args(Evidence)


def encode_manifest(manifest: Manifest) -> bytes:
    """Return the JSON of `manifest`, one parameter a line; equal manifests give equal bytes."""
    head = {
        "version": MANIFEST_VERSION,
        "tool": manifest.tool,
        "provenance": _encode_provenance(manifest.provenance),
        "run_id": manifest.run_id,
        "rank": manifest.rank,
        "world_size": manifest.world_size,
        "epoch": manifest.step.epoch,
        "step": manifest.step.step,
        "cumulative_step": manifest.cumulative_step,
        "file": manifest.file,
        "size": manifest.size,
        "digest": manifest.digests.file,
        "group": list(manifest.group),
        "strategy_digest": manifest.strategy_digest,
    }
    rows = [
        json.dumps({"name": p.name, "dtype": p.dtype, "shape": list(p.shape), "bytes": p.nbytes, "digest": digest})
        for p, digest in zip(manifest.parameters, manifest.digests.parameters, strict=True)
    ]
    text = (
        json.dumps(head, indent=1)[:-2] + ',\n "parameters": [' + ",".join(f"\n  {row}" for row in rows) + "\n ]\n}\n"
    )
    return text.encode()


def read_manifest(path: str | os.PathLike[str], *, like: tuple[Parameter, ...] = ()) -> Manifest:
    """Read a manifest.

    Parameters
    ----------
    path : str or path-like
        The file.
    like : tuple of Parameter
        What the slice beside it lists; a manifest that says the same shares it, and is read faster.

    Raises
    ------
    MissingInputError
        When it is not there.
    StorageError
        When it cannot be read.
    FormatError
        When it is not a manifest of a version this tool reads, or says what cannot be.
    """
    return decode_manifest(read_small(path, "a manifest", MAX_SIZE), os.fspath(path), like)


def decode_manifest(data: bytes, where: str, like: tuple[Parameter, ...] = ()) -> Manifest:
    """Decode a manifest; `where` is for messages, `like` as for `read_manifest`.

    Raises
    ------
    FormatError
        When it is not a manifest.
    """
    try:
        fields = json.loads(data)
        version = fields["version"]
        if version not in (1, MANIFEST_VERSION):
            raise FormatError(f"{where} is a manifest of version {version!r}; this tool reads 1 and {MANIFEST_VERSION}")
        if version == 1:
            return _manifest(fields, like, parse_origin(_typed(fields["origin"], str)))
        return _manifest(fields, like, _decode_provenance(fields["provenance"]))
    except FormatError:
        raise
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise FormatError(f"{where} is not a manifest ({type(error).__name__}: {error}): was it cut off?") from None


def _manifest(fields: dict[str, Any], like: tuple[Parameter, ...], provenance: Provenance) -> Manifest:
    rows = _typed(fields["parameters"], list)
    parameters = like if _say(rows, like) else _parameters(rows)
    group = tuple(_count(rank, _MAX_RANK) for rank in _typed(fields["group"], list))
    rank, world_size = _count(fields["rank"], _MAX_RANK), _count(fields["world_size"], _MAX_RANK)
    if not group or rank not in group or max(group) >= world_size:
        raise ValueError(f"rank {rank} of {world_size} cannot have the group {list(group)}")
    cumulative = fields["cumulative_step"]
    strategy = fields["strategy_digest"]
    return Manifest(
        run_id=_typed(fields["run_id"], str),
        rank=rank,
        world_size=world_size,
        step=Step(_count(fields["epoch"], 1 << 63), _count(fields["step"], 1 << 63)),
        cumulative_step=None if cumulative is None else _count(cumulative, 1 << 63),
        file=_typed(fields["file"], str),
        size=_count(fields["size"], 1 << 63),
        digests=Digests(_digest(fields["digest"]), tuple(_digest(row["digest"]) for row in rows)),
        parameters=parameters,
        group=group,
        strategy_digest=None if strategy is None else _digest(strategy),
        provenance=provenance,
        tool=_typed(fields["tool"], str),
    )


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
    return next((one for one in EVIDENCE if one == text), "structure")


def _encode_provenance(provenance: Provenance) -> dict[str, Any]:
    return {
        "kind": provenance.kind,
        "evidence": provenance.evidence,
        "sources": [{"rank": one.rank, "path": one.path, "host": one.host} for one in provenance.sources],
        "borrowed": list(provenance.borrowed),
    }


def _decode_provenance(fields: Any) -> Provenance:
    kind, evidence = fields["kind"], fields["evidence"]
    if kind not in get_args(ProvenanceKind) or evidence not in (None, *EVIDENCE):
        raise ValueError(f"no provenance is {kind!r} by {evidence!r}")
    sources = tuple(
        ProvenanceSource(
            None if row["rank"] is None else _count(row["rank"], _MAX_RANK),
            _typed(row["path"], str),
            None if row["host"] is None else _typed(row["host"], str),
        )
        for row in _typed(fields["sources"], list)
    )
    borrowed = tuple(_typed(name, str) for name in _typed(fields["borrowed"], list))
    return Provenance(kind=kind, evidence=evidence, sources=sources, borrowed=borrowed)


def _say(rows: list[Any], like: tuple[Parameter, ...]) -> bool:
    return len(rows) == len(like) and all(
        row["name"] == one.name
        and row["bytes"] == one.nbytes
        and row["dtype"] == one.dtype
        and row["shape"] == [*one.shape]
        for row, one in zip(rows, like, strict=True)
    )


def _parameters(rows: list[Any]) -> tuple[Parameter, ...]:
    return tuple(
        Parameter(
            _typed(row["name"], str),
            _typed(row["dtype"], str),
            tuple(_count(size, 1 << 63) for size in _typed(row["shape"], list)),
            _count(row["bytes"], 1 << 63),
        )
        for row in rows
    )


def _typed(value: Any, kind: type) -> Any:
    if not isinstance(value, kind) or isinstance(value, bool):
        raise TypeError(f"{value!r} is not of type {kind.__name__}")
    return value


def _count(value: Any, below: int) -> int:
    if not 0 <= _typed(value, int) < below:
        raise ValueError(f"{value} is out of range")
    return int(value)


def _digest(value: Any) -> str:
    if not _DIGEST.match(_typed(value, str)):
        raise ValueError(f"{value!r} is no {DIGEST} digest")
    return str(value)
