"""Splits: slices that differ where something calls them equal are damaged, or the parameter is cut there.

A strategy file or a rank list may be that of another job, and the strategy file of a stage may leave out a parameter
which is cut all the same. So contents that differ are damage only where nothing else fits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from ms_recover.model.steps import Step
from ms_recover.planning.facts import Facts, SliceFacts
from ms_recover.planning.judging.votes import Vote, count_witnesses, leave_open, sides_of
from ms_recover.planning.prefixes import base_of


def settle_split(facts: Facts, ballots: Sequence[SliceFacts], vote: Vote, names: Sequence[str]) -> Vote:
    """Return a vote over a layout or a rank list, left open where the sides may hold different parts of a parameter.

    Independent slices with equal contents are not damaged: no side of two or more is outvoted, unless by one with a
    manifest that proves it. Over a layout a side is outvoted only by slices of two rank lists or more, and no slice
    where another step shows the same split.
    """
    winners = [one for one in ballots if one.path in vote.winners]
    losers = [one for one in ballots if one.path in vote.odd]
    proven = any(one.proven for one in winners)
    several = len({one.group for one in ballots}) > 1
    if not losers or (proven and not several):
        return vote
    odd = tuple({name for lost in vote.odd.values() for name in lost.names})
    sides = sides_of(losers, odd)
    cut = several and len({one.group for one in winners}) < 2
    cut = cut or any(count_witnesses(side) > 1 for side in sides)
    cut = cut or any(_shows_split(facts, one, winners, vote.odd[one.path].names) for one in losers)
    return leave_open(ballots, names) if cut else vote


def _shows_split(facts: Facts, one: SliceFacts, winners: Sequence[SliceFacts], names: Sequence[str]) -> bool:
    """Whether the slice of the rank differs at another step, too, from those of the winners, which agree there."""
    for step in facts.steps:
        if step == one.file.step:
            continue
        for mine in _intact(facts, one, step):
            theirs = [found for other in winners for found in _intact(facts, other, step)]
            if any(_differs(mine, theirs, name) for name in names):
                return True
    return False


def _intact(facts: Facts, like: SliceFacts, step: Step) -> Iterator[SliceFacts]:
    """Yield the slices that the same rank and run saved at another step, as far as their contents are known."""
    for one in facts.at(step, like.rank):
        unsound = one.file.problem or one.manifest_problem or one.content_problem
        same = base_of(one.file.prefix) == base_of(like.file.prefix)
        if same and one.digests is not None and not unsound and one.rank not in facts.lost:
            yield one


def _differs(one: SliceFacts, others: Iterable[SliceFacts], name: str) -> bool:
    """Whether a slice holds other contents of a parameter than others, all of which hold the same."""
    mine, theirs = one.digest_of(name), {other.digest_of(name) for other in others} - {None}
    return mine is not None and len(theirs) == 1 and mine not in theirs
