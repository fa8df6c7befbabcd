"""The strategy files that recovered ranks get back: those of another rank of their stage."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable

from ms_recover.file_names import STRATEGY_NAME
from ms_recover.model.inventory import StrategyFile
from ms_recover.model.plan import Action, GroupWrite, StrategyWrite
from ms_recover.planning.facts import Facts


def plan_strategy_files(
    facts: Facts, actions: Iterable[Action], lists: Iterable[GroupWrite]
) -> tuple[StrategyWrite, ...]:
    """Return a write for each rank that gets a slice or a rank list, and has no strategy file where peers have theirs.

    MindSpore writes the same for all ranks of a stage. The files that say what most of the stage's do are sources.
    """
    found = sorted(facts.inventory.strategy_files, key=lambda one: one.path)
    files = [one for one in found if posixpath.basename(one.path) == STRATEGY_NAME]
    have = {posixpath.dirname(one.path) for one in files} | _unreadable(facts)
    folders = {one.rank: posixpath.dirname(one.target) for one in (*lists, *actions)}
    writes = []
    for rank, folder in sorted(folders.items()):
        source = next((one for one in files if _may_lend(facts, one, rank)), None)
        if source is not None and folder and folder not in have:
            target = f"{folder}/{STRATEGY_NAME}"
            writes.append(StrategyWrite(rank, target, source.rank, source.path, source.digest))
    return tuple(writes)


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


def _unreadable(facts: Facts) -> set[str]:
    """Return the directories in which a strategy file lies that cannot be read: it stays."""
    notes = (note.path for note in facts.inventory.notes)
    return {posixpath.dirname(path) for path in notes if posixpath.basename(path) == STRATEGY_NAME}
