"""Scan a checkpoint tree: open every slice's header and every rank list once."""

from __future__ import annotations

import filecmp
import os
from collections.abc import Callable, Iterable
from dataclasses import replace

from ms_recover.errors import MissingInputError, MsRecoverError
from ms_recover.formats.ckpt import check_crc, read_header
from ms_recover.formats.group_info import read_group_info
from ms_recover.formats.manifest import read_manifest
from ms_recover.formats.strategy import read_strategy
from ms_recover.inventory.naming import Pattern, SliceName
from ms_recover.inventory.walk import Found, find_group_files, walk_pattern, walk_rank_directories
from ms_recover.model.inventory import GroupFile, Inventory, Note, SliceFile, StrategyFile
from ms_recover.model.manifest import MANIFEST_SUFFIX, Manifest
from ms_recover.model.slices import Parameter
from ms_recover.model.steps import Step


def scan(
    root: str | os.PathLike[str],
    *,
    pattern: str | None = None,
    group_info: Iterable[str] = (),
    crc: bool = True,
    stop: Callable[[], bool] | None = None,
) -> Inventory:
    """Take stock of a checkpoint tree.

    Slices are read by header only; where a slice ends in a CRC trailer its contents are read as well, unless
    `crc` is false.

    Parameters
    ----------
    root : str or path
        The tree.
    pattern : str, optional
        Where slices lie, with ``{rank} {prefix} {epoch} {step}``; by default the layouts MindSpore users have.
    group_info : iterable of str
        ``group_info.pb`` files that are not beside the slices; ``{rank}`` stands for the owner.
    crc : bool
        Check the CRC-32 of slices that carry one.
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
        When a file named in `group_info` is malformed.
    UsageError
        When `pattern` is not one.
    StorageError
        When the root cannot be read.
    """
    top = os.path.realpath(root)
    found = walk_pattern(top, Pattern.parse(pattern)) if pattern else walk_rank_directories(top)
    if not found.ranks:
        looked = f"no path matches {pattern}" if pattern else "no ckpt_dir{rank}/ or rank_{rank}/ in it"
        raise MissingInputError(f"{top} holds no slices: {looked}; name another folder or describe it with --pattern")
    seen: dict[tuple[Parameter, ...], tuple[Parameter, ...]] = {}
    slices = [file for name in found.slices if (file := _open(top, name, found.notes, crc, stop, seen)) is not None]
    slices = _without_doubles(top, slices, found.notes)
    groups = _own_groups(top, found)
    for owner, path in find_group_files(top, tuple(group_info)):
        groups.append(GroupFile(owner, path, None, read_group_info(path, owner=owner)))
    return Inventory(
        root=top,
        ranks=tuple(sorted(found.ranks)),
        slices=tuple(sorted(slices, key=lambda file: (file.rank, file.step, file.path))),
        group_files=tuple(sorted(groups, key=lambda file: file.path)),
        strategy_files=tuple(_strategies(top, found)),
        notes=tuple(sorted(found.notes, key=lambda note: note.path)),
    )


def _open(
    root: str,
    name: SliceName,
    notes: list[Note],
    crc: bool,
    stop: Callable[[], bool] | None,
    seen: dict[tuple[Parameter, ...], tuple[Parameter, ...]],
) -> SliceFile | None:
    path = os.path.join(root, name.place.of(name.rank))
    blank = SliceFile(name.rank, name.step, name.place, name.prefix, 0, 0)
    try:
        status = os.stat(path)
        if not os.path.isfile(path):
            notes.append(Note(blank.path, "named like a slice, but not a file"))
            return None
        header = read_header(path)
        problem = header.problems[0] if header.problems else None
        if problem is None and crc and header.crc is not None:
            problem = check_crc(path, header, stop=stop)
    except FileNotFoundError:
        return None  # gone since the directory was listed: rotation, or another recovery's temporary file
    except (OSError, MsRecoverError) as error:
        return replace(blank, problem=_brief(error, path))
    manifest, manifest_problem = _manifest(path)
    return replace(
        blank,
        size=status.st_size,
        mtime_ns=status.st_mtime_ns,
        parameters=seen.setdefault(header.parameters, header.parameters),
        problem=problem,
        encryption=header.encryption,
        crc=header.crc,
        manifest=manifest,
        manifest_problem=manifest_problem,
    )


def _manifest(path: str) -> tuple[Manifest | None, str | None]:
    if os.path.exists(path + MANIFEST_SUFFIX) and not os.path.isfile(path + MANIFEST_SUFFIX):
        return None, "its manifest is no file"  # opening a pipe would wait for a writer
    try:
        return read_manifest(path + MANIFEST_SUFFIX), None
    except MissingInputError:
        return None, None
    except MsRecoverError as error:
        return None, f"its manifest {_brief(error, path + MANIFEST_SUFFIX)}"


def _without_doubles(root: str, slices: list[SliceFile], notes: list[Note]) -> list[SliceFile]:
    """Keep one of several sound slices of one rank and step when their bytes are equal."""
    kept: dict[tuple[int, Step], list[SliceFile]] = {}
    for file in sorted(slices, key=lambda file: file.path):
        others = kept.setdefault((file.rank, file.step), [])
        twin = next((other for other in others if _equal(root, file, other)), None)
        if twin is None:
            others.append(file)
        else:
            notes.append(Note(file.path, f"holds the same bytes as {twin.path}"))
    return [file for files in kept.values() for file in files]


def _equal(root: str, one: SliceFile, other: SliceFile) -> bool:
    if one.problem is not None or (one.problem, one.size, one.parameters) != (
        other.problem,
        other.size,
        other.parameters,
    ):
        return False
    try:
        return filecmp.cmp(os.path.join(root, one.path), os.path.join(root, other.path), shallow=False)
    except OSError:
        return False


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


def _strategies(root: str, found: Found) -> list[StrategyFile]:
    files = []
    for rank, path in sorted(found.strategy_files, key=lambda item: item[1]):
        try:
            strategy = read_strategy(os.path.join(root, path))
        except MsRecoverError as error:
            found.notes.append(Note(path, _brief(error, os.path.join(root, path))))
        else:
            files.append(StrategyFile(rank, path, strategy.stages, strategy.devices_per_stage))
    return files
