"""Compare the operator's word about who holds the same with what slices list and contain."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ms_recover.errors import ContradictionError, UsageError
from ms_recover.model.grouped import grouped
from ms_recover.model.inventory import SliceFile
from ms_recover.model.steps import Step
from ms_recover.model.texts import name_some
from ms_recover.planning.judging.equal_contents import regular_divisions, seen_contents
from ms_recover.planning.judging.judgement import Comparison
from ms_recover.planning.judging.misplaced import ContentIndex
from ms_recover.planning.judging.structure import StructureFindings
from ms_recover.planning.judging.votes import differing
from ms_recover.planning.tree.candidates import every_run, why_older
from ms_recover.planning.tree.facts import Facts, SliceFacts
from ms_recover.planning.tree.prefixes import Experiments

_Member = tuple[int, str]
"""A rank, and the prefix of its run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Difference:
    """Two slices of a claimed group that differ, the parameters in which they do, and the number of all."""

    one: SliceFacts
    other: SliceFacts
    names: tuple[str, ...]
    of: int


class _Agreement:
    """Ranks of one run that agree with each other at some step, also by way of others."""

    def __init__(self, names: Experiments) -> None:
        self._names = names
        self._next: dict[_Member, _Member] = {}

    def of(self, one: SliceFacts) -> _Member:
        """Return what stands for all that agree with a slice's rank."""
        member = (one.rank, self._names.of(one.file))
        while (after := self._next.get(member, member)) != member:
            self._next[member] = self._next.get(after, after)
            member = after
        return member

    def join(self, one: SliceFacts, other: SliceFacts) -> None:
        """Note that two slices agree."""
        self._next[self.of(other)] = self.of(one)


def check_word(compared: Comparison) -> tuple[SliceFile, ...]:
    """Refuse the operator's word when slices contradict it; steps of older runs are passed over.

    Slices of a group list the same parameters, at the newest step that two of them have. Two that differ in contents,
    and agree at no other step, contradict the word when they differ in more than one parameter, in all that they have,
    or when those of another group do likewise: what is left is one damaged parameter, which a vote or the operator
    settles.

    Returns the slices of other steps that must be read first where two differ; none where no more will be.

    Raises
    ------
    ContradictionError
        It names the option, the ranks, the files and a parameter.
    UsageError
        When contents show that it has too many ranks.
    """
    facts, structure, contents = compared.facts, compared.structure, compared.contents
    _check_size(facts)
    agreement = _Agreement(facts.names)
    differences: list[_Difference] = []
    unread: dict[tuple[int, ...], list[SliceFile]] = defaultdict(list)
    listed: set[tuple[int, ...]] = set()
    for step in sorted(facts.steps, reverse=True):
        present = why_older(facts, step) is None or step == facts.options.step
        for group, members in _comparable(facts, step, structure) if present else ():
            if group not in listed:
                _check_lists(facts, group, step, structure)
            listed.add(group)
            unread[group] += [item.file for item in members if item.digests is None]
            differences += _compare(facts, [item for item in members if item.digests is not None], contents, agreement)
    left = [item for item in differences if agreement.of(item.one) != agreement.of(item.other)]
    several = len({item.one.group for item in left}) > 1
    wrong = next((item for item in left if several or len(item.names) > 1 or item.of == 1), None)
    if wrong is None:
        return ()
    if unread[wrong.one.group] and not compared.all_read:
        return tuple(unread[wrong.one.group])
    raise ContradictionError(_contradiction_text(facts, wrong))


def _check_lists(facts: Facts, group: tuple[int, ...], step: Step, structure: StructureFindings) -> None:
    why = structure.conflicts.get((group, step))
    if why is not None:
        raise ContradictionError(
            f"{facts.groups.claimed[group[0]]} is contradicted at step {step}: {why}; correct it, or leave it out if "
            "remove_redundancy=True dealt the parameters out"
        )


def _contradiction_text(facts: Facts, difference: _Difference) -> str:
    first, second, names = difference.one, difference.other, difference.names
    return (
        f"{facts.groups.claimed[first.rank]} is contradicted by contents: ranks {first.rank} and {second.rank} hold "
        f"different contents in {len(names)} of {difference.of} parameters, such as {name_some(names)}, in "
        f"{first.path} and {second.path}; correct it, or declare the rank lost whose slice is damaged: "
        f"--lost {first.rank} or --lost {second.rank}"
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


def _comparable(
    facts: Facts, step: Step, structure: StructureFindings
) -> Iterator[tuple[tuple[int, ...], Sequence[SliceFacts]]]:
    """Return each claimed group with its slices of a step and run that nothing else rules out, where there are two."""
    runs = every_run(facts, step) if facts.counted_at(step) else ()
    groups: dict[tuple[int, tuple[int, ...]], list[SliceFacts]] = defaultdict(list)
    for slice_ in facts.counted_at(step):
        problem = slice_.problem or structure.damaged.get(slice_.path)
        number = next((index for index, run in enumerate(runs) if run.why_foreign(slice_.file) is None), None)
        if slice_.claimed and problem is None and slice_.file.encryption is None and number is not None:
            groups[number, slice_.group].append(slice_)
    return ((group, members) for (_, group), members in groups.items() if len(members) > 1)


def _compare(
    facts: Facts, slices: Sequence[SliceFacts], contents: ContentIndex, agreement: _Agreement
) -> list[_Difference]:
    """Note who agrees, and return how those differ that do not agree with the most; misplaced slices show nothing."""
    comparable = slices
    if len({slice_.contents.file for slice_ in comparable}) > 1:
        comparable = [slice_ for slice_ in comparable if contents.why_misplaced(slice_) is None]
    if len(comparable) < 2:
        return []
    sides = grouped(comparable, lambda slice_: slice_.contents.file)
    first, *others = sorted(sides.values(), key=len, reverse=True)
    for side in (first, *others):
        for slice_ in side:
            agreement.join(side[0], slice_)
    tolerance = facts.tolerance.of_slices(slice_.rank_local for slice_ in comparable)
    names = [name for name in first[0].listed.index if not tolerance.covers(name)]
    differences = []
    for side in others:
        odd = differing([first[0], side[0]], names)
        if odd:
            differences.append(_Difference(one=first[0], other=side[0], names=odd, of=len(names)))
        else:
            agreement.join(first[0], side[0])
    return differences
