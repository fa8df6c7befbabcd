"""Walk a checkpoint tree: which files may be slices and rank lists, before any is opened."""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial

from ms_recover.errors import MissingInputError, PermissionDeniedError, StorageError, UsageError
from ms_recover.file_names import GROUP_INFO_NAME, ITERATION_CONTAINERS, MANIFEST_SUFFIX, META_NAME, named_iteration
from ms_recover.model.inventory import Note, RankPath
from ms_recover.scanning.layouts import Folder, is_unfinished, top_folder
from ms_recover.scanning.naming import (
    Pattern,
    SliceName,
    Unused,
    name_before,
    never_a_slice,
    rank_in_path,
    read_slice_name,
    strategy_rank,
    why_unused,
)
from ms_recover.scanning.notes import Notes
from ms_recover.system_errors import denied_text

_NO_DIRECTORY = {
    errno.ENOENT: "a link to a directory that is not there",
    errno.ENOTDIR: "named like a rank's directory, but it is none",
    errno.ELOOP: "a link that leads to itself",
    errno.ENAMETOOLONG: "its path is longer than the file system allows",
}
"""Why a name that is a rank's is not counted as a rank."""


@dataclass(frozen=True, slots=True)
class RankFile:
    """A rank list, strategy file or ``meta.json`` of a rank; `place` is None where another rank's path is not known."""

    rank: int
    path: str
    place: RankPath | None = None


@dataclass(slots=True)
class Found:
    """The finds of one walk; paths are relative to the root."""

    slices: list[SliceName] = field(default_factory=list)
    """Slices, and those whose manifest alone is there."""
    group_files: list[RankFile] = field(default_factory=list)
    strategy_files: list[RankFile] = field(default_factory=list)
    directories: list[tuple[int, str]] = field(default_factory=list)
    """The ranks' directories that could be listed."""
    meta_files: list[RankFile] = field(default_factory=list)
    set_aside: list[tuple[SliceName, str]] = field(default_factory=list)
    """Slices that were set aside by their names before, and their paths now."""
    forms: dict[str, str] = field(default_factory=dict)
    """Directories, by path: the same path with ``{rank}`` where the rank stands."""
    denied: list[tuple[int, Note]] = field(default_factory=list)
    """Ranks whose directory could not be listed, and why."""
    refused: list[StorageError] = field(default_factory=list)
    """Of directories that could not be listed and may hold those of ranks."""
    notes: Notes = field(default_factory=Notes)

    @property
    def ranks(self) -> set[int]:
        """Ranks that have a file of their own, or a directory that could not be listed."""
        files: tuple[SliceName | RankFile, ...] = (*self.slices, *self.group_files, *self.strategy_files)
        return {file.rank for file in files} | {rank for rank, _ in self.denied}

    def take(self, rank: int | None, path: str, error: OSError) -> None:
        """Record a directory that could not be listed, of `rank` where its path names one."""
        if error.errno not in _NO_DIRECTORY:
            denied = isinstance(error, PermissionError)
            reason = denied_text() if denied else f"cannot be read: {error.strerror}"
            if rank is not None:
                self.denied.append((rank, Note(path, reason)))
                return
            self.notes.add(path, reason)
            self.refused.append(_denied(error.filename) if denied else StorageError(f"{error.filename} {reason}"))
        elif rank is not None and (error.errno != errno.ENOENT or os.path.islink(error.filename)):
            self.notes.add(path, f"{_NO_DIRECTORY[error.errno]}: not counted as a rank")


def walk_layouts(root: str) -> Found:
    """Find the directories of ranks in the root and below folders of checkpoints, as `Folder` describes them.

    Raises
    ------
    MissingInputError
        When the root is not a directory.
    StorageError
        When the root cannot be read.
    """
    found, seen = Found(), set[tuple[int, int]]()
    names = _list_root(root)
    _is_new(root, seen)
    _look_into(root, top_folder(os.path.basename(root)), names, found, seen)
    return found


