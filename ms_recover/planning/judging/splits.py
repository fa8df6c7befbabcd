"""Splits: slices that differ where a layout calls them equal are damaged, or the parameter is cut there.

A strategy file may be that of another job, and that of a stage may leave out a parameter which is cut all the same. So
contents that differ over a layout are damage only where nothing else fits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from ms_recover.model.steps import Step
from ms_recover.planning.facts import Facts, SliceFacts
from ms_recover.planning.judging.votes import Vote, count_witnesses, leave_open, sides_of
from ms_recover.planning.runs import base_of


def settle_split(facts: Facts, ballots: Sequence[SliceFacts], vote: Vote, names: Sequence[str]) -> Vote:
    """Return a vote over a layout, left open where the sides may hold different parts of a parameter.

    Slices of one rank list vote among themselves. Else a side is outvoted only by slices of two rank lists or more,
    when it is of one alone, is not what several survivors of that list all hold, and no other step shows this split.
    """
    if not vote.odd:
        return vote
    winners = [one for one in ballots if one.path in vote.winners]
    losers = [one for one in ballots if one.path in vote.odd]
    several = len(_groups(ballots)) > 1
    if several and len(_groups(winners)) < 2:
        return leave_open(ballots, names)
    for side in sides_of(losers, names):
        if several and not _is_alone(side, ballots):
            return leave_open(ballots, names)
        if any(_shows_split(facts, one, winners, vote.odd[one.path].names) for one in side):
            return leave_open(ballots, names)
    return vote


def _groups(slices: Iterable[SliceFacts]) -> set[tuple[int, ...]]:
    return {one.group for one in slices}


def _is_alone(side: Sequence[SliceFacts], ballots: Sequence[SliceFacts]) -> bool:
    """Whether a losing side is of one rank list, and is not what all of several survivors of it hold."""
    groups = _groups(side)
    if len(groups) > 1:
        return False
    held = [one for one in ballots if one.group in groups]
    return len(held) > len(side) or count_witnesses(side) < 2


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
