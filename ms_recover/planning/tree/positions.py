"""Positions: the steps of a training that were trained when a slice was saved, since the very beginning.

Names order the steps of one run of MindSpore's. MindFormers without sink mode counts the steps of a name from the
resume: after a resume at 14 of epochs of 8 steps, ``2_2`` is step 16, and ``3_1`` comes after ``3_8``; of two runs both
may have a ``2_2``. So the order of steps is the order of training, where anything states it: the ``cumulative_step`` of
manifests, else the optimizer's ``global_step`` in the slices, else the ``step_num`` that MindFormers appends.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from types import MappingProxyType
from typing import get_args

from ms_recover.model.grouped import grouped
from ms_recover.model.inventory import SliceFile
from ms_recover.model.steps import CountedBy, Position, Step
from ms_recover.planning.tree.lineage import Lineage
from ms_recover.planning.tree.runs import OlderRuns, of_last_run

_Key = tuple[str, Step]
_SOURCES: tuple[CountedBy, ...] = get_args(CountedBy)


@dataclass(frozen=True, slots=True, kw_only=True)
class Positions:
    """The positions of slices: by prefix and step, and of single slices whose manifests state another one.

    A run has one prefix in a directory; MindSpore numbers prefixes in each directory by itself, so that one rank may
    have given a name to another step than the others.
    """

    known: Mapping[_Key, Position] = field(default_factory=lambda: MappingProxyType({}))
    odd: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    """By the path of the slice."""

    def of(self, file: SliceFile) -> int | None:
        """Return the position of a slice, None where nothing states it."""
        if self.odd and (own := self.odd.get(file.path)) is not None:
            return own
        position = self.known.get((file.prefix, file.step))
        return position.cumulative_step if position is not None else None

    def of_all(self, files: Iterable[SliceFile]) -> int | None:
        """Return the newest position of some slices, None where nothing states any."""
        return max((one for file in files if (one := self.of(file)) is not None), default=None)

    def apart(self, files: Sequence[SliceFile]) -> list[list[SliceFile]]:
        """Return slices of one name by their position, the newest first; each may be with any that nothing states."""
        held = grouped(files, self.of)
        unknown = held.pop(None, [])
        return [held[one] + unknown for one in sorted(one for one in held if one is not None)[::-1]] or [unknown]

    @property
    def every(self) -> tuple[Position, ...]:
        """Every position, in order."""
        return tuple(sorted(self.known.values(), key=lambda one: (one.cumulative_step, one.prefix)))

    def first_of(self, prefix: str) -> int | None:
        """Return the position of the first slice of a prefix, None where nothing states any."""
        return min((one.cumulative_step for (own, _), one in self.known.items() if own == prefix), default=None)


NO_POSITIONS = Positions()


def find_positions(files: Sequence[SliceFile]) -> Positions:
    """Return the positions that slices and their manifests state.

    One source counts for all slices where it states all: counters may differ, because an overflow adds nothing to a
    ``global_step``. A source that gives two steps of a prefix one position states nothing about the prefix; nor does
    one that contradicts the order of names, unless these are MindFormers'. Most slices of a step must agree.
    """
    stated: dict[CountedBy, dict[_Key, Counter[int]]] = {source: defaultdict(Counter) for source in _SOURCES}
    restart: set[str] = set()
    for file in files:
        key = (file.prefix, file.step)
        if (trained := _by_manifest(file)) is not None:
            stated["manifest"][key][trained] += 1
        if file.global_step is not None:
            stated["global_step"][key][file.global_step] += 1
        if file.step_num is not None:
            stated["step_num"][key][file.step_num] += 1
        if file.name_has_rank:
            restart.add(file.prefix)
    scales = {source: _scale(keys, restart) for source, keys in stated.items()}
    every = {key for scale in scales.values() for key in scale}
    whole = next((source for source, scale in scales.items() if len(scale) == len(every)), None)
    known: dict[_Key, Position] = {}
    for source, scale in scales.items():
        for (prefix, step), trained in scale.items() if whole in (None, source) else ():
            position = Position(prefix=prefix, step=step, cumulative_step=trained, stated_by=source)
            known.setdefault((prefix, step), position)
    several = {key for key, values in stated["manifest"].items() if len(values) > 1 and key in known}
    odd = [file for file in files if (file.prefix, file.step) in several]
    return Positions(known=known, odd={file.path: own for file in odd if (own := _by_manifest(file)) is not None})


def _by_manifest(file: SliceFile) -> int | None:
    """Return the position that the manifest of a slice states, None for an iteration, whose name is its position."""
    manifest = file.manifest
    if manifest is None or file.kind is not None or (manifest.rank, manifest.step) != (file.rank, file.step):
        return None
    return manifest.cumulative_step


def _scale(stated: Mapping[_Key, Counter[int]], restart: Iterable[str]) -> dict[_Key, int]:
    """Return the positions by one source, without the prefixes of which it cannot be right."""
    by_prefix: dict[str, dict[Step, int]] = defaultdict(dict)
    for (prefix, step), values in stated.items():
        value, count = values.most_common(1)[0]
        if 2 * count > values.total():
            by_prefix[prefix][step] = value
    scale = {}
    for prefix, by_step in by_prefix.items():
        ordered = [by_step[step] for step in sorted(by_step)]
        rises = all(earlier < later for earlier, later in pairwise(ordered))
        if rises or (prefix in restart and len(set(ordered)) == len(ordered)):
            scale.update({(prefix, step): value for step, value in by_step.items()})
    return scale


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """The slices of one name that were saved at one time of a training."""

    step: Step
    trained: int | None = None
    """Their position."""
    generation: int = 0
    """The place of their run in the lineage, 0 without one."""
    rerun: int = 0
    """The number behind their prefix."""
    paths: frozenset[str] | None = None
    """Their paths, where others of the same name were saved at another time."""


def find_times(
    step: Step, files: list[SliceFile], older_runs: OlderRuns, lineage: Lineage | None, positions: Positions
) -> tuple[Saved, ...]:
    """Return slices of one name by the time of the training at which they were saved, the newest first.

    In a lineage one run alone counts at each step. Slices of other runs than the present one are seen at each time.
    """
    # The slices of each time, and those that show when it was: another run may have given the name to any step.
    times, generation = [(files, files)], 0
    if lineage is not None:
        orders = (lineage.order(file) for file in files)
        generation = max((order[0] for order in orders if order is not None), default=0)
        times = [(files, of_last_run(lineage, files))]
    elif positions.known:
        own = older_runs.of_present(files)
        present = {file.path for file in own}
        others = [file for file in files if file.path not in present]
        times = [([*alike, *others], alike or others) for alike in positions.apart(own)]
    return tuple(
        Saved(
            step=step,
            trained=positions.of_all(own),
            generation=generation,
            rerun=max(map(older_runs.names.number_of, own), default=0),
            paths=frozenset(file.path for file in alike) if len(times) > 1 else None,
        )
        for alike, own in times
    )


def newest_first(items: Iterable[Saved]) -> tuple[Saved, ...]:
    """Return items, newest first: those of a later run of the lineage, then those that were trained longer.

    Those outside of the lineage, or of which nothing states the position, find their place among the others by name.
    """
    by_name = sorted(items, key=lambda saved: (saved.step, saved.rerun), reverse=True)
    lineage = any(saved.generation for saved in by_name)
    inside = [saved for saved in by_name if (saved.generation if lineage else saved.trained is not None)]
    if all(saved.trained is not None for saved in inside):
        inside.sort(key=lambda saved: (saved.generation, saved.trained or 0, saved.rerun), reverse=True)
    else:
        inside.sort(key=lambda saved: saved.generation, reverse=True)
    known = set(map(id, inside))
    other = [saved for saved in by_name if id(saved) not in known]
    ordered: list[Saved] = []
    for saved in inside:
        ordered += [item for item in other if item.step > saved.step]
        other = [item for item in other if item.step <= saved.step]
        ordered.append(saved)
    return (*ordered, *other)
