"""Files that an option such as ``--group-info`` names: local ones, or some below the root."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator

from ms_recover.errors import MissingInputError, MsRecoverError, PermissionDeniedError, UsageError
from ms_recover.scanning.naming import Pattern, rank_in_path
from ms_recover.scanning.tree import Tree
from ms_recover.scanning.walk import denied_error, descend
from ms_recover.stores.local_store import LocalStore
from ms_recover.stores.paths import join

Named = tuple[int | None, str]


def find_named_files(tree: Tree, named: Iterable[str], option: str) -> list[Named]:
    """Find the files outside the ranks' directories that an option names.

    Each is the path of one file, or has ``{rank}`` in it. Relative ones are looked for in the working directory first,
    then below the root. Returns the owner, where the path names it, and the path: absolute, or relative to a root that
    is not local.

    Raises
    ------
    MissingInputError
        When a path or pattern names no file.
    PermissionDeniedError
        When this user may not look there.
    UsageError
        When a pattern has another field than ``{rank}``.
    """
    system, files = Tree(LocalStore("/")), list[Named]()
    local = isinstance(tree.store, LocalStore)
    for text in named:
        refused: list[str] = []
        places = [(system, os.path.join(os.getcwd(), text))]
        if not os.path.isabs(text):
            places.append((system, os.path.join(tree.root, text)) if local else (tree, text))
        for place, path in places:
            matches = list(_expand(place, path, option, refused))
            if matches:
                files.extend(matches)
                break
        else:
            if refused:
                raise denied_error(refused[0])
            raise MissingInputError(f"{option} {text}: no such file; write a path, with {{rank}} where ranks differ")
    return files


def _expand(tree: Tree, text: str, option: str, refused: list[str]) -> Iterator[Named]:
    """Yield the files that a path or pattern names, absolute where it is."""

    def refuse(directory: str, error: MsRecoverError) -> None:
        if isinstance(error, PermissionDeniedError):
            refused.append(tree.name(directory))

    if "{" not in text:
        try:
            there = os.stat(text) if os.path.isabs(text) else tree.kind(os.path.normpath(text))
        except OSError as error:
            if isinstance(error, PermissionError):
                refused.append(text)
        else:
            if there is not None:
                yield rank_in_path(text), text
        return
    relative = os.path.normpath(text).lstrip("/")
    for other in re.findall(r"\{(\w*)\}", relative):
        if other != "rank":
            raise UsageError(f"{option} {text}: only {{rank}} can stand in it, not {{{other}}}")
    pattern, ahead = Pattern(relative), "/" if os.path.isabs(text) else ""
    for directory, entries in descend(tree, list(pattern.components[:-1]), refuse):
        for entry in entries:
            path = join(directory, entry.name)
            match = pattern.match(path)
            if match and _is_file(tree, path):
                yield int(match["rank"]), f"{ahead}{path}"


def _is_file(tree: Tree, path: str) -> bool:
    try:
        tree.stat(path)
    except MsRecoverError:
        return False
    return True
