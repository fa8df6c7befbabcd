"""Walk a checkpoint tree: which files may be slices and rank lists, before any is opened."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from functools import partial

from ms_recover.errors import MissingInputError, MsRecoverError, PermissionDeniedError, StorageError
from ms_recover.file_names import GROUP_INFO_NAME, ITERATION_CONTAINERS, MANIFEST_SUFFIX, META_NAME, named_iteration
from ms_recover.model.inventory import Note, RankPath
from ms_recover.scanning.naming import (
    Folder,
    Pattern,
    SliceName,
    Unused,
    is_unfinished,
    name_before,
    never_a_slice,
    outvoted_reason,
    read_slice_name,
    strategy_rank,
    top_folder,
    why_unused,
)
from ms_recover.scanning.notes import Notes
from ms_recover.scanning.tree import Tree
from ms_recover.stores.paths import join
from ms_recover.stores.store import Entry
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


@dataclass(frozen=True, slots=True)
class _Listing:
    """The files of one directory."""

    ahead: str
    """The path of the directory with a slash, as it stands before that of a file."""
    names: list[str]
    rank: int | None
    place: RankPath | None
    """None where that of another rank's directory is not known."""


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
    refused: list[MsRecoverError] = field(default_factory=list)
    """Of directories that could not be listed and may hold those of ranks."""
    notes: Notes = field(default_factory=Notes)

    @property
    def ranks(self) -> set[int]:
        """Ranks that have a file of their own, or a directory that could not be listed."""
        files: tuple[SliceName | RankFile, ...] = (*self.slices, *self.group_files, *self.strategy_files)
        return {file.rank for file in files} | {rank for rank, _ in self.denied}

    def take(self, tree: Tree, rank: int | None, path: str, error: MsRecoverError) -> None:
        """Record a directory that could not be listed, of `rank` where its path names one.

        Where a distant store as a whole may be at fault, its error is raised again.
        """
        why = _why_no_directory(error)
        if why is None:
            tree.check_reached(error)
            denied = isinstance(error, PermissionDeniedError)
            reason = tree.denied if denied else f"cannot be read: {_cause(error)}"
            if rank is not None:
                self.denied.append((rank, Note(path, reason)))
                return
            self.notes.add(path, reason)
            name = tree.name(path)
            local = denied_error(name) if denied else StorageError(f"{name} {reason}")
            self.refused.append(local if tree.near else error)
        elif rank is not None and (why != errno.ENOENT or tree.kind(path) == "link"):
            self.notes.add(path, f"{_NO_DIRECTORY[why]}: not counted as a rank")


def walk_layouts(tree: Tree) -> Found:
    """Find the directories of ranks in the root and below folders of checkpoints, as `Folder` describes them.

    Raises
    ------
    MissingInputError
        When the root is not a directory.
    StorageError
        When the root cannot be read.
    """
    found, seen = Found(), set[tuple[int, int]]()
    entries = _list_root(tree)
    _is_new(tree, "", seen)
    _look_into(tree, top_folder(os.path.basename(tree.root)), entries, found, seen)
    return found


def _look_into(tree: Tree, folder: Folder, entries: list[Entry], found: Found, seen: set[tuple[int, int]]) -> None:
    """Sort out the files of a directory, and look into those in it; each folder of checkpoints is `seen` once.

    Where a store cannot tell whether a link leads to a folder that it has seen, links to folders of checkpoints are
    followed only as long as no slice is found without.
    """
    names = [entry.name for entry in entries]
    below = [one for one in map(folder.below, names) if one is not None]
    if folder.rank is not None and not any(one.rank != folder.rank for one in below):
        found.directories.append((folder.rank, folder.path))
        read = partial(read_slice_name, folder.place, folder.rank)
        _sort_out(tree, found, _Listing(f"{folder.path}/", names, folder.rank, folder.place), read)
    for name in filter(is_unfinished, names):
        path = f"{folder.path}/{name}" if folder.path else name
        found.notes.add(path, "MindIO had not finished saving into it: rename it without _tmp if it is whole")
    if not below:
        return
    linked = {entry.name for entry in entries if entry.kind == "link"}
    links = [one for one in below if not one.is_rank_directory and one.name in linked]
    direct = [one for one in below if one.is_rank_directory or one.name not in linked]
    tree.list_ahead(one.path for one in direct)
    for one in [*direct, *links]:
        if not one.is_rank_directory and not _is_new(tree, one.path, seen):
            continue
        if one in links and not tree.near and found.slices:
            found.notes.add(one.path, "a link, which is not followed beside other slices: name it to look into it")
            continue
        inside = _list(tree, one, found)
        if inside is not None:
            _look_into(tree, one, inside, found, seen)


def _is_new(tree: Tree, path: str, seen: set[tuple[int, int]]) -> bool:
    """Whether a path is a directory that was not looked into under another name; adds it to those `seen`."""
    try:
        inode = tree.store.folder_inode(path)
    except MsRecoverError as error:
        return _why_no_directory(error) is None
    if inode is None:
        return tree.kind(path) in (None, "folder", "link")
    if inode in seen:
        return False
    seen.add(inode)
    return True


