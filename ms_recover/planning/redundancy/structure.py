"""Damage that one slice alone cannot show: compare what slices list with what they should list.

MindSpore writes no count and no end marker, so a slice cut at a record boundary is well formed and loads without a
word. What should be in it is known from the other ranks of its group, from the same rank's other steps of the same
run, and from the other ranks at the same step.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from ms_recover.model.inventory import SliceFile
from ms_recover.model.slices import Parameter
from ms_recover.model.steps import Step
from ms_recover.planning.redundancy.groups import GroupMap
from ms_recover.planning.redundancy.lists import ANY_ORDER, Lists

Structure = tuple[Parameter, ...]


@dataclass
class StructureFindings:
    """What the comparison found.

    Parameters
    ----------
    damaged : dict of str to str
        Path of a slice to why it is damaged.
    conflicts : dict of (tuple of int, Step) to str
        Groups whose sound members at a step list different parameters, so that none can replace another.
    deduplicated : dict of Step to str
        Steps at which peers hold different parameter *names*, as ``remove_redundancy=True`` saves them.
    """

    damaged: dict[str, str] = field(default_factory=dict)
    conflicts: dict[tuple[tuple[int, ...], Step], str] = field(default_factory=dict)
    deduplicated: dict[Step, str] = field(default_factory=dict)


def compare_structure(slices: Iterable[SliceFile], groups: GroupMap) -> StructureFindings:
    """Find truncated and odd slices by comparing the parameters that slices of the same run list.

    Slices that name no run are compared with those of the run that has most slices of their step. Groups of any other
    run that conflict are damaged, so that they are no conflict of this one.

    Parameters
    ----------
    slices : iterable of SliceFile
        Damaged and encrypted ones are passed over.
    groups : GroupMap
        Who should hold the same.
    """
    sound = [file for file in slices if file.problem is None and file.encryption is None]
    usual = _usual_runs(sound)
    by_run: dict[str, list[SliceFile]] = defaultdict(list)
    for file in sound:
        by_run[file.manifest.run_id if file.manifest is not None else usual[file.step]].append(file)
    findings = StructureFindings()
    for run, files in sorted(by_run.items()):
        found = _compare_one_run(files, groups)
        findings.damaged |= found.damaged
        findings.deduplicated |= {step: why for step, why in found.deduplicated.items() if usual[step] == run}
        for (group, step), why in found.conflicts.items():
            if usual[step] == run:
                findings.conflicts[group, step] = why
            else:
                members = (file for file in files if file.step == step and groups.of(file.rank) == group)
                findings.damaged |= {file.path: why for file in members}
    return findings


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
    findings = StructureFindings()
    by_step: dict[Step, list[SliceFile]] = defaultdict(list)
    by_run: dict[tuple[int, str], list[SliceFile]] = defaultdict(list)
    lists = Lists(sound)
    originals = Counter(lists.of(file) for file in sound if not _is_copy(file))
    for file in sound:
        by_step[file.step].append(file)
        if not _is_copy(file) or originals[lists.of(file)] > 1:  # else it says no more than what it is a copy of
            by_run[file.rank, file.prefix].append(file)
    for step_files in by_step.values():
        _find_unlike_their_run(step_files, by_run, lists, findings)
    unlike = set(findings.damaged)
    by_run = {run: [file for file in files if file.path not in unlike] for run, files in by_run.items()}
    for step_files in by_step.values():
        rest = [file for file in step_files if file.path not in findings.damaged]
        _find_truncated(rest, by_run, groups, lists, findings)
    for step, step_files in by_step.items():
        rest = [file for file in step_files if file.path not in findings.damaged]
        _find_odd(step, rest, by_run, groups, lists, findings)
    return findings


def _is_copy(file: SliceFile) -> bool:
    return file.manifest is not None and file.manifest.recovered


def _find_unlike_their_run(
    files: list[SliceFile],
    by_run: dict[tuple[int, str], list[SliceFile]],
    lists: Lists,
    findings: StructureFindings,
) -> None:
    """Call a slice damaged when nobody lists what it lists, and its rank's other steps list what others list too."""
    here = Counter(map(lists.of, files))
    for file in files:
        run = by_run[file.rank, file.prefix]
        history = Counter(lists.of(other) for other in run if other.step != file.step)
        own = lists.of(file)
        if here[own] > 1 or history[own]:
            continue
        for other in run:
            usual = lists.of(other)
            if history[usual] and history[usual] + here[usual] > 1 and not _begins(other.parameters, file.parameters):
                findings.damaged[file.path] = (
                    f"does not list what {other.path} lists, a slice of the same run: "
                    f"{_difference(file.parameters, other.parameters)}"
                )
                break