def _look_into(root: str, folder: Folder, names: list[str], found: Found, seen: set[tuple[int, int]]) -> None:
    """Sort out the files of a directory, and look into those in it; each folder of checkpoints is `seen` once."""
    below = [one for one in map(folder.below, names) if one is not None]
    if folder.rank is not None and not any(one.rank != folder.rank for one in below):
        found.directories.append((folder.rank, folder.path))
        place = folder.place
        _sort_out(found, folder.rank, place, f"{folder.path}/", names, partial(read_slice_name, place, folder.rank))
    for name in filter(is_unfinished, names):
        path = f"{folder.path}/{name}" if folder.path else name
        found.notes.add(path, "MindIO had not finished saving into it: rename it without _tmp if it is whole")
    links = [one for one in below if not one.is_rank_directory and os.path.islink(os.path.join(root, one.path))]
    for one in [*(one for one in below if one not in links), *links]:
        if not one.is_rank_directory and not _is_new(os.path.join(root, one.path), seen):
            continue
        inside = _list(root, one, found)
        if inside is not None:
            _look_into(root, one, inside, found, seen)


def _is_new(path: str, seen: set[tuple[int, int]]) -> bool:
    """Whether a path is a directory that was not looked into under another name; adds it to those `seen`."""
    try:
        status = os.stat(path)
    except OSError as error:
        return error.errno not in _NO_DIRECTORY
    if not stat.S_ISDIR(status.st_mode) or (status.st_dev, status.st_ino) in seen:
        return False
    seen.add((status.st_dev, status.st_ino))
    return True


def walk_pattern(root: str, pattern: Pattern) -> Found:
    """Find the slices that match `pattern`, and the ``group_info.pb`` and strategy files beside them.

    Raises
    ------
    MissingInputError, StorageError
        As `walk_rank_directories`.
    """
    found = Found()
    _list_root(root)
    parts = pattern.text.split("/")[:-1]

    def rank_of(directory: str) -> int | None:
        form = Pattern("/".join(parts[: directory.count("/") + 1]))
        match = form.match(directory)
        return int(match["rank"]) if match and "rank" in match.groupdict() else None

    def refuse(directory: str, error: OSError) -> None:
        found.take(rank_of(directory), directory, error)

    form = "/".join(parts).split("{rank}")
    place = None if "{" in "".join(form) else RankPath(tuple(form))
    for directory, names in _descend(root, list(pattern.components[:-1]), refuse):
        rank = rank_of(directory)
        if rank is not None:
            found.directories.append((rank, directory))
        ahead = f"{directory}/" if directory else ""

        def read(name: str, ahead: str = ahead) -> SliceName | Unused | None:
            named = None if never_a_slice(name) else pattern.slice_name(f"{ahead}{name}")
            return named or why_unused(name)

        _sort_out(found, rank, place, ahead, names, read)
    return found


def _sort_out(
    found: Found,
    rank: int | None,
    directory: RankPath | None,
    ahead: str,
    names: list[str],
    read: Callable[[str], SliceName | Unused | None],
) -> None:
    """Sort the files of one directory into `found`, by what `read` makes of their names.

    Rank lists and strategy files do not count where no rank is in the path of the directory, `ahead`. The place of the
    directory is None where another rank's is not known.
    """
    there = set(names)
    for name in names:
        path, what = f"{ahead}{name}", read(name)
        if name in (GROUP_INFO_NAME, META_NAME) and rank is not None:
            place = None if directory is None else RankPath((*directory.parts[:-1], f"{directory.parts[-1]}/{name}"))
            files = found.group_files if name == GROUP_INFO_NAME else found.meta_files
            files.append(RankFile(rank, path, place))
        elif isinstance(what, SliceName):
            found.slices.append(what)
        elif rank is not None and (named := strategy_rank(name)) is not None:
            if named in (-1, rank):
                found.strategy_files.append(RankFile(rank, path))
            else:
                reason = f"the name says rank {named}, the directory says rank {rank}"
                found.notes.add(path, reason, "other rank")
        elif what is not None:
            found.notes.add(path, what.reason, what.kind)
            if what.kind == "superseded" and isinstance(before := read(name_before(name)), SliceName):
                found.set_aside.append((before, path))
        elif name.endswith(MANIFEST_SUFFIX) and (slice_name := name.removesuffix(MANIFEST_SUFFIX)) not in there:
            orphan = read(slice_name)
            if isinstance(orphan, SliceName):
                found.slices.append(orphan)


def may_hold_iterations(root: str) -> bool:
    """Whether iterations of MindFormers lie where they are looked for, or the root is named like one."""
    below = (iterations_in(os.path.join(root, container)) for container in ITERATION_CONTAINERS)
    return named_iteration(os.path.basename(root)) is not None or any(below)


