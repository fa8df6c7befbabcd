"""Damage that one slice alone cannot show: compare the parameter lists of slices.

MindSpore writes no count and no end marker, so a slice cut at a record boundary is well formed and loads without an
error. The expected list is known from the other ranks of its group, from the same rank's other steps of the same run,
and from the other ranks at the same step.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ms_recover.model.inventory import SliceFile
from ms_recover.model.slices import Parameter
from ms_recover.model.steps import Step
from ms_recover.planning.judging.parameter_lists import ANY_ORDER, KnownList, ParameterLists
from ms_recover.planning.redundancy.groups import GroupMap

Structure = Sequence[Parameter]
_History = Mapping[tuple[int, str], Sequence[SliceFile]]


@dataclass(frozen=True)
class StructureFindings:
    """The result of comparing parameter lists.

    Parameters
    ----------
    damaged : mapping of str to str
        Path of a damaged slice to the reason.
    conflicts : mapping of (tuple of int, Step) to str
        Groups whose sound members at a step list different parameters, so that none can replace another.
    deduplicated : mapping of Step to str
        Steps at which replicas hold different parameter *names*, as ``remove_redundancy=True`` saves them.
    """

    damaged: Mapping[str, str] = field(default_factory=dict)
    conflicts: Mapping[tuple[tuple[int, ...], Step], str] = field(default_factory=dict)
    deduplicated: Mapping[Step, str] = field(default_factory=dict)


def compare_structure(slices: Iterable[SliceFile], groups: GroupMap) -> StructureFindings:
    """Find truncated and odd slices by comparing the parameters that slices of the same run list.

    Slices without a run id join the run that has most slices of their step. Conflicts inside other runs mark those
    slices damaged; they do not block the step.

    Parameters
    ----------
    slices : iterable of SliceFile
        Damaged and encrypted ones are passed over.
    groups : GroupMap
        The ranks that should hold the same.
    """
    sound = [file for file in slices if file.problem is None and file.encryption is None]
    usual = _usual_runs(sound)
    by_run: dict[str, list[SliceFile]] = defaultdict(list)
    for file in sound:
        by_run[file.manifest.run_id if file.manifest is not None else usual[file.step]].append(file)
    damaged: dict[str, str] = {}
    conflicts: dict[tuple[tuple[int, ...], Step], str] = {}
    deduplicated: dict[Step, str] = {}
    for run, files in sorted(by_run.items()):
        found = _compare_one_run(files, groups)
        damaged |= found.damaged
        deduplicated |= {step: why for step, why in found.deduplicated.items() if usual[step] == run}
        for (group, step), why in found.conflicts.items():
            if usual[step] == run:
                conflicts[group, step] = why
            else:
                members = (file for file in files if file.step == step and groups.of(file.rank) == group)
                damaged |= {file.path: why for file in members}
    return StructureFindings(damaged, conflicts, deduplicated)


def _usual_runs(slices: list[SliceFile]) -> dict[Step, str]:
    """Return for each step the run with most slices of it, or of all steps where none of the step names one."""
    runs: Counter[str] = Counter()
    at_step: dict[Step, Counter[str]] = defaultdict(Counter)
    for file in slices:
        named = [] if file.manifest is None else [file.manifest.run_id]
        runs.update(named)
        at_step[file.step].update(named)
    counts = ((step, count or runs) for step, count in at_step.items())
    return {step: max(sorted(count), key=lambda run: count[run], default="") for step, count in counts}


def _compare_one_run(sound: list[SliceFile], groups: GroupMap) -> StructureFindings:
    lists = ParameterLists(sound)
    originals = Counter(lists.of(file) for file in sound if not _is_copy(file))
    by_step: dict[Step, list[SliceFile]] = defaultdict(list)
    by_run: dict[tuple[int, str], list[SliceFile]] = defaultdict(list)
    for file in sound:
        by_step[file.step].append(file)
        if not _is_copy(file) or originals[lists.of(file)] > 1:  # a lone copy is no witness for its source
            by_run[file.rank, file.prefix].append(file)
    damaged: dict[str, str] = {}
    for step_files in by_step.values():
        damaged |= _unlike_their_run(step_files, by_run, lists)
    history = {run: [file for file in files if file.path not in damaged] for run, files in by_run.items()}
    for step_files in by_step.values():
        rest = [file for file in step_files if file.path not in damaged]
        damaged |= _truncated(rest, history, groups, lists)
    conflicts: dict[tuple[tuple[int, ...], Step], str] = {}
    deduplicated: dict[Step, str] = {}
    for step, step_files in by_step.items():
        rest = [file for file in step_files if file.path not in damaged]
        found = _odd_members(step, rest, history, groups, lists, damaged)
        damaged = {**damaged, **found.damaged}
        conflicts |= found.conflicts
        deduplicated |= found.deduplicated
    return StructureFindings(damaged, conflicts, deduplicated)


def _is_copy(file: SliceFile) -> bool:
    return file.manifest is not None and file.manifest.recovered


def _unlike_their_run(files: list[SliceFile], by_run: _History, lists: ParameterLists) -> dict[str, str]:
    """Mark a slice damaged when its list is unique while its rank's other steps have a common one."""
    damaged: dict[str, str] = {}
    here = Counter(map(lists.of, files))
    for file in files:
        if here[lists.of(file)] > 1:
            continue
        run = by_run.get((file.rank, file.prefix), ())
        history = Counter(lists.of(other) for other in run if other.step != file.step)
        if history[lists.of(file)]:
            continue
        for other in run:
            usual = lists.of(other)
            if history[usual] and history[usual] + here[usual] > 1 and not _begins(other.parameters, file.parameters):
                damaged[file.path] = (
                    f"does not list the parameters of {other.path}, a slice of the same run: "
                    f"{_difference(file.parameters, other.parameters)}"
                )
                break
    return damaged