def walk_pattern(tree: Tree, pattern: Pattern) -> Found:
    """Find the slices that match `pattern`, and the ``group_info.pb`` and strategy files beside them.

    Raises
    ------
    MissingInputError, StorageError
        As `walk_rank_directories`.
    """
    found = Found()
    _list_root(tree)
    parts = pattern.text.split("/")[:-1]

    def rank_of(directory: str) -> int | None:
        form = Pattern("/".join(parts[: directory.count("/") + 1]))
        match = form.match(directory)
        return int(match["rank"]) if match and "rank" in match.groupdict() else None

    def refuse(directory: str, error: MsRecoverError) -> None:
        found.take(tree, rank_of(directory), directory, error)

    form = "/".join(parts).split("{rank}")
    place = None if "{" in "".join(form) else RankPath(tuple(form))
    for directory, entries in descend(tree, list(pattern.components[:-1]), refuse):
        rank = rank_of(directory)
        if rank is not None:
            found.directories.append((rank, directory))
        ahead = f"{directory}/" if directory else ""

        def read(name: str, ahead: str = ahead) -> SliceName | Unused | None:
            named = None if never_a_slice(name) else pattern.slice_name(f"{ahead}{name}")
            return named or why_unused(name)

        _sort_out(tree, found, _Listing(ahead, [entry.name for entry in entries], rank, place), read)
    return found


def _sort_out(tree: Tree, found: Found, listing: _Listing, read: Callable[[str], SliceName | Unused | None]) -> None:
    """Sort the files of one directory into `found`, by what `read` makes of their names.

    Rank lists and strategy files do not count where no rank is in the path of the directory.
    """
    ahead, rank, directory, there = listing.ahead, listing.rank, listing.place, set(listing.names)
    for name in listing.names:
        if name.endswith(MANIFEST_SUFFIX):
            if (slice_name := name.removesuffix(MANIFEST_SUFFIX)) not in there:
                orphan = read(slice_name)
                if isinstance(orphan, SliceName):
                    found.slices.append(orphan)
            continue
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
            note_unused(tree, found.notes, path, what, there)
            if what.kind == "superseded" and isinstance(before := read(name_before(name)), SliceName):
                found.set_aside.append((before, path))


def note_unused(tree: Tree, notes: Notes, path: str, unused: Unused, names: Collection[str]) -> None:
    """Note a file that is no slice; `names` are those in its folder."""
    outvoted = unused.kind == "outvoted"
    reason = outvoted_reason(tree.root, path, names, near=tree.near) if outvoted else unused.reason
    notes.add(path, reason, unused.kind)


def may_hold_iterations(tree: Tree) -> bool:
    """Whether iterations of MindFormers lie where they are looked for, or the root is named like one."""
    below = (iterations_in(tree, container) for container in ITERATION_CONTAINERS)
    return named_iteration(os.path.basename(tree.root)) is not None or any(below)


def iterations_in(tree: Tree, folder: str) -> list[tuple[int, str]]:
    """Return the iterations whose directories lie in a directory; none where it cannot be listed."""
    if folder and tree.is_gone(folder):
        return []
    try:
        entries = tree.entries(folder)
    except MsRecoverError as error:
        if not isinstance(error, MissingInputError):
            tree.check_reached(error)
        return []
    return [
        (number, one.name)
        for one in entries
        if (number := named_iteration(one.name)) is not None and _is_folder(tree, join(folder, one.name), one)
    ]


def _is_folder(tree: Tree, path: str, entry: Entry) -> bool:
    if entry.kind != "link":
        return entry.kind == "folder"
    try:
        tree.entries(path)
    except MsRecoverError as error:
        return isinstance(error, PermissionDeniedError)
    return True


def descend(
    tree: Tree,
    components: list[str | re.Pattern[str]],
    refuse: Callable[[str, MsRecoverError], None],
    directory: str = "",
) -> Iterator[tuple[str, list[Entry]]]:
    """Yield the directories of a tree that match the components behind `directory`, and the entries in them.

    `refuse` gets a directory that cannot be listed, and the error.
    """
    if components and isinstance(components[0], str):
        yield from descend(tree, components[1:], refuse, join(directory, components[0]))
        return
    try:
        entries = tree.entries(directory)
    except MsRecoverError as error:
        refuse(directory, error)
        return
    if not components:
        yield directory, entries
        return
    first = components[0]
    matching = [entry.name for entry in entries if not isinstance(first, str) and first.match(entry.name)]
    if len(components) == 1:
        tree.list_ahead(join(directory, name) for name in matching)
    for name in matching:
        yield from descend(tree, components[1:], refuse, join(directory, name))


def _list(tree: Tree, folder: Folder, found: Found) -> list[Entry] | None:
    """Return what lies in a directory; None where it cannot be listed."""
    found.forms[folder.path] = "{rank}".join(folder.place.parts)
    try:
        return tree.entries(folder.path)
    except MsRecoverError as error:
        found.take(tree, folder.rank, folder.path, error)
        return None


def _list_root(tree: Tree) -> list[Entry]:
    root = tree.root
    try:
        return tree.entries("")
    except PermissionDeniedError as error:
        raise (denied_error(root) if tree.near else error) from None
    except MissingInputError:
        if not tree.near:
            raise MissingInputError(
                f"{root}: nothing lies there; check the URL, it names the folder that holds the ranks' directories"
            ) from None
        raise MissingInputError(
            f"{root} is not a directory: name the folder that holds the ranks' directories"
        ) from None
    except StorageError as error:
        if not tree.near:
            raise
        raise StorageError(f"{root} cannot be read: {_cause(error)}; check the path and the mount") from None


def _why_no_directory(error: MsRecoverError) -> int | None:
    """Return the number of an error in `_NO_DIRECTORY`, None for any other."""
    cause = error.__cause__
    number = cause.errno if isinstance(cause, OSError) else None
    if number in _NO_DIRECTORY:
        return number
    return errno.ENOENT if isinstance(error, MissingInputError) else None


def _cause(error: MsRecoverError) -> str:
    cause = error.__cause__
    return cause.strerror if isinstance(cause, OSError) and cause.strerror else str(error)


def denied_error(path: str) -> PermissionDeniedError:
    """Return the error of a file or directory that the operating system refuses to this user."""
    return PermissionDeniedError(f"{path}: {denied_text()}; check who owns it, or run as that user")
