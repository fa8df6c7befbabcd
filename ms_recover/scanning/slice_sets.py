"""Sets of slices in one tree: those that were saved together by one kind of save, and the one that a scan is about.

A set is all slices in directories of one form, of one kind (whole ones, or MindFormers' without the optimizer), whose
names all carry the rank or none does. A step is never put together from two sets. Pure.
"""

from __future__ import annotations

import re
import shlex
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ms_recover.file_names import NETWORK_MARK, TRAINABLE_MARK, ending_of
from ms_recover.model.inventory import OtherSet
from ms_recover.model.steps import Step
from ms_recover.scanning.naming import SliceName

_STEP_FOLDER = re.compile(r"(?<=step_)\d+", re.ASCII)
_TAIL = re.compile(r"-\d+_\d+(?=\.[a-z]+\Z)", re.ASCII)
_NAMED_STEP = "-{epoch}_{step}"
_PLACE = "{rank}"
_KINDS = {NETWORK_MARK: "of the network alone", TRAINABLE_MARK: "of the trainable parameters alone", "": ""}


@dataclass(frozen=True, slots=True)
class _Key:
    folder: str
    mark: str
    names_rank: bool


@dataclass(frozen=True)
class SliceSets:
    """The set that a scan is about, and the others."""

    chosen: tuple[SliceName, ...]
    folders: frozenset[str]
    """Directories of the others, with ``{rank}``, in which no chosen slice lies."""
    others: tuple[OtherSet, ...]


def without_step(folder: str) -> str:
    """Return a directory without the step that its name has, as those of MindIO do: its slices are of all steps."""
    return _STEP_FOLDER.sub("{step}", folder)


def choose_set(root: str, slices: Iterable[SliceName]) -> SliceSets:
    """Choose the set that a scan of `root` is about, and describe the others with the command for each.

    Whole slices come before those without the optimizer. Of several sets that at least half as many ranks have as any
    other, the one with the newest step is chosen, then the one nearest to the root.
    """
    sets: dict[_Key, list[SliceName]] = defaultdict(list)
    for name in slices:
        sets[_key_of(name)].append(name)
    if len(sets) < 2:
        return SliceSets(tuple(name for names in sets.values() for name in names), frozenset(), ())
    ranks = {key: len({name.rank for name in names}) for key, names in sets.items()}
    whole = [key for key in sets if not key.mark] or list(sets)
    most = max(ranks[key] for key in whole)
    wide = [key for key in whole if 2 * ranks[key] >= most]
    newest = {key: max(name.step for name in names) for key, names in sets.items()}
    chosen = min(wide, key=lambda key: (_backwards(newest[key]), key.folder.count("/"), key.folder, not key.names_rank))
    others = sorted((key for key in sets if key != chosen), key=lambda key: (key.folder, key.mark, key.names_rank))
    return SliceSets(
        chosen=tuple(sets[chosen]),
        folders=frozenset(key.folder for key in others if key.folder != chosen.folder),
        others=tuple(
            OtherSet(
                pattern=_pattern(key, sets[key]),
                kind=_KINDS[key.mark],
                ranks=ranks[key],
                newest=newest[key],
                command=_command(root, key, sets),
            )
            for key in others
        ),
    )


def _key_of(name: SliceName) -> _Key:
    mark = next((mark for mark in (NETWORK_MARK, TRAINABLE_MARK) if name.prefix.endswith(mark)), "")
    folder, _, file = _PLACE.join(name.place.parts).rpartition("/")
    return _Key(without_step(folder), mark, _PLACE in file)


def _backwards(step: Step) -> tuple[int, int]:
    return -step.epoch, -step.step


def _pattern(key: _Key, names: Sequence[SliceName]) -> str:
    """Return the pattern that describes a set: with its prefix where all slices have one."""
    newest = max(names, key=lambda name: (name.step, name.path))
    folder, _, file = _PLACE.join(newest.place.parts).rpartition("/")
    stem = _TAIL.sub("", file).removesuffix(ending_of(file))
    if len({name.prefix for name in names}) > 1:
        stem = f"{{prefix}}{key.mark}"
    return f"{folder}/{stem}{_NAMED_STEP}{ending_of(file)}"


def _command(root: str, key: _Key, sets: dict[_Key, list[SliceName]]) -> str:
    """Return the command for a set: of the folder that holds no other, else with its pattern."""
    container = key.folder.partition(_PLACE)[0].rpartition("/")[0]
    container = container.partition("{step}")[0].rpartition("/")[0] if "{step}" in container else container
    alone = [other for other in sets if f"{other.folder}/".startswith(f"{container}/")] == [key]
    if container and alone:
        return shlex.join(["recover-ckpt", "plan", f"{root}/{container}"])
    return shlex.join(["recover-ckpt", "plan", root, "--pattern", _pattern(key, sets[key])])
