"""Walk a checkpoint tree: which files may be slices and rank lists, before any is opened."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from ms_recover.errors import MissingInputError, StorageError, UsageError
from ms_recover.file_names import CONTAINERS, GROUP_INFO_NAME
from ms_recover.model.inventory import Note, RankPath
from ms_recover.scanning.naming import (
    Pattern,
    SliceName,
    Unused,
    never_a_slice,
    rank_in_path,
    read_rank_directory,
    read_slice_name,
    strategy_rank,
    why_unused,
)


@dataclass
class Found:
    """What a walk collects; paths relative to the root."""

    slices: list[SliceName] = field(default_factory=list)
    group_files: list[tuple[int | None, str, RankPath | None]] = field(default_factory=list)
    strategy_files: list[tuple[int, str]] = field(default_factory=list)
    ranks: set[int] = field(default_factory=set)
    notes: list[Note] = field(default_factory=list)


def walk_rank_directories(root: str) -> Found:
    """Find ``ckpt_dir{rank}/`` and ``rank_{rank}/``, in the root and below ``checkpoints/`` and ``checkpoint/``.

    Raises
    ------
    MissingInputError
        When the root is not a directory.
    StorageError
        When the root cannot be read.
    """
    found = Found()
    _list(root, required=True)
    for container in CONTAINERS:
        for entry in _list(os.path.join(root, container)):
            known = read_rank_directory(entry)
            if known is None:
                continue
            rank, place = known
            if container:
                place = RankPath((f"{container}/{place.parts[0]}", *place.parts[1:]))
            path = place.of(rank)
            if not os.path.isdir(os.path.join(root, path)):
                continue
            found.ranks.add(rank)
            try:
                names = _list(os.path.join(root, path), required=True)
            except (MissingInputError, StorageError) as error:
                found.notes.append(Note(path, str(error)))
                continue
            _look_into(found, place, rank, names)
    return found


def _look_into(found: Found, directory: RankPath, rank: int, names: list[str]) -> None:
    *ahead, last = directory.parts
    for name in names:
        place = RankPath((*ahead, f"{last}/{name}"))
        if name == GROUP_INFO_NAME:
            found.group_files.append((rank, place.of(rank), place))
        elif strategy_rank(name) is not None:
            _add_strategy(found, rank, place.of(rank), name)
        else:
            what = read_slice_name(directory, rank, name)
            if isinstance(what, SliceName):
                found.slices.append(what)
            elif isinstance(what, Unused):
                found.notes.append(Note(place.of(rank), what.reason))


def _add_strategy(found: Found, rank: int, path: str, name: str) -> None:
    if strategy_rank(name) in (-1, rank):
        found.strategy_files.append((rank, path))
    else:
        found.notes.append(Note(path, f"the name says rank {strategy_rank(name)}, the directory says rank {rank}"))


def walk_pattern(root: str, pattern: Pattern) -> Found:
    """Find the slices that match `pattern`, and the ``group_info.pb`` and strategy files beside them.

    Raises
    ------
    MissingInputError
        When the root is not a directory.
    StorageError
        When the root cannot be read.
    """
    found = Found()
    _list(root, required=True)
    *directories, _name = pattern.components
    directory_form = Pattern(pattern.text.rpartition("/")[0])
    for directory in sorted(set(_descend(root, "", directories))):
        in_directory = directory_form.match(directory)
        fields = in_directory.groupdict() if in_directory else {}
        rank = int(fields["rank"]) if fields.get("rank") else None
        for name in _list(os.path.join(root, directory)):
            path = f"{directory}/{name}" if directory else name
            named = pattern.slice_name(path)
            unused = why_unused(name)
            if name == GROUP_INFO_NAME and rank is not None:
                place = RankPath(tuple(f"{directory_form.text}/{name}".split("{rank}")))
                simple = "{" not in "".join(place.parts)
                found.group_files.append((rank, path, place if simple else None))
            elif strategy_rank(name) is not None and rank is not None and named is None:
                _add_strategy(found, rank, path, name)
            elif named is not None and not never_a_slice(name):
                found.slices.append(named)
                found.ranks.add(named.rank)
            elif unused is not None:
                found.notes.append(Note(path, unused.reason))
        if rank is not None:
            found.ranks.add(rank)
    return found


def _descend(root: str, directory: str, components: list[str | re.Pattern[str]]) -> Iterator[str]:
    if not components:
        yield directory
        return
    first, rest = components[0], components[1:]
    names = [first] if isinstance(first, str) else [n for n in _list(os.path.join(root, directory)) if first.match(n)]
    for name in names:
        path = f"{directory}/{name}" if directory else name
        if os.path.isdir(os.path.join(root, path)):
            yield from _descend(root, path, rest)


def find_named_files(root: str, named: Iterable[str], option: str) -> list[tuple[int | None, str]]:
    """Find the files outside the ranks' directories that an option such as ``--group-info`` names.

    Parameters
    ----------
    root : str
        The tree; relative patterns are looked for in the working directory first, then below the root.
    named : iterable of str
        Paths, each either of one file or with ``{rank}`` in it.
    option : str
        For messages.

    Returns
    -------
    list of (int or None, str)
        The owner, where the path tells it, and the path.

    Raises
    ------
    MissingInputError
        When a path or pattern names no file.
    UsageError
        When a pattern has another field than ``{rank}``.
    """
    files: list[tuple[int | None, str]] = []
    for text in named:
        bases = [""] if os.path.isabs(text) else [os.getcwd(), root]
        for base in bases:
            matches = list(_expand(os.path.join(base, text), option))
            if matches:
                files.extend(matches)
                break
        else:
            raise MissingInputError(f"{option} {text}: no such file; write a path, with {{rank}} where ranks differ")
    return files


def _expand(text: str, option: str) -> Iterator[tuple[int | None, str]]:
    if "{" not in text:
        if os.path.isfile(text):
            yield rank_in_path(text), text
        return
    relative = os.path.normpath(text).lstrip("/")
    for other in re.findall(r"\{(\w*)\}", relative):
        if other != "rank":
            raise UsageError(f"{option} {text}: only {{rank}} can stand in it, not {{{other}}}")
    pattern = Pattern(relative)
    *directories, last = pattern.components
    for directory in sorted(set(_descend("/", "", directories))):
        names = [last] if isinstance(last, str) else _list(f"/{directory}")
        for name in names:
            match = pattern.match(f"{directory}/{name}")
            if match and os.path.isfile(f"/{directory}/{name}"):
                yield int(match["rank"]), f"/{directory}/{name}"


def _list(path: str, *, required: bool = False) -> list[str]:
    """Return the sorted names in a directory; nothing when it is not there and not required."""
    try:
        return sorted(os.listdir(path))
    except OSError as error:
        if not required:
            return []
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            raise MissingInputError(
                f"{path} is not a directory: name the folder that holds the ranks' directories"
            ) from None
        raise StorageError(f"{path} cannot be read: {error.strerror}; check its permissions and mount") from None
