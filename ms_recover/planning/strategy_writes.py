"""The strategy files that recovered ranks get back: those of another rank of their stage."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable

from ms_recover.file_names import STRATEGY_NAME, ranks_in_folders, strategy_name
from ms_recover.model.inventory import StrategyFile
from ms_recover.model.plan import Action, GroupWrite, StrategyWrite
from ms_recover.planning.facts import Facts


def plan_strategy_files(
    facts: Facts, actions: Iterable[Action], lists: Iterable[GroupWrite]
) -> tuple[StrategyWrite, ...]:
    """Return a write for each rank that gets a slice or a rank list, and has no strategy file where peers have theirs.

    MindSpore writes the same for all ranks of a stage. The files that say what most of the stage's do are sources.
    """
    files = sorted(facts.inventory.strategy_files, key=lambda one: one.path)
    have = {one.path for one in files} | {note.path for note in facts.inventory.notes}  # what cannot be read stays
    folders = {one.rank: posixpath.dirname(one.target) for one in (*lists, *actions)}
    writes = []
    for rank, folder in sorted(folders.items()):
        lenders = ((one, _target_like(one, rank, folder)) for one in files if _may_lend(facts, one, rank))
        source, target = next(((one, path) for one, path in lenders if path is not None), (None, None))
        if source is not None and target is not None and target not in have:
            writes.append(StrategyWrite(rank, target, source.rank, source.path, source.digest))
    return tuple(writes)


def _target_like(source: StrategyFile, rank: int, folder: str) -> str | None:
    """Return where a rank has its strategy file if another has it there: beside its slice, or in one folder of all."""
    place, name = posixpath.split(source.path)
    own = strategy_name(name, rank)
    beside = own == STRATEGY_NAME or bool(ranks_in_folders(place.split("/")))
    if own is None or (beside and not folder):
        return None
    return posixpath.join(folder if beside else place, own)


def _may_lend(facts: Facts, file: StrategyFile, rank: int) -> bool:
    """Whether a file lies in another rank's directory, and says what is known of the rank's stage."""
    stages = facts.stages
    stage = stages.of(rank)
    return (
        file.rank != rank
        and not posixpath.isabs(file.path)
        and stages.of(file.rank) == stage
        and file.digest in stages.digests.get(stage, ())
    )
