"""Find the iterations of a MindFormers "weights 2.0" tree: their files by name, and the documents beside them.

A rank's slice of an iteration is its model file and its optimizer file. The rank of a file is the number in its name,
unless ``metadata.json`` states another: with ``remove_redundancy`` files are numbered among the ranks that got a shard.
"""

from __future__ import annotations

import os
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from ms_recover.errors import MissingInputError, MsRecoverError
from ms_recover.file_names import (
    COMMON_NAME,
    HUGGING_FACE_NAMES,
    ITERATION_CONTAINERS,
    MANIFEST_SUFFIX,
    METADATA_NAME,
    TRACKER_NAME,
    WEIGHT_KINDS,
    WeightsName,
    named_iteration,
    weights_name,
)
from ms_recover.formats.common_info import MAX_COMMON, MAX_TRACKER, decode_common, decode_tracker
from ms_recover.formats.header import parse_header
from ms_recover.formats.shard_metadata import decode_metadata
from ms_recover.model.inventory import RankPath, SliceFile
from ms_recover.model.iterations import Document, Iteration
from ms_recover.model.shard_metadata import CommonInfo, ShardMetadata
from ms_recover.model.steps import Step
from ms_recover.scanning.counters import read_numbers
from ms_recover.scanning.naming import SliceName, why_unused
from ms_recover.scanning.notes import Notes
from ms_recover.scanning.tree import Tree
from ms_recover.scanning.walk import iterations_in, note_unused
from ms_recover.stores.store import never

_T = TypeVar("_T")
_MOST_ASKED = 3

_TEMPORARY = re.compile(r"tmp[a-z0-9_]{8}\Z", re.ASCII)
"""How ``tempfile`` names what MindFormers has not finished writing."""


@dataclass(slots=True)
class FoundIterations:
    """The finds of one walk; paths are relative to the root."""

    slices: list[SliceName] = field(default_factory=list)
    """Files of ranks, and those whose manifest alone is there."""
    iterations: list[Iteration] = field(default_factory=list)
    tracker: Document[int] | None = None

    def with_global_steps(self, tree: Tree, slices: Iterable[SliceFile]) -> tuple[Iteration, ...]:
        """Return the iterations with the value of ``global_step`` where ``common.json`` cannot be read.

        A few optimizer files are looked at, which must agree.
        """
        by_step: dict[Step, list[SliceFile]] = defaultdict(list)
        for file in slices:
            if file.kind == "opt" and file.problem is None and len(by_step[file.step]) < _MOST_ASKED:
                by_step[file.step].append(file)
        found = []
        for one in self.iterations:
            values = set()
            if one.common.value is None:
                values = {_global_step(tree, file.path) for file in by_step[one.step]}
            found.append(replace(one, global_step=values.pop()) if len(values) == 1 else one)
        return tuple(found)


def walk_iterations(tree: Tree, notes: Notes) -> FoundIterations:
    """Find ``iteration_*`` in the root, below ``checkpoint/`` or ``output/checkpoint/``; or the root itself is one.

    Nothing is found in other trees, and where the root cannot be listed.

    Raises
    ------
    PermissionDeniedError, StorageError
        When the directory of an iteration cannot be listed: that it is incomplete cannot be known.
    """
    found = FoundIterations()
    reader = _DocumentReader(tree)
    own = named_iteration(os.path.basename(tree.root))
    if own is not None:
        names = _names(tree, "")
        if METADATA_NAME in names or any(map(weights_name, names)):
            _take(tree, found, reader, notes, Step.iteration(own), "")
            return found
    taken = ""
    for container in ITERATION_CONTAINERS:
        ahead = f"{container}/" if container else ""
        named = iterations_in(tree, container)
        if named and found.iterations:
            notes.add(ahead[:-1], f"holds iterations too; those in {taken or 'the root'} are used: name this directory")
            continue
        if not named:
            continue
        taken = container
        tree.list_ahead(f"{ahead}{name}" for _, name in named)
        for number, name in sorted(named, reverse=True):
            directory = f"{ahead}{name}"
            _take(tree, found, reader, notes, Step.iteration(number), directory)
        found.tracker = reader.read(f"{ahead}{TRACKER_NAME}", reader.tracker)
        for name in HUGGING_FACE_NAMES:
            if tree.kind(f"{ahead}{name}") is not None:
                notes.add(f"{ahead}{name}", "MindFormers loads what it names instead of any iteration")
    return found


