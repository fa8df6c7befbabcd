"""Read how a job to come cuts its parameters: its strategy files, or a ``metadata.json``."""

from __future__ import annotations

import os
from dataclasses import replace

from ms_recover.errors import FormatError, MissingInputError
from ms_recover.file_names import METADATA_NAME
from ms_recover.formats.identify import identify
from ms_recover.formats.shard_metadata import read_metadata
from ms_recover.model.inventory import StrategyFile
from ms_recover.model.strategy import Layout
from ms_recover.planning.claims.metadata import find_document_stages
from ms_recover.planning.reshard.target import Target, target_of_files
from ms_recover.scanning.naming import read_rank_directory, strategy_rank
from ms_recover.scanning.strategy_files import StrategyReader
from ms_recover.scanning.tree import Tree
from ms_recover.stores.local_store import LocalStore
from ms_recover.system_errors import explained

_ENDINGS = (".ckpt", ".json")


def read_target(path: str) -> Target:
    """Read a strategy file, a folder of them, or a ``metadata.json``.

    A folder may hold the files themselves, one a stage or one a rank, or directories of ranks with one in each. Other
    files in it are passed over.

    Raises
    ------
    MissingInputError
        When there is no such file, or no strategy file in the folder.
    FormatError
        When a file is damaged, or the files do not make up one job.
    """
    if not os.path.lexists(path):
        raise MissingInputError(f"{path} is not there: name a strategy file, a folder of them, or a metadata.json")
    document = os.path.join(path, METADATA_NAME) if os.path.isdir(path) else path
    if os.path.basename(document) == METADATA_NAME and os.path.isfile(document):
        return _of_metadata(document)
    named = strategies_in_folder(path) if os.path.isdir(path) else [(None, path)]
    if not named:
        raise MissingInputError(f"{path} holds no strategy file: name the folder that does")
    files = StrategyReader(Tree(LocalStore("/"))).named([(rank, os.path.abspath(one)) for rank, one in named])
    return target_of_files([replace(file, rank=max(file.rank, 0)) for file in files], path)


def strategies_in_folder(path: str) -> list[tuple[int | None, str]]:
    """Return the strategy files in a folder, and in directories of ranks in it, each with the rank that it names."""
    found: list[tuple[int | None, str]] = []
    with explained("reading", path):
        for name in sorted(os.listdir(path)):
            full = os.path.join(path, name)
            directory = read_rank_directory(name) if os.path.isdir(full) else None
            if directory is not None:
                inside = [(directory[0], os.path.join(full, one)) for one in sorted(os.listdir(full))]
                found += [one for one in inside if _is_strategy(one[1])]
            elif _is_strategy(full):
                rank = strategy_rank(name)
                found.append((rank if rank is not None and rank >= 0 else None, full))
    return found


def _is_strategy(path: str) -> bool:
    """Whether a file is a strategy file by its name, or by its first bytes."""
    name = os.path.basename(path)
    if not name.endswith(_ENDINGS) or not os.path.isfile(path):
        return False
    return strategy_rank(name) is not None or identify(path) == "strategy"


def _of_metadata(path: str) -> Target:
    metadata = read_metadata(path)
    files = []
    for stage in find_document_stages(metadata):
        whole = [
            Layout(name, (len(stage.ranks),), ((),) * len(metadata.parameters[name].global_shape))
            for names, _ in stage.holders
            for name in sorted(names)
        ]
        strategy = replace(stage.strategy, layouts=(*stage.strategy.layouts, *whole))
        files.append(StrategyFile(stage.ranks[0], path, strategy))
    if not files:
        raise FormatError(f"{path} states the layout of no parameter")
    return target_of_files(files, path)