def _cut_off(names: tuple[str, ...], longer: tuple[str, ...]) -> bool:
    return len(longer) > len(names) and longer[: len(names)] == names


def _begins(whole: Structure, start: Structure) -> bool:
    return whole[: len(start)] == start


def _find_truncated(
    files: list[SliceFile],
    by_run: dict[tuple[int, str], list[SliceFile]],
    groups: GroupMap,
    lists: Lists,
    findings: StructureFindings,
) -> None:
    """Call a slice damaged when another that should list the same lists the same and more behind it."""
    total = Counter(lists.of(file).named for file in files)
    in_group = Counter((groups.of(file.rank), lists.of(file).named) for file in files)
    first: dict[int, SliceFile] = {}
    of_group: dict[tuple[int, ...], dict[int, SliceFile]] = defaultdict(dict)
    for file in files:
        first.setdefault(lists.of(file).named, file)
        of_group[groups.of(file.rank)].setdefault(lists.of(file).named, file)
    longer_before = Counter(
        lists.of(file).named
        for file in files
        if any(_cut_off(lists.of(file).names, lists.of(other).names) for other in by_run[file.rank, file.prefix])
    )
    for file in files:
        mine, group = lists.of(file), groups.of(file.rank)
        own = mine.names
        candidates = list(of_group[group].values())
        if total[mine.named] == longer_before[mine.named]:  # all who list exactly this listed more before
            candidates += by_run[file.rank, file.prefix]
        if total[mine.named] == in_group[group, mine.named]:  # nobody outside the group lists exactly this
            candidates += first.values()
        for other in candidates:
            longer = lists.of(other).names
            if _cut_off(own, longer):
                findings.damaged[file.path] = (
                    f"ends after {len(own)} of the {len(longer)} parameters that {other.path} lists: "
                    f"cut off before {longer[len(own)]!r}"
                )
                break


def _find_odd(
    step: Step,
    files: list[SliceFile],
    by_run: dict[tuple[int, str], list[SliceFile]],
    groups: GroupMap,
    lists: Lists,
    findings: StructureFindings,
) -> None:
    """Where the members of a group differ, call the odd one damaged, or all of them no replicas."""
    members: dict[tuple[int, ...], list[SliceFile]] = defaultdict(list)
    for file in files:
        members[groups.of(file.rank)].append(file)
    total = Counter(lists.of(file).named for file in files)
    for group, held in members.items():
        structures = Counter(map(lists.of, held))
        if len(structures) < 2:
            continue
        inside = Counter(lists.of(file).named for file in held)
        support = {}
        for structure, count in structures.items():
            history = sum(
                lists.of(other) is structure and other.step != step and other.path not in findings.damaged
                for file in held
                for other in by_run[file.rank, file.prefix]
            )
            elsewhere = total[structure.named] - inside[structure.named] if len(inside) > 1 else 0
            support[structure] = count - 1 + history + elsewhere
        fine = [file for file in held if support[lists.of(file)] > 0]
        odd = [file for file in held if fine and file not in fine and is_misread(file.parameters, fine[0].parameters)]
        for file in odd:
            findings.damaged[file.path] = (
                f"does not list what {fine[0].path} lists, though their ranks hold the same slice: "
                f"{_difference(file.parameters, fine[0].parameters)}"
            )
        left = [file for file in held if file not in odd]
        if len({lists.of(file) for file in left}) > 1:
            a = left[0]
            b = next(file for file in left if lists.of(file) is not lists.of(a))
            text = f"{a.path} and {b.path} should hold the same slice but {_difference(a.parameters, b.parameters)}"
            findings.conflicts[group, step] = text
            if lists.of(a).named != lists.of(b).named:
                findings.deduplicated.setdefault(step, text)


def list_the_same(one: SliceFile, other: SliceFile) -> bool:
    """Whether two slices list the same parameters: in the same order, where both have an order of their own."""
    if one.parameters == other.parameters:
        return True
    loose = any(file.path.endswith(ANY_ORDER) for file in (one, other))
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
