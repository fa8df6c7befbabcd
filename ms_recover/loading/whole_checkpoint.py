"""How the parameters of a checkpoint that is whole already are read: each lies in one file, as it is."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping
from dataclasses import replace

from ms_recover.errors import FormatError, MissingInputError, PermissionDeniedError, UsageError, VerificationError
from ms_recover.formats.records import MAP
from ms_recover.loading.whole_source import WholeSource
from ms_recover.model.actions import FileState, Replica
from ms_recover.model.compose import ComposeAction, ComposedParameter, MissingRegion, Piece, Runs
from ms_recover.model.inventory import SliceFile
from ms_recover.model.manifest import Manifest
from ms_recover.model.slices import Parameter
from ms_recover.model.steps import Step
from ms_recover.model.texts import name_some
from ms_recover.planning.claims.manifest_check import check_manifest
from ms_recover.scanning.whole_files import WholeFiles, find_whole_files
from ms_recover.stores.urls import open_store

_log = logging.getLogger(__name__)


def open_whole(
    root: str | os.PathLike[str], wanted: tuple[str, ...] | None, step: Step | None, *, verify: bool
) -> WholeSource | None:
    """Return how the parameters of a checkpoint that is whole already are read; None where a folder holds none.

    Raises
    ------
    UsageError
        When it has none of the wanted parameters, there are several checkpoints, or nothing states the step.
    MissingInputError
        When it is of another step, or lacks its index.
    FormatError, VerificationError, PermissionDeniedError
        When the only file of a checkpoint, or its index, is damaged or cannot be read.
    MsRecoverError
        As for `find_whole_files`.
    """
    with open_store(root) as store:
        found = find_whole_files(store, wanted, read=verify)
    if found is None:
        return None
    if found.index is None:
        _refuse(found)
    _check_step(found, step)
    source = _source_of(found, wanted)
    bare = sum(file.manifest is None and _problem(file, found) is None for file in found.files)
    if bare:
        _log.warning(
            "%s: %d of %d files have no manifest, so what is taken of them rests on their structure only",
            *(found.root, bare, len(found.files)),
        )
    if found.partial:
        _log.warning("%s: it is partial: nobody held the other parameters when it was written", found.root)
    if source.missing:
        gone = list(source.missing)
        _log.warning("%s: %s cannot be had: %s", found.root, name_some(gone), source.missing[gone[0]][0].reason)
    return source


def _problem(file: SliceFile, found: WholeFiles) -> str | None:
    """Return why nothing may be taken of a file."""
    if file.problem is not None:
        return file.problem
    if file.encryption is not None:
        return f"it is encrypted with {file.encryption}"
    manifest = file.manifest
    if manifest is None:
        return file.manifest_problem or found.read.problems.get(file.path)
    as_stated = replace(file, rank=manifest.rank, step=manifest.step)
    return check_manifest(as_stated, manifest.world_size, None) or found.read.problems.get(file.path)


def _refuse(found: WholeFiles) -> None:
    """Raise where the only file cannot be used."""
    if not found.files:
        raise MissingInputError(f"{found.root} changed while it was looked at: try again")
    (file,) = found.files
    why = _problem(file, found)
    if why is None:
        return
    path = f"{found.root}/{file.path}"
    if file.denied:
        raise PermissionDeniedError(f"{path}: {why}; check who owns it, or run as that user")
    kind = FormatError if file.problem is not None else VerificationError
    raise kind(f"{path}: {why}, so nothing was loaded; {_ADVICE}")


def _check_step(found: WholeFiles, step: Step | None) -> None:
    manifests = _manifests(found)
    stated: dict[tuple[Step, str], str] = {}
    for manifest in manifests:
        stated.setdefault((manifest.step, manifest.run_id), manifest.file)
    if len(stated) > 1:
        each = ", ".join(f"{file} of step {of}" for (of, _), file in stated.items())
        raise VerificationError(f"{found.root} holds files of several checkpoints, by their manifests: {each}")
    if step is None:
        return
    if not manifests:
        raise UsageError(f"step={step}: nothing states of which step {found.root} is, so leave it out")
    if manifests[0].step != step:
        raise MissingInputError(f"{found.root} is of step {manifests[0].step}, and holds nothing of step {step}")


def _manifests(found: WholeFiles) -> list[Manifest]:
    stated = [*(one.manifest for one in found.files), *(one.manifest for one in found.orphans)]
    return [one for one in stated if one is not None]


class _File:
    """One file, or what the manifest of one that is gone lists: what it holds, and what can be had of it."""

    def __init__(self, number: int, listed: Iterable[Parameter], file: SliceFile | None, found: WholeFiles) -> None:
        self.parameters = tuple(listed)
        self._number, self._there = number, file is not None
        self._places = {one.name: place for place, one in enumerate(self.parameters)}
        self._problem = None if file is None else _problem(file, found)
        stated = file.manifest.digests.parameters if file is not None and file.manifest is not None else None
        digests = found.read.digests.get(file.path) if file is not None else None
        read = digests.parameters if digests is not None else None
        self._digests = stated or read
        self._read = read

    def find(self, name: str) -> Parameter | None:
        return self.parameters[self._places[name]] if name in self._places else None

    def why_not(self, name: str) -> str | None:
        """Return why a parameter cannot be had; None when it can."""
        if not self._there:
            return "it is not there"
        if self._problem is not None:
            return self._problem
        like = self.find(name)
        if like is None:
            return "it does not hold it, although the index says so"
        if like.dtype.startswith(MAP):
            return "it is a map parameter, which load_slice loads"
        place = self._places[name]
        if self._read is not None and self._digests is not None and self._read[place] != self._digests[place]:
            return "it holds other contents of it than its manifest says"
        return None

    def item(self, name: str) -> ComposedParameter:
        """Return a parameter that is all of one in this file."""
        like = self.parameters[self._places[name]]
        digest = self._digests[self._places[name]] if self._digests is not None else None
        piece = Piece(self._number, Runs(0, 0, like.nbytes), like.nbytes, digest)
        return ComposedParameter(like, (piece,) if like.nbytes else ())


def _source_of(found: WholeFiles, wanted: tuple[str, ...] | None) -> WholeSource:
    files = {file.path: _File(number, file.parameters, file, found) for number, file in enumerate(found.files)}
    for orphan in found.orphans:
        files[orphan.path] = _File(-1, orphan.manifest.parameters if orphan.manifest is not None else (), None, found)
    index = found.index
    if index is None:
        index = {one.name: path for path, file in files.items() for one in file.parameters}
    else:
        for path in index.values():
            files.setdefault(path, _File(-1, (), None, found))
    unknown = [name for name in wanted or () if name not in index]
    if unknown:
        raise UsageError(f"names: {found.root} has no {name_some(unknown)}; it has {name_some(sorted(index))}")
    names = wanted if wanted is not None else _in_order(found.root, files, index)
    described: dict[str, tuple[str, tuple[int, ...]]] = {}
    missing: dict[str, tuple[MissingRegion, ...]] = {}
    for name in names:
        like, why = files[index[name]].find(name), files[index[name]].why_not(name)
        if like is not None:
            described[name] = (like.dtype, like.shape)
        if why is not None:
            box = tuple((0, size) for size in like.shape) if like is not None else ()
            nbytes = like.nbytes if like is not None else 0
            missing[name] = (MissingRegion(name, box, nbytes, f"{index[name]}: {why}"),)
    return WholeSource(
        root=found.root,
        step=next((manifest.step for manifest in _manifests(found)), None),
        names=names,
        action=ComposeAction(
            rank=0,
            sources=tuple(Replica(0, file.path, FileState(file.size, file.mtime_ns)) for file in found.files),
            model=0,
            parameters=tuple(files[index[name]].item(name) for name in names if name not in missing),
            target="",
            replaces=None,
            reason="",
        ),
        described=described,
        missing=missing,
        advice=_ADVICE,
    )


def _in_order(root: str, files: Mapping[str, _File], index: Mapping[str, str]) -> tuple[str, ...]:
    """Return all names in the order of the files, behind them those that no file holds."""
    held = [(one.name, path) for path, file in sorted(files.items()) for one in file.parameters]
    rest = [name for name, _ in held if name not in index]
    if rest:
        _log.warning("%s: the index does not list %s: passed over", root, name_some(rest))
    return tuple(dict.fromkeys([*(name for name, path in held if index.get(name) == path), *index]))


_ADVICE = "bring that file back, or write the checkpoint again (recover-ckpt reshard --full)"