def iterations_in(path: str) -> list[tuple[int, str]]:
    """Return the iterations whose directories lie in a directory; none where it cannot be listed."""
    try:
        with os.scandir(path) as entries:
            return [
                (number, one.name)
                for one in entries
                if (number := named_iteration(one.name)) is not None and one.is_dir()
            ]
    except OSError:
        return []


def find_named_files(root: str, named: Iterable[str], option: str) -> list[tuple[int | None, str]]:
    """Find the files outside the ranks' directories that an option such as ``--group-info`` names.

    Each is the path of one file, or has ``{rank}`` in it. Relative ones are looked for in the working directory first,
    then below the root. Returns the owner, where the path names it, and the path.

    Raises
    ------
    MissingInputError
        When a path or pattern names no file.
    PermissionDeniedError
        When this user may not look there.
    UsageError
        When a pattern has another field than ``{rank}``.
    """
    files: list[tuple[int | None, str]] = []
    for text in named:
        refused: list[str] = []
        bases = [""] if os.path.isabs(text) else [os.getcwd(), root]
        for base in bases:
            matches = list(_expand(os.path.join(base, text), option, refused))
            if matches:
                files.extend(matches)
                break
        else:
            if refused:
                raise _denied(refused[0])
            raise MissingInputError(f"{option} {text}: no such file; write a path, with {{rank}} where ranks differ")
    return files


def _expand(text: str, option: str, refused: list[str]) -> Iterator[tuple[int | None, str]]:
    def refuse(directory: str, error: OSError) -> None:
        if isinstance(error, PermissionError):
            refused.append(f"/{directory}")

    if "{" not in text:
        try:
            os.stat(text)
        except OSError as error:
            refuse(text.lstrip("/"), error)
        else:
            yield rank_in_path(text), text
        return
    relative = os.path.normpath(text).lstrip("/")
    for other in re.findall(r"\{(\w*)\}", relative):
        if other != "rank":
            raise UsageError(f"{option} {text}: only {{rank}} can stand in it, not {{{other}}}")
    pattern = Pattern(relative)
    for directory, names in _descend("/", list(pattern.components[:-1]), refuse):
        for name in names:
            match = pattern.match(f"{directory}/{name}")
            if match and os.path.isfile(f"/{directory}/{name}"):
                yield int(match["rank"]), f"/{directory}/{name}"


def _descend(
    root: str, components: list[str | re.Pattern[str]], refuse: Callable[[str, OSError], None], directory: str = ""
) -> Iterator[tuple[str, list[str]]]:
    """Yield the directories below `root` that match the components behind `directory`, and the names in them.

    `refuse` gets a directory that cannot be listed, and the error.
    """
    ahead = f"{directory}/" if directory else ""
    if components and isinstance(components[0], str):
        yield from _descend(root, components[1:], refuse, f"{ahead}{components[0]}")
        return
    try:
        names = _names(os.path.join(root, directory))
    except OSError as error:
        refuse(directory, error)
        return
    if not components:
        yield directory, names
        return
    first = components[0]
    for name in names:
        if not isinstance(first, str) and first.match(name):
            yield from _descend(root, components[1:], refuse, f"{ahead}{name}")


def _names(path: str) -> list[str]:
    """Return the sorted names in a directory."""
    with os.scandir(path) as entries:
        return sorted(entry.name for entry in entries)


def _list(root: str, folder: Folder, found: Found) -> list[str] | None:
    """Return the names in a directory; None where it cannot be listed."""
    found.forms[folder.path] = "{rank}".join(folder.place.parts)
    try:
        return _names(os.path.join(root, folder.path))
    except OSError as error:
        found.take(folder.rank, folder.path, error)
        return None


def _list_root(root: str) -> list[str]:
    try:
        return _names(root)
    except PermissionError:
        raise _denied(root) from None
    except (FileNotFoundError, NotADirectoryError):
        raise MissingInputError(
            f"{root} is not a directory: name the folder that holds the ranks' directories"
        ) from None
    except OSError as error:
        raise StorageError(f"{root} cannot be read: {error.strerror}; check the path and the mount") from None


def _denied(path: str) -> PermissionDeniedError:
    return PermissionDeniedError(f"{path}: {denied_text()}; check who owns it, or run as that user")
