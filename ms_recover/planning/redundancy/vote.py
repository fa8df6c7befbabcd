"""Who is right when the members of a group hold different contents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ms_recover.model.inventory import SliceFile
from ms_recover.model.manifest import Digests
from ms_recover.planning.redundancy.tolerance import Tolerance

_MOST_NAMED = 5
_ORDER_LEFT_TO_CHANCE = ".safetensors"
"""Files of this format have their metadata in any order, so that equal contents make different bytes."""


@dataclass(frozen=True)
class Ballot:
    """One member's slice and what it contains.

    Parameters
    ----------
    file : SliceFile
        The slice; its header lists as many parameters as `digests` has.
    digests : Digests
        Of its contents, read or as its manifest has them.
    """

    file: SliceFile
    digests: Digests


@dataclass
class Vote:
    """The outcome of a vote.

    Parameters
    ----------
    suspects : dict of str to str
        Path of a slice that was outvoted to the reason.
    disagreement : str or None
        Set when nothing settles who is right.
    tolerated : tuple of str
        Parameters in which the members differ as they may.
    settled_by : str
        ``"manifest"`` or ``"vote"``.
    """

    suspects: dict[str, str] = field(default_factory=dict)
    disagreement: str | None = None
    tolerated: tuple[str, ...] = ()
    settled_by: str = "vote"


def hold_vote(ballots: Sequence[Ballot], tolerance: Tolerance) -> Vote:
    """Compare members' contents, parameter by parameter where files differ.

    Files that differ only in what may differ agree. Otherwise those side with each other whose remaining contents are
    equal; a side of which a member has a manifest (that its contents fulfil) wins over sides without; among equals
    more than half of the members win. Nothing else settles it.

    Parameters
    ----------
    ballots : sequence of Ballot
        At least one; all list the same parameters, those of different formats in any order.
    tolerance : Tolerance
        What may differ.
    """
    settled_by = "manifest" if any(ballot.file.manifest for ballot in ballots) else "vote"
    vote = Vote(settled_by=settled_by)
    if len({ballot.digests.file for ballot in ballots}) == 1:
        return vote
    if any(not ballot.digests.parameters for ballot in ballots):
        paths = " and ".join(ballot.file.path for ballot in ballots[:2])
        vote.disagreement = f"{paths} differ, and their parameters cannot be read to say where"
        return vote
    names = [parameter.name for parameter in ballots[0].file.parameters]
    sides: dict[tuple[str, ...], list[Ballot]] = {}
    for ballot in ballots:
        core = tuple(
            digest
            for name, digest in zip(names, _in_order(ballot, ballots[0]), strict=True)
            if not tolerance.covers(name)
        )
        sides.setdefault(core, []).append(ballot)
    if len(sides) == 1:
        vote.tolerated = differing(ballots)
        fixed = {b.digests.file: b for b in ballots if not b.file.path.endswith(_ORDER_LEFT_TO_CHANCE)}
        if not vote.tolerated and len(fixed) > 1:  # equal contents in different wrapping, which nobody writes
            paths = " and ".join(ballot.file.path for ballot in list(fixed.values())[:2])
            vote.disagreement = f"{paths} hold equal parameters but differ outside of them"
        return vote
    winner = _winner(list(sides.values()))
    if winner is None:
        parts = "; ".join(_side_text(side) for side in sides.values())
        vote.disagreement = f"{parts} hold different contents in {name_some(differing(ballots))}"
        return vote
    for side in sides.values():
        for ballot in side if side is not winner else ():
            where = name_some(differing([ballot, winner[0]]))
            how = "whose manifest it is" if settled_by == "manifest" else f"{len(winner)} of {len(ballots)} members"
            vote.suspects[ballot.file.path] = (
                f"suspect of silent corruption: {where} differ from {_side_text(winner)} ({how})"
            )
    vote.tolerated = tuple(name for name in differing(winner) if tolerance.covers(name))
    return vote


def _winner(sides: list[list[Ballot]]) -> list[Ballot] | None:
    backed = [side for side in sides if any(ballot.file.manifest for ballot in side)]
    if len(backed) == 1:
        return backed[0]
    best = max(sides, key=len)
    return best if 2 * len(best) > sum(map(len, sides)) else None


def differing(ballots: Sequence[Ballot]) -> tuple[str, ...]:
    """Return the names of the parameters in which ballots differ, in the order of the first one's file."""
    names = (parameter.name for parameter in ballots[0].file.parameters)
    columns = zip(*(_in_order(ballot, ballots[0]) for ballot in ballots), strict=True)
    return tuple(name for name, column in zip(names, columns, strict=True) if len(set(column)) > 1)


def _in_order(ballot: Ballot, first: Ballot) -> tuple[str, ...]:
    """Return a ballot's digests of parameters in the order in which another one has them."""
    if ballot.file.parameters == first.file.parameters:
        return ballot.digests.parameters
    pairs = zip(ballot.file.parameters, ballot.digests.parameters, strict=True)
    told = {parameter.name: digest for parameter, digest in pairs}
    return tuple(told[parameter.name] for parameter in first.file.parameters)


def name_some(names: Sequence[str]) -> str:
    """Return some names and how many more there are."""
    shown = ", ".join(repr(name) for name in names[:_MOST_NAMED])
    return f"{shown} and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else shown


def _side_text(side: Sequence[Ballot]) -> str:
    return " = ".join(ballot.file.path for ballot in side[:_MOST_NAMED])
