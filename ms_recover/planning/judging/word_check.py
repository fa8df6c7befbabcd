"""Compare the operator's word about who holds the same with what slices list and contain."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ms_recover.errors import ContradictionError, UsageError
from ms_recover.model.inventory import SliceFile
from ms_recover.model.steps import Step
from ms_recover.model.texts import name_some
from ms_recover.planning.facts import Facts, SliceFacts
from ms_recover.planning.judging.equal_contents import regular_divisions, seen_contents
from ms_recover.planning.judging.misplaced import ContentIndex
from ms_recover.planning.judging.structure import StructureFindings
from ms_recover.planning.judging.votes import differing


@dataclass(frozen=True, slots=True, kw_only=True)
class _Difference:
    """Two slices of a claimed group that differ, the parameters in which they do, and the number of all."""

    one: SliceFacts
    other: SliceFacts
    names: tuple[str, ...]
    of: int


class _Agreement:
    """Ranks that agree with each other at some step, also by way of others."""

    def __init__(self) -> None:
        self._next: dict[int, int] = {}

    def of(self, rank: int) -> int:
        """Return the rank that stands for all that agree with a rank."""
        while (after := self._next.get(rank, rank)) != rank:
            self._next[rank] = self._next.get(after, after)
            rank = after
        return rank

    def join(self, one: int, other: int) -> None:
        """Note that two ranks agree."""
        self._next[self.of(other)] = self.of(one)


def check_word(
    facts: Facts, structure: StructureFindings, contents: ContentIndex, *, all_read: bool
) -> tuple[SliceFile, ...]:
    """Refuse the operator's word when slices contradict it; steps of older runs are passed over.

    Slices of a group list the same parameters. Two that differ in contents, and agree at no other step, contradict the
    word when they differ in more than one parameter, in all that they have, or when those of another group do likewise:
    what is left is one damaged parameter, which a vote or the operator settles.

    Returns the slices of other steps that must be read first where two differ; none when `all_read` says that no more
    will be.

    Raises
    ------
    ContradictionError
        It names the option, the ranks, the files and a parameter.
    UsageError
        When contents show that it has too many ranks.
    """
    _check_size(facts)
    present = [step for step in sorted(facts.steps, reverse=True) if facts.why_older(step) is None]
    for (group, step), why in structure.conflicts.items():
        if group[0] in facts.groups.claimed and step in present:
            raise ContradictionError(
                f"{facts.groups.claimed[group[0]]} is contradicted at step {step}: {why}; correct it, or leave it out "
                "if remove_redundancy=True dealt the parameters out"
            )
    agreement = _Agreement()
    found: list[_Difference] = []
    unread: dict[int, list[SliceFile]] = defaultdict(list)
    for step in present:
        for held in _comparable(facts, step, structure):
            for one in held:
                if one.digests is None:
                    unread[one.rank].append(one.file)
            found += _compare(facts, [one for one in held if one.digests is not None], contents, agreement)
    left = [one for one in found if agreement.of(one.one.rank) != agreement.of(one.other.rank)]
    several = len({one.one.group for one in left}) > 1
    wrong = [one for one in left if several or len(one.names) > 1 or one.of == 1]
    ranks = sorted({rank for one in wrong for rank in (one.one.rank, one.other.rank)})
    more = tuple(file for rank in ranks for file in unread[rank])
    if wrong and (all_read or not more):
        raise ContradictionError(_contradiction_text(facts, wrong[0]))
    return more


def _contradiction_text(facts: Facts, found: _Difference) -> str:
    one, other = found.one, found.other
    return (
        f"{facts.groups.claimed[one.rank]} is contradicted by contents: ranks {one.rank} and {other.rank} hold "
        f"different contents in {len(found.names)} of {found.of} parameters, such as {name_some(found.names)}, in "
        f"{one.path} and {other.path}; correct it, or declare the rank lost whose slice is damaged: "
        f"--lost {one.rank} or --lost {other.rank}"
    )


def _check_size(facts: Facts) -> None:
    """Refuse a word that adds ranks to those that have files where contents show these to be all."""
    if facts.world.doubt is not None:
        ranks, problem = facts.world.doubt
        if regular_divisions(seen_contents(facts), ranks):
            raise UsageError(
                f"{problem}, but there are {ranks} by the ranks that have files, and contents divide these evenly: "
                "correct it, or give the right --world-size"
            )


def _comparable(facts: Facts, step: Step, structure: StructureFindings) -> Iterator[Sequence[SliceFacts]]:
    """Return for each claimed group its slices of a step that nothing else rules out, where there are two."""
    groups: dict[tuple[int, ...], list[SliceFacts]] = defaultdict(list)
    slices = facts.counted_at(step)
    run = facts.runs(step)[0] if slices else None
    for one in slices:
        problem = one.file.problem or structure.damaged.get(one.path) or one.manifest_problem or one.content_problem
        sound = problem is None and one.file.encryption is None
        if one.claimed and sound and run is not None and run.why_foreign(one.file) is None:
            groups[one.group].append(one)
    return (held for held in groups.values() if len(held) > 1)


def _compare(
    facts: Facts, slices: Sequence[SliceFacts], contents: ContentIndex, agreement: _Agreement
) -> list[_Difference]:
    """Note who agrees, and return how those differ that do not agree with the most; misplaced slices show nothing."""
    held = slices
    if len({one.contents.file for one in held}) > 1:
        held = [one for one in held if contents.why_misplaced(one) is None]
    if len(held) < 2:
        return []
    sides: dict[str, list[SliceFacts]] = defaultdict(list)
    for one in held:
        sides[one.contents.file].append(one)
    first, *others = sorted(sides.values(), key=len, reverse=True)
    for side in (first, *others):
        for one in side:
            agreement.join(side[0].rank, one.rank)
    names = [name for name in first[0].listed.index if not facts.tolerance.covers(name)]
    found = []
    for side in others:
        odd = differing([first[0], side[0]], names)
        if odd:
            found.append(_Difference(one=first[0], other=side[0], names=odd, of=len(names)))
        else:
            agreement.join(first[0].rank, side[0].rank)
    return found
