"""Splits: slices that differ where something calls them equal are damaged, or the parameter is cut there.

A strategy file or a rank list may be that of another job, and the strategy file of a stage may leave out a parameter
which is cut all the same. So contents that differ are damage only where nothing else fits.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from ms_recover.model.steps import Step
from ms_recover.planning.claims.layouts import cells_of
from ms_recover.planning.claims.manifest_check import check_header
from ms_recover.planning.judging.votes import Vote, count_witnesses, differing, leave_open, sides_of
from ms_recover.planning.tree.facts import Facts, SliceFacts
from ms_recover.planning.tree.lineage import identity_of


def settle_split(facts: Facts, ballots: Sequence[SliceFacts], vote: Vote, names: Sequence[str]) -> Vote:
    """Return a vote over a layout or a rank list, left open where the sides may hold different parts of a parameter.

    Over a layout a side is outvoted only by slices of two rank lists or more, when it is of one alone, and is not what
    several survivors of that list all hold. No slice is outvoted where another step shows the same split, unless by one
    of its rank list with a manifest that proves it.
    """
    winners = [ballot for ballot in ballots if ballot.path in vote.winners]
    losers = [ballot for ballot in ballots if ballot.path in vote.odd]
    several = len(_groups(ballots)) > 1
    if not losers or (not several and any(ballot.proven for ballot in winners)):
        return vote
    odd = tuple({name for lost in vote.odd.values() for name in lost.names})
    confirmed = _groups(ballot for ballot in winners if not _may_be_misplaced(ballot, winners, losers))
    cut = several and (len(confirmed) < 2 or not all(is_alone(side, ballots) for side in sides_of(losers, odd)))
    return leave_open(ballots, names) if cut or shows_split(facts, ballots, vote) else vote


def _groups(slices: Iterable[SliceFacts]) -> set[tuple[int, ...]]:
    return {one.group for one in slices}


def _may_be_misplaced(one: SliceFacts, winners: Iterable[SliceFacts], losers: Iterable[SliceFacts]) -> bool:
    """Whether a winner has all the bytes of another rank list's slice, and few of those of its own: it is no witness.

    Two rank lists hold different slices.
    """
    if not any(_is_unlike(one, other) for other in losers if other.group == one.group):
        return False
    return any(one.has_bytes_of(other) for other in winners if other.group != one.group)


def is_alone(side: Sequence[SliceFacts], ballots: Sequence[SliceFacts]) -> bool:
    """Whether a losing side is of one rank list, and is not what all of several survivors of it hold."""
    groups = _groups(side)
    if len(groups) > 1:
        return False
    held = [one for one in ballots if one.group in groups]
    return len(held) > len(side) or count_witnesses(side) < 2


def shows_split(facts: Facts, ballots: Sequence[SliceFacts], vote: Vote) -> bool:
    """Whether slices of a rank that is outvoted differ at another step, too, from those of winners that agree there."""
    winners = [one for one in ballots if one.path in vote.winners]
    return any(_shows_split(facts, one, winners, vote.odd[one.path].names) for one in ballots if one.path in vote.odd)


def why_no_replica(facts: Facts, rank: int, source: SliceFacts) -> str | None:
    """Return why a rank does not hold the same slice as a source, by what both hold at other steps; None if it may.

    Steps at which they are of different runs, or one was cut off, show nothing. They agree at no other, and at each
    they list other parameters, or differ in several, or in most of their bytes: damage strikes one slice of one step,
    and in one place. So it is where they differ in just what a strategy file cuts between them, though others of its
    stage say otherwise; or where they differ in one and the same parameter at several steps.
    """
    shown: list[str] = []
    always: set[str] | None = None
    for mine, theirs in _elsewhere(facts, rank, source, _readable):
        if _of_two_runs(mine, theirs):
            continue
        if mine.file.encryption is not None:
            return None
        differ = _known_to_differ(facts, mine, theirs)
        if not differ and _is_beginning(*sorted((mine, theirs), key=lambda slice_: len(slice_.listed))):
            continue
        shown.append(f"{mine.path} and {theirs.path}")
        if not (_is_apart(mine, theirs, differ) or _is_cut(facts, mine, theirs)):
            always = differ if always is None else always & differ
    if not shown or (always is not None and (not always or len(shown) < 2)):
        return None
    return f"{shown[0]} hold different contents, so that a rank list that names both is not theirs"


def _is_beginning(short: SliceFacts, long: SliceFacts) -> bool:
    """Whether a slice lists what another one begins with, as one that was cut off does, and holds large parameters."""
    begun = len(short.listed) < len(long.listed) and short.listed == long.listed[: len(short.listed)]
    known = all(one.digest_of(parameter.name) is not None for one in (short, long) for parameter in short.listed)
    return begun and known and not all(parameter.is_counter for parameter in short.listed)


def _is_apart(one: SliceFacts, other: SliceFacts, differ: Collection[str]) -> bool:
    """Whether two slices are more than one of them with damage in one place; `differ` has where they differ."""
    large = [name for name in differ if not one.listed[one.listed.index[name]].is_counter]
    return len(large) > 1 or _is_unlike(one, other)


def _known_to_differ(facts: Facts, mine: SliceFacts, theirs: SliceFacts) -> set[str]:
    """Return the parameters in which two slices differ as ranks that hold the same may not."""
    shared = [name for name in mine.listed.index if name in theirs.listed.index]
    known = [name for name in shared if None not in (mine.digest_of(name), theirs.digest_of(name))]
    tolerance = facts.tolerance.of_slices((mine.rank_local, theirs.rank_local))
    return {name for name in differing([mine, theirs], known) if not tolerance.covers(name)}


def differing_elsewhere(facts: Facts, rank: int, source: SliceFacts) -> frozenset[str]:
    """Return the parameters that a rank and a source do not share, by what their manifests state of another step.

    Counters are the same on all ranks: where they differ, one is damaged. Without manifests they are the parameters in
    which both differ at each other step, where there are several steps or no damage makes slices differ so.
    """
    bare: list[set[str]] = []
    apart = False
    for mine, theirs in _elsewhere(facts, rank, source, _sound):
        if (mine.manifest is None) != (theirs.manifest is None):
            continue
        if mine.manifest is None:
            differ = _known_to_differ(facts, mine, theirs)
            bare.append(
                {parameter.name for parameter in mine.listed if parameter.name in differ and not parameter.is_counter}
            )
            apart = apart or _is_apart(mine, theirs, bare[-1])
        elif identity_of(mine.manifest) == identity_of(theirs.manifest):
            shared = [
                parameter.name
                for parameter in mine.listed
                if parameter.name in theirs.listed.index and not parameter.is_counter
            ]
            return frozenset(differing([mine, theirs], shared))
    return frozenset(set.intersection(*bare)) if apart or len(bare) > 1 else frozenset()


def _elsewhere(
    facts: Facts,
    rank: int,
    source: SliceFacts,
    slices_of: Callable[[Facts, int, SliceFacts, Step], Iterator[SliceFacts]],
) -> Iterator[tuple[SliceFacts, SliceFacts]]:
    """Yield each slice of a rank at other steps than that of a source, with the first that the source's rank has."""
    for step in facts.steps:
        theirs = next(slices_of(facts, source.rank, source, step), None) if step != source.file.step else None
        if theirs is not None:
            yield from ((mine, theirs) for mine in slices_of(facts, rank, source, step))


