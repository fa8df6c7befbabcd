"""Prefixes of slices, and the experiment of each slice: the prefix that its program gave.

A manifest states it. A name has to do where none does: MindSpore appends ``_N`` to the prefix of a rerun, in each
directory by itself, but a program may as well give a prefix that ends in a number, such as ``resnet_50``.

Source: ``_chg_ckpt_file_name_if_same_exist`` in ``mindspore/train/callback/_checkpoint.py`` of MindSpore 2.10.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Protocol

from ms_recover.file_names import NETWORK_MARK, TRAINABLE_MARK
from ms_recover.model.grouped import grouped
from ms_recover.model.inventory import SliceFile
from ms_recover.model.manifest import Manifest

_RERUN = re.compile(
    rf"(?P<base>.+?)(?:_(?P<again>\d{{1,9}}))?(?P<mark>{NETWORK_MARK}|{TRAINABLE_MARK})?\Z", re.ASCII | re.DOTALL
)


class Named(Protocol):
    """A slice, or what is left of one."""

    @property
    def rank(self) -> int:
        """Its rank."""

    @property
    def prefix(self) -> str:
        """The prefix in its name."""

    @property
    def manifest(self) -> Manifest | None:
        """Its manifest, None where it has none that can be read."""


@lru_cache(maxsize=256)
def base_of(prefix: str) -> str:
    """Return a prefix without the ``_N`` of a rerun, if this is one."""
    match = _RERUN.match(prefix)
    return f"{match['base']}{match['mark'] or ''}" if match else prefix


def rerun_of(prefix: str) -> int:
    """Return the ``N`` of a prefix that ends in ``_N``, 0 for another."""
    match = _RERUN.match(prefix)
    return int(match["again"] or 0) if match else 0


@dataclass(frozen=True, slots=True)
class Experiments:
    """The experiment of each slice of a tree.

    `bases` has that of each prefix, for the slices whose manifests do not state theirs.
    """

    bases: Mapping[str, str] = field(default_factory=dict)

    def of(self, file: Named) -> str:
        """Return the experiment of a slice."""
        manifest, prefix = file.manifest, file.prefix  # asked for some twenty times for each slice: no calls here
        if manifest is not None and manifest.training is not None and manifest.training.base_prefix is not None:
            return manifest.training.base_prefix
        found = self.bases.get(prefix)
        return base_of(prefix) if found is None else found

    def of_name(self, prefix: str) -> str:
        """Return the experiment that a prefix stands for, where no manifest states it."""
        found = self.bases.get(prefix)
        return base_of(prefix) if found is None else found

    def number_of(self, file: Named) -> int:
        """Return the number of the start that saved a slice, by its manifest or its name; 0 for the first."""
        training = file.manifest.training if file.manifest is not None else None
        if training is not None and training.start_number is not None:
            return training.start_number
        return 0 if self.of(file) == file.prefix else rerun_of(file.prefix)

    def split(self, files: Iterable[SliceFile]) -> list[list[SliceFile]]:
        """Return slices by their experiments."""
        return list(grouped(files, self.of).values())


NO_NAMES = Experiments()
"""Where nothing but names shows the experiments."""


def stated_base(manifest: Manifest | None) -> str | None:
    """Return the experiment that a manifest states."""
    return manifest.training.base_prefix if manifest is not None and manifest.training is not None else None


def find_experiments(files: Iterable[Named], given: Collection[str] = ()) -> Experiments:
    """Return the experiments of slices; `given` are prefixes that are those of experiments, by what somebody said.

    Where no manifest of a prefix states it, it is the prefix if other manifests state that. Otherwise ``_N`` counts a
    start if slices without the number lie beside those with it, some manifest states the prefix without it, or that of
    the slice names the run that it was resumed from. So too where ranks have different numbers, none has two of them,
    and there is no manifest at all.
    """
    stated: dict[str, set[str]] = defaultdict(set)
    ranks: dict[str, set[int]] = defaultdict(set)
    resumed: set[str] = set()
    bare: set[str] = set()
    for file in files:
        ranks[file.prefix].add(file.rank)
        if (base := stated_base(file.manifest)) is not None:
            stated[file.prefix].add(base)
        elif file.manifest is None or file.manifest.training is None:
            bare.add(file.prefix)
        elif file.manifest.training.resumed_from is not None:
            resumed.add(file.prefix)
    of_others = {base for names in stated.values() for base in names}
    # By manifests first; what these leave open is decided by the names that lie side by side.
    bases = {}
    numbered: dict[str, list[str]] = defaultdict(list)
    for prefix in ranks:
        base = base_of(prefix)
        if len(stated[prefix]) == 1:
            (bases[prefix],) = stated[prefix]
        else:
            said = prefix in of_others or (prefix in given and prefix not in bare)
            counts = base in ranks or base in of_others or prefix in resumed
            bases[prefix] = base if counts and not said else prefix
        if base != bases[prefix] == prefix and prefix in bare:
            numbered[base].append(prefix)
    # MindSpore counts the starts in each directory by itself: each rank has one number of a step that all saved.
    for base, prefixes in numbered.items():
        if len(prefixes) > 1 and sum(len(ranks[prefix]) for prefix in prefixes) == len(
            set().union(*(ranks[prefix] for prefix in prefixes))
        ):
            bases.update(dict.fromkeys(prefixes, base))
    return Experiments(bases)
