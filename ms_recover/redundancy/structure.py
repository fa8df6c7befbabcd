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
from ms_recover.redundancy.groups import GroupMap

Names = tuple[str, ...]
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
    """Find truncated and odd slices by comparing the parameters that slices list.

    Parameters
    ----------
    slices : iterable of SliceFile
        Damaged and encrypted ones are passed over.
    groups : GroupMap
        Who should hold the same.
    """
    sound = [file for file in slices if file.problem is None and file.encryption is None]
    findings = StructureFindings()
    by_step: dict[Step, list[SliceFile]] = defaultdict(list)
    by_run: dict[tuple[int, str], list[SliceFile]] = defaultdict(list)
    for file in sound:
        by_step[file.step].append(file)
        by_run[file.rank, file.prefix].append(file)
    names: dict[Structure, Names] = {}
    for file in sound:
        if file.parameters not in names:
            names[file.parameters] = tuple(parameter.name for parameter in file.parameters)
    for step_files in by_step.values():
        _find_unlike_their_run(step_files, by_run, findings)
    unlike = set(findings.damaged)
    by_run = {run: [file for file in files if file.path not in unlike] for run, files in by_run.items()}
    for step_files in by_step.values():
        rest = [file for file in step_files if file.path not in findings.damaged]
        _find_truncated(rest, by_run, groups, names, findings)
    for step, step_files in by_step.items():
        rest = [file for file in step_files if file.path not in findings.damaged]
        _find_odd(step, rest, by_run, groups, names, findings)
    return findings


def _find_unlike_their_run(
    files: list[SliceFile], by_run: dict[tuple[int, str], list[SliceFile]], findings: StructureFindings
) -> None:
    """Call a slice damaged when nobody lists what it lists, and its rank's other steps list what others list too."""
    here = Counter(file.parameters for file in files)
    for file in files:
        run = by_run[file.rank, file.prefix]
        history = Counter(other.parameters for other in run if other.step != file.step)
        if here[file.parameters] > 1 or history[file.parameters]:
            continue
        for other in run:
            usual = other.parameters
            if history[usual] and history[usual] + here[usual] > 1 and not _begins(usual, file.parameters):
                findings.damaged[file.path] = (
                    f"does not list what {other.path} lists, a slice of the same run: "
                    f"{_difference(file.parameters, usual)}"
                )
                break


def _begins(whole: Structure, start: Structure) -> bool:
    return whole[: len(start)] == start


def _find_truncated(
    files: list[SliceFile],
    by_run: dict[tuple[int, str], list[SliceFile]],
    groups: GroupMap,
    names: dict[Structure, Names],
    findings: StructureFindings,
) -> None:
    """Call a slice damaged when another that should list the same lists the same and more behind it."""
    total = Counter(names[file.parameters] for file in files)
    in_group = Counter((groups.of(file.rank), names[file.parameters]) for file in files)
    first: dict[Names, SliceFile] = {}
    of_group: dict[tuple[int, ...], dict[Names, SliceFile]] = defaultdict(dict)
    for file in files:
        first.setdefault(names[file.parameters], file)
        of_group[groups.of(file.rank)].setdefault(names[file.parameters], file)
    for file in files:
        own, group = names[file.parameters], groups.of(file.rank)
        candidates = list(of_group[group].items())
        candidates += [(names[other.parameters], other) for other in by_run[file.rank, file.prefix]]
        if total[own] == in_group[group, own]:  # nobody outside the group lists exactly this
            candidates += first.items()
        for longer, other in candidates:
            if len(longer) > len(own) and longer[: len(own)] == own:
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
    names: dict[Structure, Names],
    findings: StructureFindings,
) -> None:
    """Where the members of a group differ, call the odd one damaged, or all of them no replicas."""
    members: dict[tuple[int, ...], list[SliceFile]] = defaultdict(list)
    for file in files:
        members[groups.of(file.rank)].append(file)
    total = Counter(names[file.parameters] for file in files)
    for group, held in members.items():
        structures = Counter(file.parameters for file in held)
        if len(structures) < 2:
            continue
        inside = Counter(names[file.parameters] for file in held)
        support = {}
        for structure, count in structures.items():
            history = sum(
                other.parameters == structure and other.step != step and other.path not in findings.damaged
                for file in held
                for other in by_run[file.rank, file.prefix]
            )
            elsewhere = total[names[structure]] - inside[names[structure]] if len(inside) > 1 else 0
            support[structure] = count - 1 + history + elsewhere
        fine = [file for file in held if support[file.parameters] > 0]
        odd = [file for file in held if fine and file not in fine and _is_misread(file.parameters, fine[0].parameters)]
        for file in odd:
            findings.damaged[file.path] = (
                f"does not list what {fine[0].path} lists, though their ranks hold the same slice: "
                f"{_difference(file.parameters, fine[0].parameters)}"
            )
        left = [file for file in held if file not in odd]
        if len({file.parameters for file in left}) > 1:
            a = left[0]
            b = next(file for file in left if file.parameters != a.parameters)
            text = f"{a.path} and {b.path} should hold the same slice but {_difference(a.parameters, b.parameters)}"
            findings.conflicts[group, step] = text
            if names[a.parameters] != names[b.parameters]:
                findings.deduplicated.setdefault(step, text)


def _is_misread(one: Structure, other: Structure) -> bool:
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
