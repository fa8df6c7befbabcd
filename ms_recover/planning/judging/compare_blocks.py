"""Compare the contents of slices block by block, with all known claims of who holds the same."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ms_recover.model.grouped import grouped
from ms_recover.model.slices import ParameterList
from ms_recover.model.texts import name_some
from ms_recover.planning.claims.blocks import Block, find_blocks
from ms_recover.planning.judging.splits import is_alone, is_uncommitted, settle_split, shows_split
from ms_recover.planning.judging.votes import Outvoted, Vote, count_witnesses, hold_vote, sides_of
from ms_recover.planning.tree.facts import Facts, SliceFacts


@dataclass(frozen=True, kw_only=True)
class BlockComparison:
    """The result of comparing all blocks of a step."""

    outvoted: Mapping[str, Outvoted] = field(default_factory=dict)
    """Path of each slice that lost a vote, the parameters and the reason."""
    good: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Path of each outvoted slice to the parameters in it that may still be used: not outvoted, in a slice that agrees
    with others in at least as many parameters as it is outvoted in.
    """
    disagreements: Mapping[tuple[int, ...], str] = field(default_factory=dict)
    """Ranks that should hold the same and differ, with nothing to settle who is right."""
    undecided: Mapping[str, str] = field(default_factory=dict)
    """Path of each slice on a side of a disagreement, and the disagreement."""
    witnesses: Mapping[str, int] = field(default_factory=dict)
    """Path of a slice to the number of independent slices, itself included, that hold the same in every parameter
    that is compared; 1 when some parameter was compared with nothing.
    """
    alone: frozenset[str] = frozenset()
    """Paths of slices with some parameter that no other slice, copies and links included, holds the same."""
    tolerated: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Path of a slice to parameters in which its replicas differ as they may."""


@dataclass(frozen=True, kw_only=True)
class _Counted:
    """One vote over some parameters of a block; `manifest` is how the only manifest that proves a side decides it."""

    block: Block
    names: tuple[str, ...]
    ballots: tuple[SliceFacts, ...]
    vote: Vote
    manifest: Vote | None = None


def compare_blocks(facts: Facts, slices: Sequence[SliceFacts]) -> BlockComparison:
    """Let slices of a step and run that nothing else rules out, at most one a rank, vote block by block.

    Those of which no contents are known do not vote.
    """
    by_rank = {slice_.rank: slice_ for slice_ in slices if slice_.digests is not None}
    votes: list[_Counted] = []
    named: dict[int, set[str]] = defaultdict(set)
    by_file = find_blocks(by_rank, facts.stages, facts.groups)
    list_blocks = by_file.pop("", [])
    for blocks in by_file.values():
        counted = [tally for block in blocks for tally in _count(facts, block, by_rank, frozenset())]
        if not _is_trusted(facts, counted):
            continue
        votes += [tally for tally in counted if not _all_proven(tally)]
    votes += _counters_of_stages(facts, by_rank)
    for tally in votes:
        for ballot in tally.ballots:
            named[ballot.rank].update(tally.names)
    for block in list_blocks:
        done = frozenset(set.intersection(*(named[rank] for rank in block.ranks)))
        counted = _count(facts, block, by_rank, done)
        if done:
            whole = _count(facts, block, by_rank, frozenset())
            counted += [tally for tally in whole if tally.vote.disagreement is not None and not tally.vote.disputed]
        votes += counted
    return _sum_up(facts, by_rank, _decided_by_manifests(votes))


def find_refuted(facts: Facts, slices: Sequence[SliceFacts]) -> dict[str, str]:
    """Return the strategy files that the contents of a step contradict, each path with the reason.

    Slices with a manifest, those of which no contents are known, and those that were not committed, show nothing.
    """
    by_rank = {
        slice_.rank: slice_
        for slice_ in slices
        if slice_.digests is not None and slice_.manifest is None and slice_.file.problem is None
        if not is_uncommitted(facts, slice_)
    }
    refuted: dict[str, str] = {}
    for path, blocks in find_blocks(by_rank, facts.stages, facts.groups).items():
        counted = [tally for block in blocks for tally in _count(facts, block, by_rank, frozenset())] if path else []
        agree, differ = _count_sides(counted)
        odd = min((slice_ for slice_, names in differ.items() if len(names) > agree[slice_]), default=None)
        if odd is not None:
            (other, _), *_ = differ[odd]
            names = name_some([name for _, name in differ[odd]])
            refuted[path] = (
                f"{odd} and {other} hold different contents in {names}, by {path}: it is not the strategy file of "
                "these slices, or they are damaged"
            )
    return refuted


def _count_sides(votes: Iterable[_Counted]) -> tuple[Counter[str], dict[str, list[tuple[str, str]]]]:
    """Count by slice the parameters in which one of another group agrees, and list those in which all differ.

    Of the latter there is another slice, and the name.
    """
    agree: Counter[str] = Counter()
    differ: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for tally in votes:
        for name in tally.names:
            sides = sides_of(tally.ballots, (name,))
            for side in sides:
                group = side[0].group
                if any(ballot.group != group for ballot in side):
                    agree.update(ballot.path for ballot in side)
                    continue
                others = (ballot for rival in sides if rival is not side for ballot in rival)
                other = next((ballot.path for ballot in others if ballot.group != group), None)
                if other is not None:
                    for ballot in side:
                        differ[ballot.path].append((other, name))
    return agree, differ


def _all_proven(one: _Counted) -> bool:
    """Whether slices differ that all have a proven manifest: as they were saved, which no layout makes wrong."""
    settled = one.vote.disagreement is None and not one.vote.odd
    return not settled and all(ballot.proven for ballot in one.ballots)


def _count(facts: Facts, block: Block, by_rank: Mapping[int, SliceFacts], done: frozenset[str]) -> list[_Counted]:
    """Hold the votes of a block: one for all slices that list the same of its parameters."""
    kinds: dict[tuple[str, ...] | None, list[SliceFacts]] = defaultdict(list)
    cache: dict[ParameterList, tuple[str, ...] | None] = {}
    for rank in block.ranks:
        ballot = by_rank[rank]
        if ballot.listed not in cache:
            cache[ballot.listed] = _names_of(ballot.listed, block, done)
        names = cache[ballot.listed]
        if names is None or names:
            kinds[None if names is None else tuple(sorted(names))].append(ballot)
    counted = []
    for names, ballots in kinds.items():
        known = names if names is not None else tuple(ballots[0].listed.index)
        outcome = hold_vote(ballots, facts.tolerance, names)
        vote = settle_split(facts, ballots, outcome, known)
        proven = any(ballot.proven for ballot in ballots if ballot.path in outcome.winners)
        by_manifest = outcome if outcome.odd and proven and vote.disagreement is not None else None
        counted.append(_Counted(block=block, names=known, ballots=tuple(ballots), vote=vote, manifest=by_manifest))
    return counted


def _names_of(listed: ParameterList, block: Block, done: frozenset[str]) -> tuple[str, ...] | None:
    """Return the parameters of a slice that a block compares; None for all of them."""
    if block.names is None:
        return None if not done else tuple(one.name for one in listed if one.name not in done)
    return tuple(one.name for one in listed if one.name in block.names)


def _is_trusted(facts: Facts, votes: Sequence[_Counted]) -> bool:
    """Whether slices confirm a strategy file: one of another job or layout shows nothing about them.

    It is trusted if manifests that training saved name it. Otherwise ranks of different groups must agree in at least
    as many of its parameters as they differ in, unless that is a single one.
    """
    if any(facts.stages.is_named_by(ballot.file) for tally in votes for ballot in tally.ballots):
        return True
    agree: set[str] = set()
    split: set[str] = set()
    for tally in votes:
        if len({ballot.group for ballot in tally.ballots}) > 1:
            agree.update(set(tally.names).difference(tally.vote.disputed))
            split.update(tally.vote.disputed)
    return len(split - agree) <= max(len(agree), 1)


def _counters_of_stages(facts: Facts, by_rank: Mapping[int, SliceFacts]) -> list[_Counted]:
    """Compare counters over a whole stage: steps, learning rates, powers of beta.

    No file claims that they are equal, but where most ranks have one value and slices of one rank list another, but not
    all of several survivors of it, these are damaged. Only parameters of one element are counters: a larger one may be
    cut although nothing states its layout.
    """
    counted = []
    slices = (by_rank[rank] for rank in sorted(by_rank))
    for stage, ballots in grouped(slices, lambda slice_: facts.stages.of(slice_.rank)).items():
        layouts = facts.stages.layouts.get(stage)
        if layouts is None or not all(ballot.contents.parameters for ballot in ballots):
            continue
        shared = set.intersection(*(_counters_in(listed) for listed in {ballot.listed for ballot in ballots}))
        tolerance = facts.tolerance.of_slices(ballot.rank_local for ballot in ballots)
        for name in sorted(name for name in shared - layouts.keys() if not tolerance.covers(name)):
            *odd, most = sorted(sides_of(ballots, (name,)), key=count_witnesses)
            if len(most) < 2 or not all(is_alone(side, ballots) for side in odd):
                continue
            block = Block(ranks=tuple(ballot.rank for ballot in ballots), names=frozenset((name,)), source="")
            vote = hold_vote(ballots, facts.tolerance, (name,))
            if vote.disagreement is None and not shows_split(facts, ballots, vote):
                counted.append(_Counted(block=block, names=(name,), ballots=tuple(ballots), vote=vote))
    return counted


def _counters_in(listed: ParameterList) -> set[str]:
    return {one.name for one in listed if one.is_counter}


def _decided_by_manifests(votes: Sequence[_Counted]) -> list[_Counted]:
    """Return votes, those that were left open decided by a manifest where all losers are outvoted in others as well."""
    odd = {path for one in votes for path in one.vote.odd}
    return [
        replace(one, vote=one.manifest) if one.manifest is not None and one.manifest.odd.keys() <= odd else one
        for one in votes
    ]


def _sum_up(facts: Facts, by_rank: Mapping[int, SliceFacts], votes: Sequence[_Counted]) -> BlockComparison:
    # What votes over layouts settle, a rank list need not: its dispute about the same is none.
    settled = {
        (path, name)
        for tally in votes
        if tally.block.by_layout
        for path, lost in tally.vote.odd.items()
        for name in lost.names
    }
    odd: dict[str, list[Outvoted]] = defaultdict(list)
    disagreements: dict[tuple[int, ...], str] = {}
    undecided: dict[str, str] = {}
    disputed: dict[str, set[str]] = defaultdict(set)
    witnesses: dict[str, int] = {}
    alone: set[str] = set()
    tolerated: dict[str, list[str]] = defaultdict(list)
    agreeing: Counter[str] = Counter()
    for tally in votes:
        vote = tally.vote
        if vote.disagreement is not None and not _settled_elsewhere(tally, settled):
            text = vote.disagreement
            if tally.block.by_layout:
                text += f", by {tally.block.source}: it is not the strategy file of these slices, or they are damaged"
            disagreements[_ranks_of(facts, tally.block)] = text
            undecided |= {ballot.path: text for ballot in tally.ballots}
            for ballot in tally.ballots:
                disputed[ballot.path].update(vote.disputed)
        for path, lost in vote.odd.items():
            odd[path].append(lost)
        alone |= vote.winners if len(vote.winners) == 1 and tally.names else frozenset()
        tolerance = facts.tolerance.of_slices(ballot.rank_local for ballot in tally.ballots)
        compared = any(not tolerance.covers(name) for name in tally.names)
        for path in vote.winners:
            if compared:
                witnesses[path] = min(witnesses.get(path, vote.agreeing), vote.agreeing)
            agreeing[path] += len(tally.names) if vote.agreeing > 1 else 0
            tolerated[path] += vote.tolerated
    # A slice that lost may still give what it was not outvoted in, unless it agrees with others in less than that.
    outvoted = {path: _merge(lost) for path, lost in odd.items()}
    good = {}
    for one_slice in by_rank.values():
        path = one_slice.path
        if path in outvoted:
            usable = agreeing[path] + _agreeing_in_lost_votes(path, votes) >= len(outvoted[path].names)
            names = frozenset(one_slice.listed.index) - set(outvoted[path].names) - disputed[path]
            good[path] = names if usable else frozenset()
    return BlockComparison(
        outvoted=outvoted,
        good=good,
        disagreements=disagreements,
        undecided=undecided,
        witnesses=witnesses,
        alone=frozenset(alone),
        tolerated={path: tuple(dict.fromkeys(names)) for path, names in tolerated.items() if names},
    )


def _agreeing_in_lost_votes(path: str, votes: Sequence[_Counted]) -> int:
    """Count the parameters in which a slice agrees with the winners of votes that it lost over others."""
    return sum(len(one.names) - len(one.vote.odd[path].names) for one in votes if path in one.vote.odd)


def _settled_elsewhere(one: _Counted, settled: set[tuple[str, str]]) -> bool:
    """Whether votes over layouts name a wrong slice for each parameter that the members of a rank list dispute."""
    if not one.vote.disputed:
        return False
    paths = [ballot.path for ballot in one.ballots]
    return all(any((path, name) in settled for path in paths) for name in one.vote.disputed)


def _ranks_of(facts: Facts, block: Block) -> tuple[int, ...]:
    """Return all ranks that hold a block by its claim, those without a slice included."""
    if not block.by_layout:
        return facts.groups.of(block.ranks[0])
    return block.ranks


def _merge(lost: Sequence[Outvoted]) -> Outvoted:
    names = tuple(dict.fromkeys(name for outvoted in lost for name in outvoted.names))
    first, *more = lost
    also = [name for outvoted in more for name in outvoted.names if name not in first.names]
    text = f"{first.reason}; and {name_some(list(dict.fromkeys(also)))} likewise" if also else first.reason
    return Outvoted(names=names, reason=text)
