"""Votes: who is right where ranks that should hold the same contents differ."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import eq

from ms_recover.file_names import ANY_ORDER
from ms_recover.model.grouped import grouped
from ms_recover.model.texts import list_some, name_some
from ms_recover.planning.claims.tolerance import Tolerance
from ms_recover.planning.tree.facts import SliceFacts


@dataclass(frozen=True, kw_only=True)
class Outvoted:
    """The parameters in which a slice differs from the winners of a vote, and the reason for the operator."""

    names: tuple[str, ...]
    reason: str


@dataclass(frozen=True, kw_only=True)
class Vote:
    """The outcome of a vote."""

    odd: Mapping[str, Outvoted] = field(default_factory=dict)
    """Path of each slice that was outvoted."""
    disagreement: str | None = None
    """The text, and in `disputed` the parameters in which the sides differ, where nothing settles who is right."""
    disputed: tuple[str, ...] = ()
    tolerated: tuple[str, ...] = ()
    """Parameters in which the members differ as they may."""
    agreeing: int = 0
    """Independent witnesses on the winning side: links and copies of one slice are one."""
    winners: frozenset[str] = frozenset()
    """Paths of the slices of the winning side; of all that voted where they agree."""


def hold_vote(ballots: Sequence[SliceFacts], tolerance: Tolerance, names: Sequence[str] | None = None) -> Vote:
    """Compare the contents of slices that should hold the same, over the parameters `names`.

    By default all parameters are compared, and the bytes around them. Slices that differ only in tolerated parameters,
    or in those that their manifests call rank-local, agree. Otherwise those with equal contents side with each other.
    The only side with a proven manifest wins; else more than half of the independent witnesses win. Nothing else
    settles it.
    """
    files = frozenset(ballot.path for ballot in ballots)
    if len({ballot.contents.file for ballot in ballots}) == 1:
        return Vote(agreeing=count_witnesses(ballots), winners=files)
    if any(not ballot.contents.parameters for ballot in ballots):
        paths = " and ".join(ballot.path for ballot in ballots[:2])
        return Vote(disagreement=f"{paths} differ, and their parameters cannot be read to compare them")
    # Parameters that may differ have no say.
    tolerance = tolerance.of_slices(ballot.rank_local for ballot in ballots)
    wanted = names if names is not None else list(ballots[0].listed.index)
    core = [name for name in wanted if not tolerance.covers(name)]
    sides = sides_of(ballots, core)
    loose = [name for name in wanted if tolerance.covers(name)]
    if len(sides) == 1:
        return _agreement(ballots, wanted, loose, whole=names is None)
    settled = _winner(sides)
    if settled is None:
        return leave_open(ballots, core)
    # Whoever differs from the winners is outvoted, with the parameters in which it does.
    winner, by_manifest = settled
    how = "proven by manifest" if by_manifest else f"{count_witnesses(winner)} of {count_witnesses(ballots)} holders"
    odd = {}
    for side in sides:
        for ballot in side if side is not winner else ():
            where = differing([ballot, winner[0]], core)
            differ = "differs" if len(where) == 1 else "differ"
            reason = f"{name_some(where)} {differ} from {_side_text(winner)} ({how}): suspect of silent corruption"
            odd[ballot.path] = Outvoted(names=where, reason=reason)
    return Vote(
        odd=odd,
        tolerated=differing(winner, loose),
        agreeing=count_witnesses(winner),
        winners=frozenset(ballot.path for ballot in winner),
    )


def leave_open(ballots: Sequence[SliceFacts], names: Sequence[str]) -> Vote:
    """Return the outcome of a vote over parameters in which slices differ with nothing to settle who is right."""
    differ = differing(ballots, names)
    parts = "; ".join(_side_text(side) for side in sides_of(ballots, names))
    return Vote(disagreement=f"{parts} hold different contents in {name_some(differ)}", disputed=differ)


def _agreement(ballots: Sequence[SliceFacts], wanted: Sequence[str], loose: Sequence[str], *, whole: bool) -> Vote:
    tolerated = differing(ballots, loose)
    fixed = {b.contents.file: b for b in ballots if not b.path.endswith(ANY_ORDER)}
    if whole and not tolerated and len(fixed) > 1:  # equal contents in different wrapping, which nobody writes
        paths = " and ".join(ballot.path for ballot in list(fixed.values())[:2])
        return Vote(disagreement=f"{paths} hold equal parameters but differ outside of them")
    files = frozenset(ballot.path for ballot in ballots)
    return Vote(tolerated=tolerated, agreeing=count_witnesses(ballots), winners=files)


def sides_of(ballots: Iterable[SliceFacts], names: Sequence[str]) -> list[list[SliceFacts]]:
    """Return slices with equal contents of some parameters together."""
    return list(grouped(ballots, lambda ballot: _values(ballot, names)).values())


def _winner(sides: list[list[SliceFacts]]) -> tuple[list[SliceFacts], bool] | None:
    """Return the side that is right and whether a manifest proves it, None when nothing settles it."""
    proven = [side for side in sides if any(ballot.proven for ballot in side)]
    if len(proven) == 1:
        return proven[0], True
    counts = [count_witnesses(side) for side in sides]
    best = max(range(len(sides)), key=lambda index: counts[index])
    return (sides[best], False) if 2 * counts[best] > sum(counts) else None


def count_witnesses(ballots: Iterable[SliceFacts]) -> int:
    """Count independent witnesses: links to one file are one, and so are a slice and its unproven copies."""
    seen: dict[object, SliceFacts] = {}
    for ballot in ballots:
        seen.setdefault(ballot.file.inode or ballot.path, ballot)
    paths = {ballot.path for ballot in seen.values()}
    count = 0
    for ballot in seen.values():
        sources = ballot.manifest.provenance.sources if ballot.manifest is not None else ()
        count += not any(source.host is None and source.path in paths for source in sources)
    return max(count, 1) if seen else 0


def differing(ballots: Sequence[SliceFacts], names: Sequence[str]) -> tuple[str, ...]:
    """Return those of some parameters in which ballots differ, in the order given."""
    columns = zip(*(_values(ballot, names) for ballot in ballots), strict=True)
    return tuple(name for name, column in zip(names, columns, strict=True) if len(set(column)) > 1)


def _values(one: SliceFacts, names: Sequence[str]) -> tuple[str | None, ...]:
    """Return the digests of some parameters of a slice."""
    if one.digests is not None and len(names) == len(one.listed) and all(map(eq, names, one.listed.index)):
        return one.digests.parameters
    return tuple(map(one.digest_of, names))


def _side_text(side: Collection[SliceFacts]) -> str:
    return list_some((ballot.path for ballot in side), separator=" = ")
