"""Scan a checkpoint tree: open every slice's header and every rank list once."""

from __future__ import annotations

import filecmp
import os
from collections.abc import Callable
from dataclasses import replace
from operator import attrgetter

from ms_recover.errors import MissingInputError, MsRecoverError
from ms_recover.file_names import MANIFEST_SUFFIX
from ms_recover.formats.group_info import read_group_info
from ms_recover.formats.header import find_problem, read_header
from ms_recover.formats.header_cache import KnownHeaders
from ms_recover.formats.manifest import read_manifest
from ms_recover.model.inventory import GroupFile, Inventory, Note, SliceFile
from ms_recover.model.manifest import Manifest
from ms_recover.model.options import DEFAULT_SCAN, ScanOptions
from ms_recover.model.slices import Parameter
from ms_recover.model.steps import Step
from ms_recover.scanning.naming import Pattern, SliceName
from ms_recover.scanning.strategy_files import StrategyReader
from ms_recover.scanning.walk import Found, find_named_files, walk_pattern, walk_rank_directories
from ms_recover.storage.digest import digest_file


def scan(
    root: str | os.PathLike[str], options: ScanOptions = DEFAULT_SCAN, *, stop: Callable[[], bool] | None = None
) -> Inventory:
    """Take stock of a checkpoint tree.

    Slices are read by header only; where a slice ends in a CRC trailer its contents are read as well, unless
    `crc` is false.

    Parameters
    ----------
    root : str or path
        The tree.
    options : ScanOptions
        How the tree is laid out.
    stop : callable, optional
        Asked now and then; true ends a CRC check early.

    Returns
    -------
    Inventory
        The same for the same tree.

    Raises
    ------
    MissingInputError
        When the root is no directory or holds no rank's directory.
    FormatError
        When a file named in `group_info` or `strategy` is malformed.
    UsageError
        When `pattern` is not one.
    StorageError
        When the root cannot be read.
    """
    top, pattern, crc = os.path.realpath(root), options.pattern, options.crc
    found = walk_pattern(top, Pattern.parse(pattern)) if pattern else walk_rank_directories(top)
    if not found.ranks and not options.may_be_empty:
        looked = f"no path matches {pattern}" if pattern else "no ckpt_dir{rank}/ or rank_{rank}/ in it"
        raise MissingInputError(f"{top} holds no slices: {looked}; name another folder or describe it with --pattern")
    headers = KnownHeaders()
    slices = [file for name in found.slices if (file := _open(top, name, found.notes, crc, stop, headers)) is not None]
    slices = _without_doubles(top, slices, found.notes)
    groups = _own_groups(top, found)
    for owner, path in find_named_files(top, options.group_info, "--group-info"):
        groups.append(GroupFile(owner, path, None, read_group_info(path, owner=owner)))
    known = StrategyReader()
    strategies = [*known.beside_slices(top, found.strategy_files, found.notes)]
    strategies += known.named(find_named_files(top, options.strategy, "--strategy"))
    return Inventory(
        root=top,
        ranks=tuple(sorted(found.ranks)),
        slices=tuple(sorted(slices, key=lambda file: (file.rank, file.step, file.path))),
        group_files=tuple(sorted(groups, key=lambda file: file.path)),
        strategy_files=tuple(sorted(strategies, key=lambda file: (file.path, file.rank))),
        notes=tuple(sorted(found.notes, key=lambda note: note.path)),
    )


def _open(
    root: str,
    name: SliceName,
    notes: list[Note],
    crc: bool,
    stop: Callable[[], bool] | None,
    headers: KnownHeaders,
) -> SliceFile | None:
    path = os.path.join(root, name.place.of(name.rank))
    blank = SliceFile(name.rank, name.step, name.place, name.prefix, 0, 0)
    try:
        status = os.stat(path)
        if not os.path.isfile(path):
            notes.append(Note(blank.path, "named like a slice, but not a file"))
            return None
        header = headers.read(path)
        problem = find_problem(path, header, crc=crc, stop=stop)
    except FileNotFoundError:
        return None  # gone since the directory was listed: rotation, or another recovery's temporary file
    except (OSError, MsRecoverError) as error:
        return replace(blank, problem=_brief(error, path))
    manifest, manifest_problem = _manifest(path, header.parameters)
    return replace(
        blank,
        size=status.st_size,
        mtime_ns=status.st_mtime_ns,
        parameters=header.parameters,
        problem=problem,
        encryption=header.encryption,
        crc=header.crc,
        manifest=manifest,
        manifest_problem=manifest_problem,
    )


def _manifest(path: str, parameters: tuple[Parameter, ...]) -> tuple[Manifest | None, str | None]:
    if os.path.exists(path + MANIFEST_SUFFIX) and not os.path.isfile(path + MANIFEST_SUFFIX):
        return None, "its manifest is no file"  # opening a pipe would wait for a writer
    try:
        return read_manifest(path + MANIFEST_SUFFIX, like=parameters), None
    except MissingInputError:
        return None, None
    except MsRecoverError as error:
        return None, f"its manifest {_brief(error, path + MANIFEST_SUFFIX)}"


def _without_doubles(root: str, slices: list[SliceFile], notes: list[Note]) -> list[SliceFile]:
    """Keep one of several sound slices of one rank and step that hold the same, one with a manifest if there is."""
    kept: dict[tuple[int, Step], list[SliceFile]] = {}
    for file in sorted(slices, key=lambda file: (file.manifest is None, file.path)):
        others = kept.setdefault((file.rank, file.step), [])
        for other in others:
            if (same := _same(root, file, other)) is not None:
                notes.append(Note(file.path, f"holds the same {same} as {other.path}"))
                break
        else:
            others.append(file)
    return [file for files in kept.values() for file in files]


def _same(root: str, one: SliceFile, other: SliceFile) -> str | None:
    """Return what is the same in two sound slices: ``"bytes"``, ``"contents"`` of all parameters, or nothing.

    The same parameters make other bytes in the other format; and safetensors files have their metadata in an order
    that is left to chance.
    """
    if one.problem is not None or other.problem is not None:
        return None
    paths = os.path.join(root, one.path), os.path.join(root, other.path)
    try:
        if (one.size, one.parameters) == (other.size, other.parameters) and filecmp.cmp(
            paths[0], paths[1], shallow=False
        ):
            return "bytes"
        by_name = attrgetter("name")
        if one.encryption or sorted(one.parameters, key=by_name) != sorted(other.parameters, key=by_name):
            return None
        contents = []
        for path in paths:
            header = read_header(path)
            names = [parameter.name for parameter in header.parameters]
            contents.append(dict(zip(names, digest_file(path, header.contents).parameters, strict=True)))
    except (OSError, MsRecoverError):
        return None
    return "contents" if contents[0] == contents[1] else None


def _brief(error: Exception, path: str) -> str:
    """Return a message without the path that the report shows beside it."""
    return str(error).removeprefix(f"{path}: ").removeprefix(f"{path} ")


def _own_groups(root: str, found: Found) -> list[GroupFile]:
    files = []
    for rank, path, place in found.group_files:
        try:
            files.append(GroupFile(rank, path, place, read_group_info(os.path.join(root, path))))
        except MsRecoverError as error:
            files.append(GroupFile(rank, path, place, None, _brief(error, os.path.join(root, path))))
    return files
