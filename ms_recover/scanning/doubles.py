"""Several slices of one rank and step with the same contents: one of them counts."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterable
from operator import attrgetter

from ms_recover.errors import MsRecoverError
from ms_recover.formats.header import read_header
from ms_recover.model.inventory import SliceFile
from ms_recover.model.slices import Parameter
from ms_recover.model.steps import Step
from ms_recover.scanning.notes import Notes
from ms_recover.storage.digest import digest_file
from ms_recover.storage.local import StoppedError

_Alike = tuple[int, Step, str | None, tuple[Parameter, ...]]
"""Rank, step, encryption and parameters by name: slices that differ in these cannot hold the same."""


def without_doubles(
    root: str, slices: Iterable[SliceFile], notes: Notes, stop: Callable[[], bool] | None = None
) -> list[SliceFile]:
    """Keep one of several sound slices of one rank and step that hold the same, one with a manifest if there is.

    The bytes of equal contents differ between formats, and MindSpore writes the metadata of safetensors files in any
    order. Slices that may be the same are read once each.

    Parameters
    ----------
    root : str
        The tree.
    slices : iterable of SliceFile
        As scanned.
    notes : Notes
        Takes a note for each slice that is left out.
    stop : callable, optional
        Asked now and then; true ends reading, and what is not read counts as different.
    """
    kept: list[SliceFile] = []
    groups: dict[_Alike, list[SliceFile]] = defaultdict(list)
    several = _several_of_one_step(slices)
    for file in sorted(slices, key=lambda file: (file.manifest is None, file.path)):
        if file.problem is not None or (file.rank, file.step) not in several:
            kept.append(file)
        else:
            parameters = tuple(sorted(file.parameters, key=attrgetter("name")))
            groups[(file.rank, file.step, file.encryption, parameters)].append(file)
    for group in groups.values():
        kept += group if len(group) == 1 else _without_doubles(root, group, notes, stop or (lambda: False))
    return kept


def _several_of_one_step(slices: Iterable[SliceFile]) -> set[tuple[int, Step]]:
    seen: set[tuple[int, Step]] = set()
    several: set[tuple[int, Step]] = set()
    for file in slices:
        key = (file.rank, file.step)
        (several if key in seen else seen).add(key)
    return several


def _without_doubles(root: str, group: list[SliceFile], notes: Notes, stop: Callable[[], bool]) -> list[SliceFile]:
    kept = []
    contents: dict[object, SliceFile] = {}
    for file in group:
        keys: list[tuple[str, object]] = [("bytes", file.inode)] if file.inode is not None else []
        if keys and keys[0] not in contents:
            keys += _digests(os.path.join(root, file.path), encrypted=file.encryption is not None, stop=stop)
        same = next((key for key in keys if key in contents), None)
        if same is None:
            kept.append(file)
            contents |= dict.fromkeys(keys, file)
        else:
            contents |= dict.fromkeys(keys, contents[same])
            notes.add(file.path, f"holds the same {same[0]} as {contents[same].path}", "double")
    return kept


def _digests(path: str, *, encrypted: bool, stop: Callable[[], bool]) -> list[tuple[str, object]]:
    """Return the keys under which a slice is the same as another: its bytes, then the contents of its parameters."""
    try:
        header = read_header(path)
        found = digest_file(path, header.contents, stop=stop)
    except (OSError, MsRecoverError, StoppedError):
        return []
    if encrypted:
        return [("bytes", found.file)]
    names = [parameter.name for parameter in header.parameters]
    return [("bytes", found.file), ("contents", tuple(sorted(zip(names, found.parameters, strict=True))))]
