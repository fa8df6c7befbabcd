"""Damage that one slice alone cannot show: compare the parameter lists of slices.

MindSpore writes no count and no end marker, so a slice cut at a record boundary is well formed and loads without an
error. The expected list is known from the other ranks of its group, from the same rank's other steps of the same run,
and from the other ranks at the same step.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ms_recover.file_names import ANY_ORDER
from ms_recover.model.grouped import grouped
from ms_recover.model.slices import Parameter, ParameterList
from ms_recover.model.steps import Step
from ms_recover.planning.claims.stages import Stages
from ms_recover.planning.tree.facts import SliceFacts

_History = Mapping[tuple[int, str], Sequence[SliceFacts]]
"""The slices that a rank saved under one prefix."""


@dataclass(frozen=True)
class StructureFindings:
    """The result of comparing parameter lists: damaged slices by path, each with the reason.

    `conflicts` has the groups whose sound members at a step list different parameters, so that none can replace
    another. `deduplicated` has the steps at which replicas hold different parameter *names*, as
    ``remove_redundancy=True`` saves them; `doubtful` those at which the slices that are left do not exclude it.
    """

    damaged: Mapping[str, str] = field(default_factory=dict)
    conflicts: Mapping[tuple[tuple[int, ...], Step], str] = field(default_factory=dict)
    deduplicated: Mapping[Step, str] = field(default_factory=dict)
    doubtful: Mapping[Step, str] = field(default_factory=dict)


def compare_structure(slices: Iterable[SliceFacts], stages: Stages | None = None) -> StructureFindings:
    """Find truncated and odd slices by comparing the parameters that slices of the same run list.

    The `stages` are those of the ranks, where they are known. Damaged and encrypted slices are passed over. Slices
    without a run id join the run that has most slices of their step. Conflicts inside other runs mark those slices
    damaged; they do not block the step.
    """
    sound = [slice_ for slice_ in slices if slice_.file.problem is None and slice_.file.encryption is None]
    usual = _usual_runs(sound)
    by_run = grouped(
        sound, lambda slice_: slice_.manifest.run_id if slice_.manifest is not None else usual[slice_.file.step]
    )
    damaged: dict[str, str] = {}
    conflicts: dict[tuple[tuple[int, ...], Step], str] = {}
    deduplicated: dict[Step, str] = {}
    for run, of_run in sorted(by_run.items()):
        findings = _compare_one_run(of_run, stages or Stages())
        damaged |= findings.damaged
        deduplicated |= {step: why for step, why in findings.deduplicated.items() if usual[step] == run}
        for (group, step), why in findings.conflicts.items():
            if usual[step] == run:
                conflicts[group, step] = why
            else:
                damaged |= {slice_.path: why for slice_ in of_run if (slice_.group, slice_.file.step) == (group, step)}
    return StructureFindings(damaged, conflicts, deduplicated)


def _usual_runs(slices: Iterable[SliceFacts]) -> dict[Step, str]:
    """Return for each step the run with most slices of it, or of all steps where none of the step names one."""
    runs: Counter[str] = Counter()
    at_step: dict[Step, Counter[str]] = defaultdict(Counter)
    for slice_ in slices:
        count = at_step[slice_.file.step]
        if slice_.manifest is not None:
            runs[slice_.manifest.run_id] += 1
            count[slice_.manifest.run_id] += 1
    counts = ((step, count or runs) for step, count in at_step.items())
    return {step: max(sorted(count), key=lambda run: count[run], default="") for step, count in counts}


class _Lists:
    """The parameter lists of slices.

    A safetensors file has the list of a file of the other format with the same parameters, in whatever order. Lists of
    the same names share a number, because comparing names takes as long as reading them.
    """

    def __init__(self, slices: Iterable[SliceFacts]) -> None:
        ordered: dict[ParameterList, None] = {}
        loose: dict[ParameterList, None] = {}
        for slice_ in slices:
            (loose if slice_.path.endswith(ANY_ORDER) else ordered)[slice_.listed] = None
        by_set = {frozenset(listed): listed for listed in reversed(ordered)} if loose else {}
        self._same = {listed: by_set.get(frozenset(listed), listed) for listed in loose}
        self._same |= {listed: listed for listed in ordered}
        numbers: dict[tuple[str, ...], int] = {}
        self._names = {listed: tuple(parameter.name for parameter in listed) for listed in self._same.values()}
        self._named = {listed: numbers.setdefault(names, len(numbers)) for listed, names in self._names.items()}

    @property
    def are_equal(self) -> bool:
        """Whether there is one list only."""
        return len(self._named) < 2

    def of(self, one: SliceFacts) -> ParameterList:
        """Return the list of a slice, one object for all that are equal."""
        return self._same[one.listed]

    def names(self, one: SliceFacts) -> tuple[str, ...]:
        """Return the names that a slice lists."""
        return self._names[self.of(one)]

    def named(self, one: SliceFacts) -> int:
        """Return the number that lists of these names share."""
        return self._named[self.of(one)]


def _compare_one_run(sound: Sequence[SliceFacts], stages: Stages) -> StructureFindings:
    lists = _Lists(sound)
    if lists.are_equal:
        return StructureFindings()
    originals = Counter(lists.of(slice_) for slice_ in sound if not slice_.recovered)
    by_step = grouped(sound, lambda slice_: slice_.file.step)
    # A lone copy is no witness for its source.
    witnesses = [slice_ for slice_ in sound if not slice_.recovered or originals[lists.of(slice_)] > 1]
    by_run = grouped(witnesses, lambda slice_: (slice_.rank, slice_.file.prefix))
    damaged: dict[str, str] = {}
    usual = _Usual.of(by_run, lists, stages)
    for slices in by_step.values():
        damaged |= _of_another_rank(slices, by_run, lists, usual)
    own = {run: _without(slices, damaged) for run, slices in by_run.items()}
    for slices in by_step.values():
        damaged |= _unlike_their_run(_without(slices, damaged), own, lists)
    history = {run: _without(slices, damaged) for run, slices in by_run.items()}
    before = _Before(history, lists)
    for slices in by_step.values():
        damaged |= _truncated(_without(slices, damaged), before, lists)
    conflicts: dict[tuple[tuple[int, ...], Step], str] = {}
    deduplicated: dict[Step, str] = {}
    for step, slices in by_step.items():
        findings = _odd_members(step, _without(slices, damaged), history, lists, damaged)
        damaged = {**damaged, **findings.damaged}
        conflicts |= findings.conflicts
        deduplicated |= findings.deduplicated
    return StructureFindings(damaged, conflicts, deduplicated)


def _without(slices: Iterable[SliceFacts], damaged: Collection[str]) -> list[SliceFacts]:
    return [one for one in slices if one.path not in damaged]


@dataclass(frozen=True)
class _Usual:
    """Which lists are those of a rank list, counted over all steps, and of which stages each list is."""

    stages: Stages
    of_group: Counter[tuple[tuple[int, ...], ParameterList]] = field(default_factory=Counter)
    of_stages: Mapping[ParameterList, set[int]] = field(default_factory=lambda: defaultdict(set))

    @classmethod
    def of(cls, by_run: _History, lists: _Lists, stages: Stages) -> _Usual:
        """Count the lists of some slices."""
        found = cls(stages)
        for one in (one for held in by_run.values() for one in held):
            found.of_group[one.group, lists.of(one)] += 1
            found.of_stages[lists.of(one)].add(stages.of(one.rank))
        return found


def _of_another_rank(slices: Sequence[SliceFacts], by_run: _History, lists: _Lists, counted: _Usual) -> dict[str, str]:
    """Mark a slice damaged when its list is new to its rank alone and others had it before, none of them of its group.

    Then it is the slice of another rank, where two slices of its rank list have the usual list of its rank; where only
    other stages have the new one, and only its own has the usual one; or where another slice of the step has the usual
    one, and it has the bytes of one with the new one.
    """
    stage = counted.stages.of
    here = grouped(slices, lists.of)
    damaged: dict[str, str] = {}
    for alike in here.values():
        new = [slice_ for slice_ in alike if _is_new(slice_, by_run, lists)]
        if len(alike) < 2 or len(new) != 1 or sum(slice_.group == new[0].group for slice_ in alike) > 1:
            continue
        [slice_] = new
        others = [other for other in alike if other is not slice_]
        foreign = all(stage(other.rank) != stage(slice_.rank) for other in others)
        copied = any(slice_.has_bytes_of(other) for other in others)
        for other in _at_other_steps(slice_, by_run):
            usual = lists.of(other)
            if _is_part(lists.names(other), lists.names(slice_)):
                continue  # one of them was cut off, which shows nothing of the other
            known = counted.of_group[slice_.group, usual] > 1 or (usual in here and copied)
            if known or (foreign and counted.of_stages[usual] == {stage(slice_.rank)}):
                damaged[slice_.path] = _unlike(slice_, other)
                break
    return damaged


def _at_other_steps(one: SliceFacts, by_run: _History) -> list[SliceFacts]:
    """Return the slices of other steps that a slice's rank saved under its prefix."""
    return [other for other in by_run.get((one.rank, one.file.prefix), ()) if other.file.step != one.file.step]


