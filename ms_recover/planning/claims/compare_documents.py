"""The documents of an iteration against its files: what they claim in vain, what they omit, what they contradict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from ms_recover.file_names import COMMON_NAME, WeightKind, WeightsName, weights_name
from ms_recover.model.shard_metadata import CommonInfo, ShardMetadata
from ms_recover.model.slices import Parameter
from ms_recover.planning.claims.metadata import ExpectedFile, expected_files

FindingKind = Literal[
    "file missing",
    "file not named",
    "file damaged",
    "parameter missing",
    "parameter not named",
    "parameter differs",
    "other count",
    "other iteration",
]

GLOBAL_STEP = Parameter("global_step", "Int32", (1,), 4)
"""In each ``opt`` file of a save that removes no redundancy, and in no metadata."""

_SHOWN = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class ListedFile:
    """A file of an iteration as its header has it."""

    parameters: tuple[Parameter, ...] = ()
    size: int = 0
    problem: str = ""
    """Why its header is no evidence: torn, unreadable. Empty for a sound one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One contradiction between a document and a file, or between two documents."""

    kind: FindingKind
    file: str
    """Its name."""
    rank: int | None
    """The rank that wrote the file, where that is known."""
    words: str
    """What is wrong, with the expected and the actual value."""


def find_unlisted(metadata: ShardMetadata, files: Mapping[str, ListedFile]) -> Mapping[str, tuple[Parameter, ...]]:
    """Return, for ``"model"`` and ``"opt"``, the parameters that metadata does not list and most sound files have.

    MindFormers lists only parameters with a layout: ``global_step`` is in each ``opt`` file of a save that removes no
    redundancy, and in no metadata. Without a sound ``opt`` file, it is returned for such a save all the same.
    """
    lists_of: dict[str, tuple[Parameter, ...]] = {}
    expected = expected_files(metadata)
    for kind in get_args(WeightKind):
        names = [name for name, file in expected.items() if file.name.kind == kind]
        sound = [files[name].parameters for name in names if name in files and not files[name].problem]
        lists = {id(parameters): parameters for parameters in sound}
        votes: Counter[Parameter] = Counter()
        for key, times in Counter(map(id, sound)).items():
            for parameter in {parameter for parameter in lists[key] if parameter.name not in metadata.parameters}:
                votes[parameter] += times
        common = (parameter for parameter, times in votes.items() if 2 * times > len(sound))
        lists_of[kind] = tuple(sorted(common, key=lambda parameter: parameter.name))
        if not sound and kind == "opt" and names and metadata.removed_redundancy is False:
            lists_of[kind] = (GLOBAL_STEP,)
    return lists_of


def compare_files(metadata: ShardMetadata, files: Mapping[str, ListedFile]) -> tuple[Finding, ...]:
    """Return every contradiction between metadata and the files of its iteration, by file name.

    Names in `files` that are no `WeightsName` are passed over.
    """
    expected, unlisted = expected_files(metadata), find_unlisted(metadata, files)
    counts = {file.name.kind: file.name.file_count for file in expected.values()}
    findings: list[Finding] = []
    known: dict[tuple[int, int], tuple[tuple[FindingKind, str], ...]] = {}
    for file in sorted(expected.keys() | {name for name in files if weights_name(name)}):
        wanted, actual = expected.get(file), files.get(file)
        if not wanted:
            findings.append(_not_named(file, weights_name(file), counts))
        elif actual is None:
            words = f"metadata.json names it, and it is missing ({len(wanted.parameters)} parameters)"
            findings.append(Finding(kind="file missing", file=file, rank=wanted.rank, words=words))
        elif actual.problem:
            findings.append(Finding(kind="file damaged", file=file, rank=wanted.rank, words=actual.problem))
        else:
            key = (id(wanted.parameters), id(actual.parameters))
            if key not in known:
                known[key] = tuple(_differences(wanted, actual, unlisted[wanted.name.kind]))
            findings += (Finding(kind=kind, file=file, rank=wanted.rank, words=words) for kind, words in known[key])
    return tuple(findings)


def compare_common(common: CommonInfo, iteration: int, global_step: int | None = None) -> tuple[Finding, ...]:
    """Return what ``common.json`` contradicts: the iteration of its directory, and ``global_step`` of the opt files."""
    findings = []
    if common.step_num not in (None, iteration):
        findings.append(f"its step_num is {common.step_num}, and its directory is of iteration {iteration}")
    if None not in (common.global_step, global_step) and common.global_step != global_step:
        findings.append(f"its global_step is {common.global_step}, and that of the opt files is {global_step}")
    return tuple(Finding(kind="other iteration", file=COMMON_NAME, rank=0, words=words) for words in findings)


def compare_tracker(tracked: int | None, complete: Mapping[int, bool]) -> str:
    """Return what is wrong with the tracker, given whether each iteration on disk is complete; empty when nothing is.

    A tracker that is missing or unreadable is None.
    """
    newest = max((iteration for iteration, whole in complete.items() if whole), default=None)
    if tracked is None:
        return "" if newest is None else f"it names no iteration, and the newest complete one is {newest}"
    rest = "" if newest is None else f"; the newest complete one is {newest}"
    if tracked not in complete:
        return f"it names iteration {tracked}, which is not there{rest}"
    if not complete[tracked]:
        return f"it names iteration {tracked}, which is not complete{rest}"
    if newest is not None and newest > tracked:
        return f"it names iteration {tracked}, and iteration {newest} is complete"
    return ""


def _not_named(file: str, name: WeightsName | None, counts: Mapping[WeightKind, int]) -> Finding:
    if name and name.kind in counts and name.file_count != counts[name.kind]:
        words = f"its name counts {name.file_count} files, and metadata.json {counts[name.kind]}: it is of another save"
        return Finding(kind="other count", file=file, rank=None, words=words)
    words = "metadata.json does not name it: it is of another save, or the metadata was written before it"
    return Finding(kind="file not named", file=file, rank=None, words=words)


def _differences(
    wanted: ExpectedFile, actual: ListedFile, unlisted: tuple[Parameter, ...]
) -> Iterator[tuple[FindingKind, str]]:
    """Yield what is wrong with a file whose header is sound."""
    expected = {item.name: item for item in wanted.parameters}
    more = {item.name: item for item in unlisted}
    names = Counter(item.name for item in actual.parameters)
    if missing := sorted(expected.keys() - names.keys()):
        yield "parameter missing", f"metadata.json lists {_some(missing)} in it, and it does not have them"
    if missing := sorted(more.keys() - names.keys()):
        yield "parameter missing", f"it does not have {_some(missing)}, which the other files of its kind have"
    if foreign := sorted(names.keys() - expected.keys() - more.keys()):
        yield "parameter not named", f"it has {_some(foreign)}, which metadata.json does not list in it"
    for item in actual.parameters:
        if (other := expected.get(item.name)) and (item.dtype, item.shape) != (other.dtype, other.shape):
            words = f"{item.name!r} is {item.dtype} {list(item.shape)} in it, and {other.dtype} {list(other.shape)}"
            yield "parameter differs", f"{words} by metadata.json"


def _some(names: list[str]) -> str:
    shown = ", ".join(map(repr, names[:_SHOWN]))
    return f"{shown} and {len(names) - _SHOWN} more" if len(names) > _SHOWN else shown