def _take(
    tree: Tree, found: FoundIterations, reader: _DocumentReader, notes: Notes, step: Step, directory: str
) -> None:
    """Sort the files of one iteration out."""
    ahead, names = f"{directory}/" if directory else "", _names(tree, directory)
    metadata = reader.read(f"{ahead}{METADATA_NAME}", reader.metadata)
    common = reader.read(f"{ahead}{COMMON_NAME}", reader.common)
    found.iterations.append(Iteration(step=step, directory=directory, metadata=metadata, common=common))
    there = set(names)
    weights: dict[str, WeightsName] = {}
    for name in names:
        if _TEMPORARY.match(name):
            notes.add(f"{ahead}{name}", "left over from an interrupted save", "unfinished save")
        elif (unused := why_unused(name)) is not None:
            note_unused(tree, notes, f"{ahead}{name}", unused, there)
        elif (read := weights_name(name)) is not None:
            weights[name] = read
        elif name.endswith(MANIFEST_SUFFIX):
            gone = name.removesuffix(MANIFEST_SUFFIX)
            read = weights_name(gone)
            if gone not in there and read is not None:
                weights[gone] = read
    named = metadata.value.files if metadata.value is not None else {}
    stated = {name: (one, rank) for name, rank in named.items() if (one := weights_name(name)) is not None}
    for kind in WEIGHT_KINDS:
        found.slices += _slices(
            ahead,
            step,
            {name: one for name, one in weights.items() if one.kind == kind},
            {name: (one, rank) for name, (one, rank) in stated.items() if one.kind == kind},
            notes,
        )


def _slices(
    ahead: str,
    step: Step,
    weights: Mapping[str, WeightsName],
    stated: Mapping[str, tuple[WeightsName, int]],
    notes: Notes,
) -> list[SliceName]:
    """Return the files of one part that metadata names, and those that are named like them; note the others.

    `stated` are the files that metadata names, and their ranks. Where it names none of the part the files of the
    greatest number count.
    """
    if not stated.keys() & weights.keys():
        stated = {}
    families = Counter((one.prefix, one.file_count) for one in weights.values())
    if stated:
        usual = {(one.prefix, one.file_count) for one, _ in stated.values()}
    else:
        by_count: Counter[int] = Counter()
        for (_, count), files in families.items():
            by_count[count] += files
        most = max(by_count, key=lambda count: (by_count[count], count), default=0)
        usual = {family for family in families if family[1] == most}
    numbers = _numbers({rank: one.file_index for one, rank in stated.values()})
    places = {
        (prefix, count): RankPath(
            (f"{ahead}{'' if prefix is None else f'{prefix}-'}{kind}-", f"-{count:07d}.safetensors"), 7, numbers
        )
        for (prefix, count), kind in {(one.prefix, one.file_count): one.kind for one in weights.values()}.items()
    }
    found = []
    for name, one in sorted(weights.items()):
        family = (one.prefix, one.file_count)
        rank = stated[name][1] if name in stated else _rank_of(one.file_index, numbers)
        if family not in usual:
            theirs = max(count for _, count in usual)
            why = "metadata.json does not name it" if stated else f"most files of its kind are one of {theirs}"
            notes.add(f"{ahead}{name}", why)
        elif rank is None or one.file_index >= one.file_count:
            notes.add(f"{ahead}{name}", f"its number is {one.file_index}, of {one.file_count} files counted from 0")
        else:
            found.append(SliceName(rank, step, one.prefix or "", places[family], one.kind))
    return found


