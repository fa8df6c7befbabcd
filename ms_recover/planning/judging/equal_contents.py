"""Ranks that hold equal contents where nothing says that they should: what the operator may then confirm."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

from ms_recover.file_names import MANIFEST_SUFFIX
from ms_recover.model.inventory import SliceFile
from ms_recover.model.slices import ParameterList
from ms_recover.model.steps import Step
from ms_recover.model.texts import list_some
from ms_recover.planning.facts import Facts, SliceFacts

_MOST_GROUPS = 8
"""Groups up to which each is an option of its own; of more the axes are given."""

Seen = Mapping[Step, Mapping[int, Hashable]]
"""By step and rank what stands for the contents of the rank's slice: equal where these are."""


def is_unclaimed(facts: Facts) -> bool:
    """Whether no rank list, layout or word of the operator says who holds the same slice."""
    groups = facts.groups
    told = any(
        len(ranks) > 1 or rank in groups.claimed or not groups.sources[rank].endswith(MANIFEST_SUFFIX)
        for rank, ranks in groups.members.items()
    )
    return not told and facts.stages.problem is not None


def slices_to_compare(facts: Facts) -> tuple[SliceFile, ...]:
    """Return the slices that must be read next to find ranks with equal contents at all steps.

    These are all of the newest step that two ranks have; then, where two are equal, the older ones of those, and of all
    when some rank has older ones only.
    """
    steps = _comparable(facts)
    newest = next(iter(steps), None)
    if newest is None:
        return ()
    unread = [one.file for one in steps[newest] if one.digests is None]
    if unread:
        return tuple(unread)
    alike = {rank for ranks in _sets(_seen(facts, {newest: steps[newest]})) for rank in ranks}
    there = {one.rank for one in steps[newest]}
    if alike and any(one.rank not in there for held in steps.values() for one in held):
        alike = {one.rank for held in steps.values() for one in held}
    return tuple(one.file for held in steps.values() for one in held if one.digests is None and one.rank in alike)


def equal_ranks(facts: Facts, lost: Sequence[int]) -> tuple[str, ...]:
    """Return what to tell the operator about ranks with equal contents; nothing when there are none.

    Where they are part of one regular division of all ranks, and of one only, the option that confirms it is named.
    """
    seen = seen_contents(facts)
    sets = _sets(seen)
    if not sets:
        return ()
    common = [step for step, held in seen.items() if sum(rank in held for ranks in sets for rank in ranks) > 1]
    which = list_some([f"{', '.join(map(str, ranks[:-1]))} and {ranks[-1]}" for ranks in sets], 8, separator="; ")
    at = f"step{'s' * (len(common) > 1)} {list_some(map(str, common), 8)}"
    text = f"ranks {which} hold equal bytes at {at}, but no file says who holds the same slice"
    found = regular_divisions(seen, facts.world.ranks)
    mates = _mates(found[0], lost) if len(found) == 1 else ""
    if not mates:
        gone = f" as rank {lost[0]}" if lost else ""
        return (f"{text}; say who holds the same{gone} with --group or --axes",)
    return (f"{text}; if {mates}, accept it with: {_option(found[0])}",)


def seen_contents(facts: Facts) -> Seen:
    """Return what is known of the contents of slices that could be compared, newest step first."""
    return _seen(facts, _comparable(facts))