def _of_two_runs(one: SliceFacts, other: SliceFacts) -> bool:
    """Whether manifests say that two slices are of different runs."""
    if one.manifest is None or other.manifest is None:
        return False
    return identity_of(one.manifest) != identity_of(other.manifest)


def _is_unlike(slice_: SliceFacts, other: SliceFacts) -> bool:
    """Whether two slices list other parameters, or differ in most of the bytes that are known."""
    if slice_.listed.index.keys() != other.listed.index.keys():
        return True
    alike = unlike = 0
    for parameter in slice_.listed:
        mine, theirs = slice_.digest_of(parameter.name), other.digest_of(parameter.name)
        if mine is not None and theirs is not None:
            alike += parameter.nbytes if mine == theirs else 0
            unlike += parameter.nbytes if mine != theirs else 0
    return unlike > alike


def _is_cut(facts: Facts, slice_: SliceFacts, other: SliceFacts) -> bool:
    """Whether two slices differ in just those parameters that a strategy file of their stage cuts between them."""
    if facts.stages.problem is None:
        return False  # what the files say is compared with the rank lists
    for strategy in {id(file.strategy): file.strategy for file in facts.inventory.strategy_files}.values():
        devices = strategy.devices_per_stage
        stages = {rank // devices for rank in (slice_.rank, other.rank)} if devices else set()
        if len(stages) != 1 or (strategy.stages and stages.isdisjoint(strategy.stages)):
            continue
        layouts = {layout.parameter: layout for layout in strategy.layouts if layout.parameter in slice_.listed.index}
        apart = [name for name, layout in layouts.items() if len(set(cells_of(layout, (slice_.rank, other.rank)))) > 1]
        known = None not in map(slice_.digest_of, layouts) and None not in map(other.digest_of, layouts)
        if known and apart and apart == list(differing([slice_, other], list(layouts))):
            return True
    return False


def _shows_split(facts: Facts, slice_: SliceFacts, winners: Sequence[SliceFacts], names: Sequence[str]) -> bool:
    """Whether the slice of the rank differs at another step, too, from those of the winners, which agree there."""
    for step in facts.steps:
        if step == slice_.file.step:
            continue
        for mine in _sound(facts, slice_.rank, slice_, step):
            theirs = [sound for other in winners for sound in _sound(facts, other.rank, slice_, step)]
            if any(_differs(mine, theirs, name) for name in names):
                return True
    return False


def _sound(facts: Facts, rank: int, like: SliceFacts, step: Step) -> Iterator[SliceFacts]:
    """Yield the slices that a rank saved at a step under the prefix of another slice, if nothing is wrong with them."""
    return (one for one in _readable(facts, rank, like, step) if one.manifest_problem is None)


def _readable(facts: Facts, rank: int, like: SliceFacts, step: Step) -> Iterator[SliceFacts]:
    """Yield the same, also where a manifest names another place, step or group; those that were not committed not."""
    for one in facts.at(step, rank):
        unsound = one.file.problem or one.content_problem or check_header(one.file) or is_uncommitted(facts, one)
        if facts.names.of(one.file) == facts.names.of(like.file) and not unsound and rank not in facts.lost:
            yield one


def is_uncommitted(facts: Facts, one: SliceFacts) -> bool:
    """Whether a slice has no manifest although training saved others of its prefix with one."""
    return one.manifest is None and one.file.prefix in facts.committing


def _differs(one: SliceFacts, others: Iterable[SliceFacts], name: str) -> bool:
    """Whether a slice holds other contents of a parameter than others, all of which hold the same."""
    mine, theirs = one.digest_of(name), {other.digest_of(name) for other in others} - {None}
    return mine is not None and len(theirs) == 1 and mine not in theirs
