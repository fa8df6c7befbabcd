"""The operator's word: who holds the same slice, where no file says it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ms_recover.errors import ContradictionError, UsageError
from ms_recover.file_names import MANIFEST_SUFFIX
from ms_recover.model.axes import DEFAULT_ORDER
from ms_recover.model.groups import rank_list
from ms_recover.model.options import PlanOptions
from ms_recover.planning.claims.axes import same_by_axes
from ms_recover.planning.claims.groups import GroupMap

Group = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Word:
    """What the operator says."""

    groups: Mapping[Group, str] = field(default_factory=dict)
    """Ranks that hold the same slice, ascending, and the option that says so. No rank is in two."""
    complete: bool = False
    """Ranks of different groups hold different slices, and each rank is in a group."""
    limit: str = ""
    """A clause for the operator, where the groups are only what is certain."""


NO_WORD = Word()


def check_options(options: PlanOptions) -> None:
    """Raise UsageError when options of the operator's word exclude each other, or name a rank twice."""
    if options.groups and options.axes is not None:
        raise UsageError("--group and --axes both say who holds the same: give one of them")
    if options.axes is None and (options.optimizer_shards or options.order != DEFAULT_ORDER):
        option = "--optimizer-shards" if options.optimizer_shards else "--order"
        raise UsageError(f"{option} goes with --axes, as in --axes dp=2,mp=4")
    if options.optimizer_shards < -1:
        raise UsageError(f"--optimizer-shards {options.optimizer_shards}: give their number, or -1 for all replicas")
    seen: set[int] = set()
    for group in options.groups:
        if len(group) < 2:
            raise UsageError(f"--group {_spelled(group)} names one rank: name those that hold the same slice")
        if min(group) < 0:
            raise UsageError(f"--group {_spelled(group)}: ranks begin with 0")
        twice = sorted(seen.intersection(group))
        if twice:
            raise UsageError(f"rank {twice[0]} is in two groups: name all ranks that hold its slice in one --group")
        seen |= group


def find_word(options: PlanOptions, world_size: int) -> Word:
    """Return what the operator says about the ranks of a world; the options were checked before.

    Raises
    ------
    UsageError
        As `same_by_axes`.
    """
    if options.axes is None:
        return Word(groups={rank_list(sorted(group)): f"--group {_spelled(group)}" for group in options.groups})
    text = f"--axes {options.axes}"
    if options.order != DEFAULT_ORDER:
        text += f" --order {','.join(options.order)}"
    if options.optimizer_shards:
        text += f" --optimizer-shards {options.optimizer_shards}"
    groups = same_by_axes(options.axes, options.order, options.optimizer_shards, world_size)
    experts, sharded = options.axes.size("ep") > 1, options.optimizer_shards not in (0, 1)
    limit = ", by which only ranks with the same experts are sure to hold the same" if experts else ""
    return Word(groups=dict.fromkeys(map(rank_list, groups), text), complete=not (experts or sharded), limit=limit)


def add_word(word: Word, groups: GroupMap) -> GroupMap:
    """Add what the operator says about ranks that nothing else groups.

    What rank lists and manifests say goes before. A manifest that names its own rank alone says nothing: it may have
    been written where no rank list was.

    Raises
    ------
    ContradictionError
        When they contradict it: a group is not among the ranks that one of them names together, or less than those
        where the word is complete.
    """
    members, sources, claimed = dict(groups.members), dict(groups.sources), dict(groups.claimed)
    for ranks, text in word.groups.items():
        told: dict[Group, int] = {}
        for rank in ranks:
            if _is_told(groups, rank):
                told.setdefault(rank_list(members[rank]), rank)
        for known, rank in told.items():
            odd = next((rank for rank in ranks if rank not in known), None)
            path = sources[rank]
            if odd is not None:
                raise ContradictionError(
                    f"{text} says that ranks {rank} and {odd} hold the same slice, but {path} lists {list(known)} for "
                    f"rank {rank}: {_WHAT_NEXT}"
                )
            other = next((rank for rank in known if rank not in ranks), None)
            if word.complete and other is not None:
                raise ContradictionError(
                    f"{text} says that ranks {rank} and {other} hold different slices, but {path} lists {list(known)} "
                    f"for rank {rank}: {_WHAT_NEXT}"
                )
        if not told:
            source = f"the operator's word {text}{word.limit}"
            for rank in ranks:
                members[rank], sources[rank], claimed[rank] = ranks, source, text
    return replace(groups, members=members, sources=sources, claimed=claimed)


_WHAT_NEXT = "correct the option, or remove the file if it is of another run"


def is_silent(path: str, ranks: Sequence[int]) -> bool:
    """Whether what names these ranks is a manifest that names its own rank alone."""
    return len(ranks) == 1 and path.endswith(MANIFEST_SUFFIX)


def _is_told(groups: GroupMap, rank: int) -> bool:
    return groups.knows(rank) and not is_silent(groups.sources[rank], groups.of(rank))


def _spelled(ranks: Iterable[int]) -> str:
    return ",".join(map(str, sorted(ranks)))
