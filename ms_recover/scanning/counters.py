"""The numbers in slices that count the steps of a training, read of a few slices of each prefix and step.

Stock MindSpore names the steps of all runs of a training alike. MindFormers without sink mode counts the steps of a
name from the resume (``CheckpointMonitor.save_checkpoint`` in ``mindformers/core/callback/callback.py``), so that names
order nothing there; nor do they where a training was started again under another prefix. The optimizer's
``global_step`` counts over all resumes, and so does the ``step_num`` that MindFormers appends. Stock MindSpore appends
one of that name which begins anew with each resume.
"""

from __future__ import annotations

import struct
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from math import isfinite

from ms_recover.errors import MsRecoverError
from ms_recover.formats.common_info import COMMON_MEMBERS
from ms_recover.formats.header import parse_header
from ms_recover.formats.header_cache import KnownHeaders
from ms_recover.model.inventory import Inventory, SliceFile
from ms_recover.model.slices import SliceHeader
from ms_recover.model.steps import Step
from ms_recover.scanning.tree import Tree
from ms_recover.stores.store import OpenFile
from ms_recover.stores.urls import open_store

_MOST_ASKED = 3
"""Slices of one prefix and step: one that is damaged is outvoted."""

_MOST_STEPS = 512
"""Prefixes and steps of which slices are asked."""

_GLOBAL_STEP, _STEP_NUM = "global_step", "step_num"
_OF_MINDFORMERS = frozenset({"epoch_num", _STEP_NUM, "loss_scale"})
"""MindFormers appends all of these to each slice, whose name has the rank."""

_CODES = {"Int8": "<b", "Int32": "<i", "Int64": "<q", "UInt32": "<I", "UInt64": "<Q", "Float32": "<f", "Float64": "<d"}


def with_counters(tree: Tree, slices: Sequence[SliceFile]) -> list[SliceFile]:
    """Return slices, some with their counters: a few of each step, where names and manifests may not order the steps.

    Raises
    ------
    StorageError
        When a distant store cannot be read for another reason than that this user may not.
    """
    asked = _choose(slices)
    headers = KnownHeaders()

    def read(file: SliceFile) -> SliceFile:
        try:
            with tree.open(file.path) as opened:
                header = headers.parse(opened.read_at, opened.size, file.path)
                return _with_numbers(file, read_numbers(opened, header, (_GLOBAL_STEP, _STEP_NUM)))
        except MsRecoverError as error:
            tree.check_reached(error)
            return file

    found = {file.path: file for file in tree.each(read, asked)}
    return [found.get(file.path, file) for file in slices] if found else list(slices)


def read_numbers(opened: OpenFile, header: SliceHeader, names: Collection[str]) -> dict[str, float]:
    """Return the values of some parameters of one element by name; those that are there and are numbers."""
    found: dict[str, float] = {}
    for one, places in zip(header.parameters, header.contents, strict=True):
        if one.name in names and one.dtype in _CODES and one.shape in ((), (1,)):
            try:
                found[one.name] = struct.unpack(_CODES[one.dtype], opened.read_at(places[0].start, one.nbytes))[0]
            except struct.error:
                continue
    return found


def _choose(slices: Sequence[SliceFile]) -> list[SliceFile]:
    """Return the slices to ask: none where the names of one run order its steps, or manifests count all of them."""
    if not slices or slices[0].step.is_iteration:
        return []
    if not any(file.name_has_rank for file in slices) and _are_ordered(slices):
        return []
    by_step: dict[tuple[str, Step], list[SliceFile]] = defaultdict(list)
    for file in slices:
        by_step[file.prefix, file.step].append(file)
    if len(by_step) > _MOST_STEPS or all(map(_is_counted, by_step.values())):
        return []
    sound = ([one for one in held if one.problem is None and one.encryption is None] for held in by_step.values())
    return [one for held in sound for one in _spread(held)]


def _are_ordered(slices: Sequence[SliceFile]) -> bool:
    """Whether the names of MindSpore's slices order them: no second prefix is that of a run, but of a stray slice."""
    if len({file.prefix for file in slices}) == 1:
        return True
    several = {(file.prefix, file.rank) for file in slices}
    return sum(count > 1 for count in Counter(prefix for prefix, _ in several).values()) < 2


def _is_counted(files: Sequence[SliceFile]) -> bool:
    return any(file.manifest is not None and file.manifest.cumulative_step is not None for file in files)


def _spread(files: Sequence[SliceFile]) -> list[SliceFile]:
    """Return a few slices, the first and the last among them: neighbours may live, and fail, together."""
    if len(files) <= _MOST_ASKED:
        return list(files)
    return [files[place * (len(files) - 1) // (_MOST_ASKED - 1)] for place in range(_MOST_ASKED)]


def _with_numbers(file: SliceFile, numbers: Mapping[str, float]) -> SliceFile:
    names = {one.name for one in file.parameters}
    of_mindformers = file.name_has_rank and names >= _OF_MINDFORMERS
    counted = {name: value for name, value in numbers.items() if isinstance(value, int) and value > 0}
    return replace(
        file, global_step=counted.get(_GLOBAL_STEP), step_num=counted.get(_STEP_NUM) if of_mindformers else None
    )


_MOST_AGREEING = 8


def read_progress(inventory: Inventory, step: Step) -> dict[str, float]:
    """Return the values of the parameters of one element that ``common.json`` has members for, by name.

    A few slices are read, which must agree: what differs among them is left out, as are values that are no number.
    """
    sound = [one for one in inventory.slices if one.step == step and one.problem is None and one.encryption is None]
    found: dict[str, set[float]] = defaultdict(set)
    with open_store(inventory.root) as store:
        for file in sound[:_MOST_AGREEING]:
            try:
                with store.open(file.path) as opened:
                    header = parse_header(opened.read_at, opened.size, name=file.path)
                    for name, value in read_numbers(opened, header, COMMON_MEMBERS).items():
                        found[name].add(value)
            except MsRecoverError:
                continue
    agreed = {name: values.pop() for name, values in found.items() if len(values) == 1}
    return {name: value for name, value in agreed.items() if isfinite(value) and value >= 0}