def _is_new(one: SliceFacts, by_run: _History, lists: _Lists) -> bool:
    """Whether a slice's rank has slices of other steps, and none of these has its list."""
    others = _at_other_steps(one, by_run)
    return bool(others) and all(lists.of(other) is not lists.of(one) for other in others)


def _unlike(one: SliceFacts, other: SliceFacts) -> str:
    difference = _difference(one.listed, other.listed)
    return f"does not list the parameters of {other.path}, a slice of the same run: {difference}"


def _unlike_their_run(slices: Sequence[SliceFacts], by_run: _History, lists: _Lists) -> dict[str, str]:
    """Mark a slice damaged when its list is new to its rank, while its rank's other steps have a common one.

    Where several slices of the step have the new list, more of them must have the usual one.
    """
    damaged: dict[str, str] = {}
    here = Counter(map(lists.of, slices))
    for slice_ in slices:
        listed = lists.of(slice_)
        others = _at_other_steps(slice_, by_run)
        history = Counter(map(lists.of, others))
        if history[listed]:
            continue
        for other in others:
            usual = lists.of(other)
            common = history[usual] + here[usual] > 1 if here[listed] == 1 else here[usual] > here[listed]
            if common and other.listed[: len(slice_.listed)] != slice_.listed:
                damaged[slice_.path] = _unlike(slice_, other)
                break
    return damaged


