"""A lost ``metadata.json``, rebuilt from that of another iteration of the same run and from the files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ms_recover.file_names import WeightKind, weights_name
from ms_recover.model.shard_metadata import ShardMetadata, StoredShard
from ms_recover.planning.claims.compare_documents import ListedFile, compare_files


@dataclass(frozen=True, kw_only=True, eq=False)
class RebuiltMetadata:
    """A ``metadata.json``, or why there is none."""

    metadata: ShardMetadata | None
    sources: tuple[tuple[str, str], ...] = ()
    """Each part of the document, and where it comes from."""
    problem: str = ""
    """Why it cannot be rebuilt; empty when it was."""


def rebuild_metadata(
    other: ShardMetadata, iteration: int, files: Mapping[str, ListedFile], *, kinds: frozenset[WeightKind] | None = None
) -> RebuiltMetadata:
    """Rebuild the metadata of an iteration.

    No part of ``metadata.json`` depends on the iteration: MindFormers writes the same bytes as long as the job, its
    layouts and its prefix stay the same. Every file that is there must be as the other iteration's metadata says; files
    that are missing or damaged are expected to be recovered.

    Parameters
    ----------
    other
        The metadata of another iteration, which was found to fit that one's files.
    iteration
        That iteration, for messages.
    files
        The files of the iteration whose metadata is rebuilt, by name.
    kinds
        The kinds of files that were saved; all that the other iteration has by default. Without ``"opt"`` the
        parameters of the optimizer are left out.
    """
    if other.unknown:
        words = f"the metadata.json of iteration {iteration} has members that are not known: {', '.join(other.unknown)}"
        return RebuiltMetadata(metadata=None, problem=words)
    taken = other if kinds is None else only_kinds(other, kinds)
    named = [name for name in map(weights_name, files) if name]
    prefixes = {name.prefix for name in named}
    if not named:
        return RebuiltMetadata(metadata=None, problem="no file of the iteration is there that could prove its layouts")
    if len(prefixes) > 1:
        shown = ", ".join(sorted(map(repr, prefixes)))
        return RebuiltMetadata(metadata=None, problem=f"the files have different prefixes: {shown}")
    taken = _with_prefix(taken, named[0].prefix)
    findings = compare_files(taken, files)
    wrong = [finding for finding in findings if finding.kind not in ("file missing", "file damaged")]
    if wrong:
        rest = f" ({len(wrong) - 1} more)" if len(wrong) > 1 else ""
        words = f"the files are not as in iteration {iteration}: {wrong[0].file}: {wrong[0].words}{rest}"
        return RebuiltMetadata(metadata=None, problem=words)
    agreeing = len(taken.files) - len({finding.file for finding in findings})
    if not agreeing:
        return RebuiltMetadata(metadata=None, problem="no sound file of the iteration is there that could prove it")
    source = f"the metadata.json of iteration {iteration}, with which {agreeing} of {len(taken.files)} files agree"
    names = "the names of the files" if taken is not other else source
    return RebuiltMetadata(
        metadata=taken, sources=(("state_dict_metadata", source), ("storage_data", source), ("file_name", names))
    )


def only_kinds(metadata: ShardMetadata, kinds: frozenset[WeightKind]) -> ShardMetadata:
    """Return what MindFormers would have written had it saved only files of these kinds."""
    kept = {
        name: parameter
        for name, parameter in metadata.parameters.items()
        if (file := weights_name(metadata.stored[name][0][0].file_name)) and file.kind in kinds
    }
    if len(kept) == len(metadata.parameters):
        return metadata
    order = metadata.order and tuple(shard for shard in metadata.order if shard[0] in kept)
    return replace(metadata, parameters=kept, stored={name: metadata.stored[name] for name in kept}, order=order)


def _with_prefix(metadata: ShardMetadata, prefix: str | None) -> ShardMetadata:
    """Return the same metadata of files with another prefix."""
    names: dict[str, str] = {}
    for file in metadata.files:
        if found := weights_name(file):
            names[file] = found._replace(prefix=prefix).name
    if all(old == new for old, new in names.items()):
        return metadata
    items: dict[int, tuple[StoredShard, ...]] = {
        id(held): tuple(replace(item, file_name=names[item.file_name]) for item in held) for held in metadata.shards
    }
    known: dict[int, tuple[tuple[StoredShard, ...], ...]] = {}
    stored = {}
    for name, held in metadata.stored.items():
        if id(held) not in known:
            known[id(held)] = tuple(items[id(one)] for one in held)
        stored[name] = known[id(held)]
    return replace(metadata, stored=stored)
