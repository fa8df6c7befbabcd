"""Ranks that hold equal contents where nothing says that they should: what the operator may then confirm."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from ms_recover.file_names import MANIFEST_SUFFIX
from ms_recover.model.inventory import SliceFile
from ms_recover.model.plan import RejectedStep, of_this_run
from ms_recover.model.slices import ParameterList
from ms_recover.model.steps import Step
from ms_recover.model.texts import list_some
from ms_recover.planning.tree.candidates import runs_of, why_older
from ms_recover.planning.tree.facts import Facts, SliceFacts
from ms_recover.planning.tree.world_size import BY_FILES

_MOST_NAMED = 4
_MOST_ADDED = 64
"""Ranks without a trace that are thought of where only files say how many there are."""
_MOST_GROUPS = 8
"""Groups up to which each is an option of its own; of more the axes are given."""

Seen = Mapping[Step, Mapping[int, Hashable]]
"""By step and rank what stands for the contents of the rank's slice: equal where these are."""


def is_unclaimed(facts: Facts) -> bool:
    """Whether no rank list, layout or word of the operator says who holds the same slice."""
    groups = facts.groups
    claimed = any(
        len(ranks) > 1 or rank in groups.claimed or not groups.sources[rank].endswith(MANIFEST_SUFFIX)
        for rank, ranks in groups.members.items()
    )
    return not claimed and facts.stages.problem is not None


def why_overwritten(facts: Facts) -> str | None:
    """Return which rank lists or strategy files contradict others, None where none do.

    An evaluation, or another job, that ran in the directories of a training writes its own over those of the training.
    """
    stages = facts.stages
    if facts.groups.contested and stages.contradicts is not None:
        return f"the rank lists and {stages.contradicts} contradict each other"
    for file in facts.inventory.strategy_files:
        stage = stages.of(file.rank)
        used = stages.digests.get(stage)
        if used and file.digest and file.digest not in used:
            return f"{file.path} and {stages.paths[stage]} contradict each other"
    return stages.problem if len(facts.inventory.strategy_files) > 1 else None


def ranks_without_claim(facts: Facts, recoverable: bool, rejected: Sequence[RejectedStep]) -> tuple[int, ...] | None:
    """Return the ranks without a source at the newest step, where nothing says who holds the same slice.

    Or where the files that say it contradict each other, so that they may be those of an evaluation or another job.

    None where that is of no interest; no ranks where some may be lost without a trace.
    """
    newest = next(iter(of_this_run(tuple(rejected))), None)
    lost = newest.ranks if newest is not None else ()
    if not is_unclaimed(facts):
        return lost if lost and why_overwritten(facts) is not None else None
    of_interest = lost if newest is not None else recoverable and facts.world.guessed
    return lost if of_interest else None


def slices_to_compare(facts: Facts, lost: Sequence[int]) -> tuple[SliceFile, ...]:
    """Return the slices that must be read next to find ranks with equal contents at all steps.

    These are all of the newest step that two ranks have; then, where two are equal, the older ones of those, and of all
    when some rank has older ones only. Where no rank is known to be lost and the ranks that have files divide evenly,
    none is.
    """
    steps = _comparable(facts)
    newest = next(iter(steps), None)
    if newest is None:
        return ()
    unread = [slice_.file for slice_ in steps[newest] if slice_.digests is None]
    if unread:
        return tuple(unread)
    seen = _seen(facts, {newest: steps[newest]})
    alike = {rank for ranks in _sets(seen) for rank in ranks}
    if not lost and regular_divisions(seen, facts.world.ranks):
        return ()
    present = {slice_.rank for slice_ in steps[newest]}
    if alike and any(slice_.rank not in present for slices in steps.values() for slice_ in slices):
        alike = {slice_.rank for slices in steps.values() for slice_ in slices}
    return tuple(
        slice_.file for slices in steps.values() for slice_ in slices if slice_.digests is None and slice_.rank in alike
    )


def equal_ranks(facts: Facts, lost: Sequence[int]) -> tuple[str, ...]:
    """Return what to tell the operator about ranks with equal contents; nothing when there are none.

    Where they are part of one regular division of all ranks, and of one only, the option that confirms it is named.
    Where only files say how many ranks there are, the division may have more; with no rank known to be lost it must.
    """
    seen = seen_contents(facts)
    sets = _sets(seen)
    if not sets:
        return ()
    ranks, divisions = _most_likely(facts, seen)
    added = range(facts.world.ranks, ranks)
    common = [step for step, by_rank in seen.items() if any(by_rank.keys() >= set(alike[:2]) for alike in sets)]
    which = list_some(map(_set_text, sets), _MOST_NAMED, separator="; ")
    at = f"step{'s' * (len(common) > 1)} {list_some(map(str, common), 8)}"
    against = None if is_unclaimed(facts) else why_overwritten(facts)
    claim = "but no file says who holds the same slice"
    if against is not None:
        claim = (
            f"and {against}: an evaluation or another job may have overwritten some; put those of before back, or name "
            "them with --group-info and --strategy once those of now are out of the tree"
        )
    text = f"ranks {which} hold equal bytes at {at}, {claim}"
    mates = _mates(divisions[0], [*lost, *added]) if len(divisions) == 1 else ""
    if mates:
        way = "accept it with:" if against is None else "move them out of the tree and say:"
        return (f"{text}; if {mates}, {way} {_option(divisions[0].groups(ranks))}",)
    return (f"{text}; say who holds the same as rank {lost[0]} with --group or --axes",) if lost else ()


def seen_contents(facts: Facts) -> Seen:
    """Return what is known of the contents of slices that could be compared, newest step first."""
    return _seen(facts, _comparable(facts))