def _is_part(names: tuple[str, ...], others: tuple[str, ...]) -> bool:
    return _cut_off(names, others) or _cut_off(others, names)


def _cut_off(names: tuple[str, ...], longer: tuple[str, ...]) -> bool:
    return names != longer and names == longer[: len(names)]


class _Before:
    """The slices that a rank saved, or else those of its rank list: they show what its slice of a step should list."""

    def __init__(self, by_run: _History, lists: _Lists) -> None:
        self._by_run = by_run
        self._of_group: dict[tuple[tuple[int, ...], str], dict[int, SliceFacts]] = defaultdict(dict)
        for held in by_run.values():
            for one in held:
                self._of_group[one.group, one.file.prefix].setdefault(lists.named(one), one)

    def of(self, one: SliceFacts) -> Sequence[SliceFacts]:
        """Return the slices of a slice's rank, or one for each list of its group where the rank has no other."""
        own = self._by_run.get((one.rank, one.file.prefix), ())
        if _at_other_steps(one, self._by_run):
            return own
        return list(self._of_group[one.group, one.file.prefix].values())


def _truncated(slices: Sequence[SliceFacts], before: _Before, lists: _Lists) -> dict[str, str]:
    """Mark a slice damaged when another that should list the same lists the same and more behind it."""
    was_longer = [slice_ for slice_ in slices if _was_longer(slice_, before, lists)]
    total = Counter(map(lists.named, slices))
    longer_before = Counter(map(lists.named, was_longer))
    in_group = Counter((slice_.group, lists.named(slice_)) for slice_ in slices)
    first: dict[int, SliceFacts] = {}
    of_group: dict[tuple[int, ...], dict[int, SliceFacts]] = defaultdict(dict)
    for slice_ in slices:
        first.setdefault(lists.named(slice_), slice_)
        of_group[slice_.group].setdefault(lists.named(slice_), slice_)
    damaged: dict[str, str] = {}
    for slice_ in slices:
        names, named = lists.names(slice_), lists.named(slice_)
        candidates = list(of_group[slice_.group].values())
        if total[named] == longer_before[named]:  # all with exactly this list had a longer one before
            candidates += before.of(slice_)
        if total[named] == in_group[slice_.group, named]:  # nobody outside the group has exactly this list
            candidates += first.values()
        for other in candidates:
            longer = lists.names(other)
            if _cut_off(names, longer) and not other.rank_local.issuperset(longer[len(names) :]):
                damaged[slice_.path] = (
                    f"ends after {len(names)} of the {len(longer)} parameters that {other.path} lists: "
                    f"cut off before {longer[len(names)]!r}"
                )
                break
    return damaged


def _was_longer(one: SliceFacts, before: _Before, lists: _Lists) -> bool:
    others = (other for other in before.of(one) if lists.named(other) != lists.named(one))
    return any(_cut_off(lists.names(one), lists.names(other)) for other in others)