def _cut_off(names: tuple[str, ...], longer: tuple[str, ...]) -> bool:
    return len(longer) > len(names) and longer[: len(names)] == names


def _begins(whole: Structure, start: Structure) -> bool:
    return tuple(whole[: len(start)]) == tuple(start)


def _truncated(files: list[SliceFile], by_run: _History, groups: GroupMap, lists: ParameterLists) -> dict[str, str]:
    """Mark a slice damaged when another that should list the same lists the same and more behind it."""
    total = Counter(lists.of(file).named for file in files)
    if len(total) == 1 and not any(_was_longer(file, by_run, lists) for file in files):
        return {}
    in_group = Counter((groups.of(file.rank), lists.of(file).named) for file in files)
    first: dict[int, SliceFile] = {}
    of_group: dict[tuple[int, ...], dict[int, SliceFile]] = defaultdict(dict)
    for file in files:
        first.setdefault(lists.of(file).named, file)
        of_group[groups.of(file.rank)].setdefault(lists.of(file).named, file)
    longer_before = Counter(lists.of(file).named for file in files if _was_longer(file, by_run, lists))
    damaged: dict[str, str] = {}
    for file in files:
        mine, group = lists.of(file), groups.of(file.rank)
        candidates = list(of_group[group].values())
        if total[mine.named] == longer_before[mine.named]:  # all with exactly this list had a longer one before
            candidates += by_run.get((file.rank, file.prefix), ())
        if total[mine.named] == in_group[group, mine.named]:  # nobody outside the group has exactly this list
            candidates += first.values()
        for other in candidates:
            longer = lists.of(other).names
            if _cut_off(mine.names, longer):
                damaged[file.path] = (
                    f"ends after {len(mine.names)} of the {len(longer)} parameters that {other.path} lists: "
                    f"cut off before {longer[len(mine.names)]!r}"
                )
                break
    return damaged


def _was_longer(file: SliceFile, by_run: _History, lists: ParameterLists) -> bool:
    own = lists.of(file)
    others = by_run.get((file.rank, file.prefix), ())
    return any(lists.of(other) is not own and _cut_off(own.names, lists.of(other).names) for other in others)