def regular_divisions(seen: Seen, world_size: int) -> list[tuple[tuple[int, ...], ...]]:
    """Return the divisions of all ranks into groups of one size and stride that contents confirm.

    In each, ranks of one group hold equal contents at every step, those of two groups different ones, and some group
    has two ranks at one step.
    """
    return [
        groups
        for stride in range(1, world_size)
        for size in range(2, world_size // stride + 1)
        if world_size % (stride * size) == 0
        if _is_confirmed(groups := _division(stride, size, world_size), seen)
    ]


def _division(stride: int, size: int, world_size: int) -> tuple[tuple[int, ...], ...]:
    block = stride * size
    return tuple(
        tuple(range(first + at, first + at + block, stride))
        for first in range(0, world_size, block)
        for at in range(stride)
    )


def _is_confirmed(groups: Sequence[Sequence[int]], seen: Seen) -> bool:
    number = {rank: index for index, ranks in enumerate(groups) for rank in ranks}
    confirmed = False
    for held in seen.values():
        by_group: dict[int, Hashable] = {}
        by_contents: dict[Hashable, int] = {}
        for rank, contents in held.items():
            group = number[rank]
            confirmed = confirmed or group in by_group
            if by_group.setdefault(group, contents) != contents or by_contents.setdefault(contents, group) != group:
                return False
    return confirmed


def _comparable(facts: Facts) -> dict[Step, list[SliceFacts]]:
    """Return the steps of the present run, newest first, with the slices of each that could be compared."""
    found = {}
    for step in sorted(facts.steps, reverse=True):
        slices = facts.counted_at(step)
        if not slices or facts.why_older(step) is not None:
            continue
        run = facts.runs(step)[0]
        held = {
            one.rank: one
            for one in slices
            if one.file.encryption is None
            and (one.file.problem or one.manifest_problem or one.content_problem) is None
            and run.why_foreign(one.file) is None
            and not (one.manifest is not None and one.manifest.recovered)
        }
        if len(held) > 1:
            found[step] = list(held.values())
    return found


def _seen(facts: Facts, steps: Mapping[Step, Sequence[SliceFacts]]) -> Seen:
    """Return what stands for the contents of the slices that were read, parameters that may differ aside."""
    kept: dict[ParameterList, list[int]] = {}
    seen: dict[Step, dict[int, Hashable]] = {}
    for step, held in steps.items():
        inodes: set[tuple[int, int]] = set()
        seen[step] = {}
        for one in held:
            if one.digests is None or (one.file.inode is not None and one.file.inode in inodes):
                continue
            inodes |= {one.file.inode} if one.file.inode is not None else set()
            if one.listed not in kept:
                names = enumerate(one.listed.index)
                kept[one.listed] = [place for place, name in names if not facts.tolerance.covers(name)]
            digests = one.contents.parameters
            seen[step][one.rank] = (one.listed, tuple(digests[place] for place in kept[one.listed]))
    return seen


def _sets(seen: Seen) -> list[tuple[int, ...]]:
    """Return the sets of ranks that are equal at some step, by way of others too, and differ at none."""
    sets: dict[int, set[int]] = {}
    for held in seen.values():
        alike: dict[Hashable, int] = {}
        for rank, contents in held.items():
            one, other = sets.setdefault(alike.setdefault(contents, rank), {rank}), sets.setdefault(rank, {rank})
            if one is not other:
                one |= other
                sets |= dict.fromkeys(other, one)
    found = {min(ranks): ranks for ranks in sets.values() if len(ranks) > 1}
    for held in seen.values():
        for first, ranks in list(found.items()):
            if len({held[rank] for rank in ranks if rank in held}) > 1:
                del found[first]
    return [tuple(sorted(ranks)) for _, ranks in sorted(found.items())]


def _mates(groups: Sequence[Sequence[int]], lost: Sequence[int]) -> str:
    """Return what the operator confirms with a division, empty when it helps no lost rank."""
    clauses = []
    for rank in lost:
        ranks = next(ranks for ranks in groups if rank in ranks)
        others = [one for one in ranks if one not in lost]
        if others:
            clauses.append(f"rank {rank} holds what rank {others[0]} holds")
    return " and ".join([*clauses[:4], *(["so on"] if len(clauses) > 4 else [])])


def _option(groups: Sequence[Sequence[int]]) -> str:
    if len(groups) <= _MOST_GROUPS:
        return " ".join(f"--group {','.join(map(str, ranks))}" for ranks in groups)
    stride, size = groups[0][1] - groups[0][0], len(groups[0])
    sizes = {"tp": stride, "dp": size, "pp": len(groups) // stride}
    return "--axes " + ",".join(f"{axis}={count}" for axis, count in sizes.items() if count > 1)