def _odd_members(
    step: Step, slices: Sequence[SliceFacts], by_run: _History, lists: _Lists, known_damaged: Collection[str]
) -> StructureFindings:
    """Where the members of a group differ, mark the odd one damaged, or all of them no replicas."""
    total = Counter(map(lists.named, slices))
    damaged: dict[str, str] = {}
    conflicts: dict[tuple[tuple[int, ...], Step], str] = {}
    deduplicated: dict[Step, str] = {}
    for group, of_group in grouped(slices, lambda slice_: slice_.group).items():
        if len(set(map(lists.of, of_group))) < 2 or _differ_in_rank_local(of_group):
            continue
        support = _support(of_group, total, by_run, lists, known_damaged)
        fine = [slice_ for slice_ in of_group if support[lists.of(slice_)] > 0]
        odd = [
            slice_ for slice_ in of_group if fine and slice_ not in fine and is_misread(slice_.listed, fine[0].listed)
        ]
        if of_group[0].claimed:  # other shapes may as well show that the operator is mistaken
            odd = [slice_ for slice_ in odd if lists.named(slice_) != lists.named(fine[0])]
        for slice_ in odd:
            damaged[slice_.path] = (
                f"does not list the parameters of {fine[0].path}, though their ranks hold the same slice: "
                f"{_difference(slice_.listed, fine[0].listed)}"
            )
        a, *left = (slice_ for slice_ in of_group if slice_ not in odd)
        b = next((slice_ for slice_ in left if lists.of(slice_) is not lists.of(a)), None)
        if b is not None:
            text = f"{a.path} and {b.path} should hold the same slice but {_difference(a.listed, b.listed)}"
            conflicts[group, step] = text
            if lists.named(a) != lists.named(b):
                deduplicated.setdefault(step, text)
    return StructureFindings(damaged, conflicts, deduplicated)


def _differ_in_rank_local(held: Sequence[SliceFacts]) -> bool:
    """Whether the lists of a group differ in parameters only that manifests of theirs call rank-local."""
    own = frozenset[str]().union(*(one.rank_local for one in held))
    return bool(own) and len({frozenset(item for item in one.listed if item.name not in own) for one in held}) == 1


def _support(
    of_group: Sequence[SliceFacts],
    total: Counter[int],
    by_run: _History,
    lists: _Lists,
    known_damaged: Collection[str],
) -> dict[ParameterList, int]:
    """Count who else has the list of a group's members: members, their other steps, and ranks outside the group."""
    inside = Counter(map(lists.named, of_group))
    others = [
        other for slice_ in of_group for other in _at_other_steps(slice_, by_run) if other.path not in known_damaged
    ]
    support = Counter(dict.fromkeys(map(lists.of, of_group), -1))
    support.update(map(lists.of, (*of_group, *others)))
    if len(inside) > 1:
        for slice_ in {lists.of(slice_): slice_ for slice_ in of_group}.values():
            support[lists.of(slice_)] += total[lists.named(slice_)] - inside[lists.named(slice_)]
    return support


def list_the_same(one: SliceFacts, other: SliceFacts) -> bool:
    """Whether two slices list the same parameters: in the same order, where both have an order of their own."""
    if one.listed == other.listed:
        return True
    loose = one.path.endswith(ANY_ORDER) or other.path.endswith(ANY_ORDER)
    return loose and len(one.listed) == len(other.listed) and set(one.listed) == set(other.listed)


def is_misread(ours: Sequence[Parameter], theirs: Sequence[Parameter]) -> bool:
    """Whether one list looks like the other with a flaw in it, rather than the list of other parameters."""
    if len(ours) != len(theirs):
        return False
    differing = [(a, b) for a, b in zip(ours, theirs, strict=True) if a.name != b.name]
    if not differing:
        return True  # another shape or type of the same parameters
    (a, b), *more = differing
    return not more and (a.dtype, a.shape) == (b.dtype, b.shape) and _bits_apart(a.name, b.name) == 1


def _bits_apart(one: str, other: str) -> int:
    a, b = one.encode(), other.encode()
    return sum((x ^ y).bit_count() for x, y in zip(a, b, strict=True)) if len(a) == len(b) else -1


def _difference(ours: Sequence[Parameter], theirs: Sequence[Parameter]) -> str:
    """Describe the first difference between two parameter lists."""
    left = {parameter.name: parameter for parameter in theirs}
    for parameter in ours:
        match = left.pop(parameter.name, None)
        if match is None:
            return f"{parameter.name!r} is only in the first"
        if (match.dtype, match.shape) != (parameter.dtype, parameter.shape):
            return (
                f"{parameter.name!r} is {parameter.dtype}{list(parameter.shape)} in the first, "
                f"{match.dtype}{list(match.shape)} in the second"
            )
    if left:
        return f"{next(iter(left))!r} is only in the second"
    return "they list their parameters in different order"