def _odd_members(
    step: Step,
    files: list[SliceFile],
    by_run: _History,
    groups: GroupMap,
    lists: ParameterLists,
    known_damaged: Mapping[str, str],
) -> StructureFindings:
    """Where the members of a group differ, mark the odd one damaged, or all of them no replicas."""
    members: dict[tuple[int, ...], list[SliceFile]] = defaultdict(list)
    for file in files:
        members[groups.of(file.rank)].append(file)
    total = Counter(lists.of(file).named for file in files)
    damaged: dict[str, str] = {}
    conflicts: dict[tuple[tuple[int, ...], Step], str] = {}
    deduplicated: dict[Step, str] = {}
    for group, held in members.items():
        if len({lists.of(file) for file in held}) < 2:
            continue
        support = _support(step, held, total, by_run, lists, known_damaged)
        fine = [file for file in held if support[lists.of(file)] > 0]
        odd = [file for file in held if fine and file not in fine and is_misread(file.parameters, fine[0].parameters)]
        for file in odd:
            damaged[file.path] = (
                f"does not list the parameters of {fine[0].path}, though their ranks hold the same slice: "
                f"{_difference(file.parameters, fine[0].parameters)}"
            )
        left = [file for file in held if file not in odd]
        a = left[0]
        b = next((file for file in left if lists.of(file) is not lists.of(a)), None)
        if b is not None:
            text = f"{a.path} and {b.path} should hold the same slice but {_difference(a.parameters, b.parameters)}"
            conflicts[group, step] = text
            if lists.of(a).named != lists.of(b).named:
                deduplicated.setdefault(step, text)
    return StructureFindings(damaged, conflicts, deduplicated)


def _support(
    step: Step,
    held: list[SliceFile],
    total: Counter[int],
    by_run: _History,
    lists: ParameterLists,
    known_damaged: Mapping[str, str],
) -> dict[KnownList, int]:
    """Count who else has the list of a group's members: members, their other steps, and ranks outside the group."""
    inside = Counter(lists.of(file).named for file in held)
    support = {}
    for structure, count in Counter(map(lists.of, held)).items():
        history = sum(
            lists.of(other) is structure and other.step != step and other.path not in known_damaged
            for file in held
            for other in by_run.get((file.rank, file.prefix), ())
        )
        elsewhere = total[structure.named] - inside[structure.named] if len(inside) > 1 else 0
        support[structure] = count - 1 + history + elsewhere
    return support


def list_the_same(one: SliceFile, other: SliceFile) -> bool:
    """Whether two slices list the same parameters: in the same order, where both have an order of their own."""
    if one.parameters == other.parameters:
        return True
    loose = one.path.endswith(ANY_ORDER) or other.path.endswith(ANY_ORDER)
    return loose and len(one.parameters) == len(other.parameters) and set(one.parameters) == set(other.parameters)


def is_misread(one: Structure, other: Structure) -> bool:
    """Whether one list looks like the other with a flaw in it, rather than the list of other parameters."""
    if len(one) != len(other):
        return False
    differing = [(a, b) for a, b in zip(one, other, strict=True) if a.name != b.name]
    if not differing:
        return True  # another shape or type of the same parameters
    (a, b), *more = differing
    return not more and (a.dtype, a.shape) == (b.dtype, b.shape) and _bits_apart(a.name, b.name) == 1


def _bits_apart(one: str, other: str) -> int:
    a, b = one.encode(), other.encode()
    return sum((x ^ y).bit_count() for x, y in zip(a, b, strict=True)) if len(a) == len(b) else -1


def _difference(one: Structure, other: Structure) -> str:
    """Describe the first difference between two parameter lists."""
    theirs = {parameter.name: parameter for parameter in other}
    for parameter in one:
        match = theirs.pop(parameter.name, None)
        if match is None:
            return f"{parameter.name!r} is only in the first"
        if (match.dtype, match.shape) != (parameter.dtype, parameter.shape):
            return (
                f"{parameter.name!r} is {parameter.dtype}{list(parameter.shape)} in the first, "
                f"{match.dtype}{list(match.shape)} in the second"
            )
    if theirs:
        return f"{next(iter(theirs))!r} is only in the second"
    return "they list their parameters in different order"