@dataclass(frozen=True, slots=True)
class Division:
    """All ranks in groups of one size, whose ranks are one stride apart."""

    stride: int
    size: int

    def group_of(self, rank: int) -> int:
        """Return the number of a rank's group."""
        return rank // (self.stride * self.size) * self.stride + rank % self.stride

    def ranks(self, group: int) -> range:
        """Return the ranks of a group."""
        first = group // self.stride * self.stride * self.size + group % self.stride
        return range(first, first + self.stride * self.size, self.stride)

    def groups(self, world_size: int) -> list[range]:
        """Return the groups of a world."""
        return [self.ranks(group) for group in range(world_size // self.size)]


def regular_divisions(seen: Seen, world_size: int) -> list[Division]:
    """Return the divisions of all ranks that contents confirm.

    In each, ranks of one group hold equal contents at every step, those of two groups different ones, and some group
    has two ranks at one step.
    """
    blocks = [block for block in range(2, world_size + 1) if world_size % block == 0]
    kinds = (Division(stride, block // stride) for block in blocks for stride in range(1, block) if not block % stride)
    return [division for division in kinds if _is_confirmed(division, seen)]


def _most_likely(facts: Facts, seen: Seen) -> tuple[int, list[Division]]:
    """Return the number of ranks and its divisions; where it is a guess that has none, of the next number that has."""
    known = facts.world.ranks
    divisions = regular_divisions(seen, known)
    if not divisions and facts.world.guessed and facts.world.source == BY_FILES:
        for ranks in range(known + 1, min(2 * known, known + _MOST_ADDED)):
            more = [division for division in regular_divisions(seen, ranks) if ranks - known < ranks // division.size]
            if more:
                return ranks, more
    return known, divisions


def _is_confirmed(division: Division, seen: Seen) -> bool:
    confirmed = False
    for by_rank in seen.values():
        by_group: dict[int, Hashable] = {}
        by_contents: dict[Hashable, int] = {}
        for rank, contents in by_rank.items():
            group = division.group_of(rank)
            confirmed = confirmed or group in by_group
            if by_group.setdefault(group, contents) != contents or by_contents.setdefault(contents, group) != group:
                return False
    return confirmed


def _comparable(facts: Facts) -> dict[Step, list[SliceFacts]]:
    """Return the steps of the present run, newest first, with the slices of each that could be compared."""
    comparable = {}
    for step in sorted(facts.steps, reverse=True):
        slices = facts.counted_at(step)
        if not slices or why_older(facts, step) is not None:
            continue
        run = runs_of(facts, step)[0]
        by_rank = {
            slice_.rank: slice_
            for slice_ in slices
            if slice_.file.encryption is None
            and slice_.problem is None
            and run.why_foreign(slice_.file) is None
            and not slice_.recovered
        }
        if len(by_rank) > 1:
            comparable[step] = list(by_rank.values())
    return comparable


def _seen(facts: Facts, steps: Mapping[Step, Sequence[SliceFacts]]) -> Seen:
    """Return what stands for the contents of the slices that were read, parameters that may differ aside."""
    kept: dict[ParameterList, list[int]] = {}
    seen: dict[Step, dict[int, Hashable]] = {}
    for step, slices in steps.items():
        inodes: set[tuple[int, int]] = set()
        seen[step] = {}
        for slice_ in slices:
            if slice_.digests is None or (slice_.file.inode is not None and slice_.file.inode in inodes):
                continue
            inodes |= {slice_.file.inode} if slice_.file.inode is not None else set()
            if slice_.listed not in kept:
                names = enumerate(slice_.listed.index)
                kept[slice_.listed] = [place for place, name in names if not facts.tolerance.covers(name)]
            digests = slice_.contents.parameters
            seen[step][slice_.rank] = (slice_.listed, tuple(digests[place] for place in kept[slice_.listed]))
    return seen


def _sets(seen: Seen) -> list[tuple[int, ...]]:
    """Return the sets of ranks that are equal at some step, by way of others too, and differ at none."""
    sets: dict[int, set[int]] = {}
    for by_rank in seen.values():
        alike: dict[Hashable, int] = {}
        for rank, contents in by_rank.items():
            ours, theirs = sets.setdefault(alike.setdefault(contents, rank), {rank}), sets.setdefault(rank, {rank})
            if ours is not theirs:
                ours |= theirs
                sets |= dict.fromkeys(theirs, ours)
    equal = {min(ranks): ranks for ranks in sets.values() if len(ranks) > 1}
    for by_rank in seen.values():
        for first, ranks in list(equal.items()):
            if len({by_rank[rank] for rank in ranks if rank in by_rank}) > 1:
                del equal[first]
    return [tuple(sorted(ranks)) for _, ranks in sorted(equal.items())]


def _mates(division: Division, lost: Sequence[int]) -> str:
    """Return what the operator confirms with a division, empty when it helps no lost rank."""
    clauses = []
    for rank in lost:
        others = [mate for mate in division.ranks(division.group_of(rank)) if mate not in lost]
        if others:
            clauses.append(f"rank {rank} holds what rank {others[0]} holds")
    return " and ".join([*clauses[:_MOST_NAMED], *(["so on"] if len(clauses) > _MOST_NAMED else [])])


def _set_text(ranks: Sequence[int]) -> str:
    if len(ranks) > _MOST_NAMED:
        return list_some(ranks, _MOST_NAMED)
    return f"{', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"


def _option(groups: Sequence[range]) -> str:
    if len(groups) <= _MOST_GROUPS:
        return " ".join(f"--group {','.join(map(str, ranks))}" for ranks in groups)
    sizes = {"tp": groups[0].step, "dp": len(groups[0]), "pp": len(groups) // groups[0].step}
    return "--axes " + ",".join(f"{axis}={count}" for axis, count in sizes.items() if count > 1)
