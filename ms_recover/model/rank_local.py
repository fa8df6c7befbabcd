"""Parameters of which each rank of a group has its own values: memory banks, queues, batch statistics."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from fnmatch import fnmatchcase
from typing import Literal

from ms_recover.model.texts import list_some

RankLocalChoice = Literal["peer", "initial", "refuse"]
"""Where rank-local values are lost: train on with those of another rank, with those that the network begins with, or
not at all.
"""

STATISTICS = ("*moving_mean", "*moving_variance")
"""Shell patterns of batch statistics: each rank computes its own, and those of a replica serve as well."""

RESUME_CHOICE = (
    "with values of another rank a resumed training is another one, so recover_train refuses them; choose "
    "rank_local='peer' to train on with them, or 'initial' for those that the network begins with"
)
"""What an operator must know where a slice has rank-local values of another rank."""

MOST_NAMED = 8


_RUNNING = ("running_mean", "running_var")
"""The ends of both names of batch statistics in ``mindspore.mint``; one alone is something else."""


def own_values(names: Collection[str]) -> tuple[str, ...]:
    """Return those of some rank-local parameters that no replica can stand in for, sorted: all but batch statistics."""
    return tuple(sorted(name for name in names if not _is_statistics(name, names)))


def _is_statistics(name: str, names: Collection[str]) -> bool:
    layer = next((name.removesuffix(end) for end in _RUNNING if name.endswith(end)), None)
    if layer is not None:
        return all(layer + end in names for end in _RUNNING)
    return any(fnmatchcase(name, pattern) for pattern in STATISTICS)


def why_refused(lost: Collection[str], rank: int) -> str:
    """Return why a step is not resumed from where rank-local values of a rank are lost, and what to choose."""
    return (
        f"rank-local, lost: the own values of rank {rank} in {list_some(lost, MOST_NAMED)}, which no other rank has; "
        "rank_local='peer' goes on with those of another rank, 'initial' with those that the network begins with"
    )


def share_nothing(elements: Mapping[str, int], rank_local: Collection[str]) -> bool:
    """Whether all parameters of more than one element are rank-local, so that the ranks are no replicas.

    `elements` are the numbers of elements by parameter.
    """
    large = [name for name, count in elements.items() if count > 1]
    return bool(large) and all(name in rank_local for name in large)


def borrowed_text(names: Collection[str], ranks: Collection[int]) -> str:
    """Return a clause about parameters that have the values of other ranks, because a rank's own are lost."""
    own = own_values(names)
    statistics = sorted(set(names).difference(own))
    source = f"rank {list_some(sorted(set(ranks)))}" if ranks else "another rank"
    texts = [f"rank-local, lost: {list_some(own, MOST_NAMED)}; the values are those of {source}"] if own else []
    if statistics:
        texts.append(f"batch statistics of {source}: {list_some(statistics, MOST_NAMED)}")
    return "; ".join(texts)