def _numbers(by_rank: Mapping[int, int]) -> tuple[int, ...]:
    """Return the number of each rank's file, empty where that is the rank."""
    if all(rank == number for rank, number in by_rank.items()):
        return ()
    free = iter(sorted(set(range(max(by_rank) + 1)) - set(by_rank.values())))
    return tuple(by_rank[rank] if rank in by_rank else next(free, rank) for rank in range(max(by_rank) + 1))


def _rank_of(index: int, numbers: tuple[int, ...]) -> int | None:
    if not numbers:
        return index
    return numbers.index(index) if index in numbers else None


class _DocumentReader:
    """Reads documents, and the metadata of iterations that are equal once."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._known: dict[int, list[tuple[str, ShardMetadata]]] = defaultdict(list)  # by size, with its path

    def read(self, path: str, read: Callable[[str], _T]) -> Document[_T]:
        """Return a document; one that cannot be read has a problem."""
        if self._tree.is_gone(path):
            return Document(path)
        state = None
        try:
            state = self._tree.stat(path).state
            return Document(path, state, read(path))
        except MissingInputError:
            return Document(path)
        except PermissionError:
            return Document(path, state, problem=self._tree.denied)
        except MsRecoverError as error:
            self._tree.check_reached(error)
            return Document(path, state, problem=self._tree.brief(error, path))

    def metadata(self, path: str) -> ShardMetadata:
        """Read metadata, which is the same for all iterations of a job; errors as for `decode_metadata`."""
        with self._tree.open(path) as opened:
            known = self._known[opened.size]
            digest = opened.digest(never) if known else ""
            for other, metadata in known:
                if self._digest(other) == digest:
                    return metadata
            read_at = opened.read_at
            known.append((path, decode_metadata(read_at, opened.size, opened.name)))
        return known[-1][1]

    def _digest(self, path: str) -> str:
        with self._tree.open(path) as opened:
            return opened.digest(never)

    def common(self, path: str) -> CommonInfo:
        """Read a ``common.json``; errors as for `decode_common`."""
        data = self._tree.small(path, "the common.json of an iteration", MAX_COMMON)
        return decode_common(data, self._tree.name(path))

    def tracker(self, path: str) -> int:
        """Read the tracker; errors as for `decode_tracker`."""
        return decode_tracker(self._tree.small(path, "the tracker", MAX_TRACKER), self._tree.name(path))


def _names(tree: Tree, folder: str) -> list[str]:
    try:
        return [entry.name for entry in tree.entries(folder)]
    except MissingInputError:
        return []  # removed since it was listed


def _global_step(tree: Tree, path: str) -> int | None:
    try:
        with tree.open(path) as opened:
            header = parse_header(opened.read_at, opened.size, name=path)
            found = read_numbers(opened, header, ("global_step",)).get("global_step")
            return found if isinstance(found, int) else None
    except MsRecoverError as error:
        tree.check_reached(error)
    return None


def choose_format(files: Sequence[SliceFile], notes: Notes) -> list[SliceFile]:
    """Return the slices of one format, where a tree has steps of epochs and iterations: the one that was saved last."""
    iterations = [file for file in files if file.step.is_iteration]
    steps = [file for file in files if not file.step.is_iteration]
    if not iterations or not steps:
        return list(files)
    latest = [max(file.mtime_ns for file in held) for held in (iterations, steps)]
    chosen, other = (iterations, steps) if latest[0] >= latest[1] else (steps, iterations)
    first = min(file.path for file in other)
    hint = "name the directory of the iteration" if chosen is steps else "describe them with --pattern"
    notes.add(
        first, f"one of {len(other)} slices of the other format, which was saved earlier: to recover these, {hint}"
    )
    return chosen
