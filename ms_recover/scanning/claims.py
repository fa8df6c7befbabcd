"""Read what says who will hold the same, where no slice is there yet: strategy files and rank lists alone."""

from __future__ import annotations

import os

from ms_recover.errors import MissingInputError
from ms_recover.file_names import GROUP_INFO_NAME
from ms_recover.formats.group_info import decode_group_info
from ms_recover.model.inventory import GroupFile, Inventory, StrategyFile
from ms_recover.model.options import ScanOptions
from ms_recover.scanning.named_files import Named, find_named_files
from ms_recover.scanning.naming import read_rank_directory
from ms_recover.scanning.strategy_files import StrategyReader
from ms_recover.scanning.target_files import strategies_in_folder
from ms_recover.scanning.tree import Tree
from ms_recover.stores.local_store import LocalStore
from ms_recover.system_errors import explained


def read_claims(options: ScanOptions) -> Inventory:
    """Read the strategy files and rank lists that options name: files, patterns with ``{rank}``, or folders.

    A folder of strategy files is as for ``reshard --to``; one of rank lists has them in directories of ranks.

    Raises
    ------
    MissingInputError
        When an option names nothing, or a folder without such files.
    FormatError
        When a file is malformed.
    """
    tree = Tree(LocalStore("/"))
    named: list[Named] = []
    for path in options.strategy:
        if os.path.isdir(path):
            found = strategies_in_folder(path)
            if not found:
                raise MissingInputError(f"--strategy {path} holds no strategy file: name the folder that does")
            named += [(rank, os.path.abspath(one)) for rank, one in found]
        else:
            named += find_named_files(tree, [path], "--strategy")
    strategies: list[StrategyFile] = StrategyReader(tree).named(named)
    lists: list[GroupFile] = []
    for path in options.group_info:
        owned = _lists_in(path) if os.path.isdir(path) else find_named_files(tree, [path], "--group-info")
        for owner, one in owned:
            lists.append(
                GroupFile(owner, one, None, decode_group_info(tree.small(one, "a group_info.pb"), one, owner=owner))
            )
    return Inventory(
        root="",
        group_files=tuple(sorted(lists, key=lambda file: file.path)),
        strategy_files=tuple(sorted(strategies, key=lambda file: (file.path, file.rank))),
    )


def _lists_in(path: str) -> list[Named]:
    found: list[Named] = []
    with explained("reading", path):
        for name in sorted(os.listdir(path)):
            full = os.path.join(os.path.abspath(path), name)
            directory = read_rank_directory(name) if os.path.isdir(full) else None
            inside = os.path.join(full, GROUP_INFO_NAME)
            if directory is not None and os.path.isfile(inside):
                found.append((directory[0], inside))
            elif name == GROUP_INFO_NAME:
                found.append((None, full))
    if not found:
        raise MissingInputError(
            f"--group-info {path} holds no {GROUP_INFO_NAME}: name the folder of the ranks' directories"
        )
    return found
