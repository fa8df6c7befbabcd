"""The slices in a rank's directory, of whatever program: each with its manifest, and with the experiment it is of.

The manifest states the experiment and the number of the start; where a kill left none, the state file that a saver
wrote before does. Names are asked only where there is neither, see `ms_recover.planning.tree.prefixes`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

from ms_recover.errors import MsRecoverError
from ms_recover.execution.state_files import read_claim
from ms_recover.file_names import BESIDE_SLICE, MANIFEST_SUFFIX, STATE_SUFFIX, SUPERSEDED_SUFFIX
from ms_recover.formats.manifest import read_manifest
from ms_recover.model.manifest import Manifest
from ms_recover.model.state import SliceClaim
from ms_recover.model.steps import Step
from ms_recover.planning.tree.lineage import identity_of
from ms_recover.planning.tree.prefixes import find_experiments
from ms_recover.scanning.naming import name_before, read_file_name
from ms_recover.training.deciding.experiment import experiment_of, start_of


@dataclass(frozen=True, slots=True)
class HeldSlice:
    """A slice in the directory of a rank, in place or set aside, or what a kill left of one."""

    path: str
    prefix: str
    step: Step
    aside: bool = False
    manifest: Manifest | None = None
    """Of slices that an earlier run saved, where one can be read."""
    claim: SliceClaim | None = None
    """What its state file claims, of one without a manifest."""
    is_there: bool = True
    """Whether the slice itself is; a kill may have left what lies beside it alone."""

    @property
    def run(self) -> tuple[str, int | None]:
        """The id and the start of the run that saved it."""
        if self.manifest is None and self.claim is not None:
            return self.claim.run_id, self.claim.started
        return identity_of(self.manifest)

    @property
    def rank(self) -> int:
        """The same for all slices of a directory."""
        return 0

    @property
    def file(self) -> str:
        """The name that it had before it was set aside."""
        return name_before(os.path.basename(self.path))


def held_slice(folder: str, name: str) -> HeldSlice | None:
    """Return the slice of a name, None where it is the name of none; its manifest is not read."""
    named = read_file_name(name)
    if named is None or (named.rest and not (name.endswith(SUPERSEDED_SUFFIX) and name_before(name) == named.slice)):
        return None
    return HeldSlice(os.path.join(folder, name), named.prefix, named.step, bool(named.rest))


def read_folder(folder: str, but_not: str | None = None) -> tuple[HeldSlice, ...]:
    """Return the slices in a directory with their manifests or claims, except those of one prefix, by name.

    What a kill left is among them: a slice without a manifest, or a manifest or state file without a slice. An OSError
    says that the directory cannot be read.
    """
    names = set(os.listdir(folder))
    beside = {name.removesuffix(end) for end in BESIDE_SLICE for name in names if name.endswith(end)}
    slices = [one for name in sorted(names | beside) if (one := held_slice(folder, name)) is not None]
    return tuple(_described(one, names) for one in slices if one.prefix != but_not)


def _described(one: HeldSlice, names: set[str]) -> HeldSlice:
    name = os.path.basename(one.path)
    one = replace(one, is_there=name in names)
    with suppress(MsRecoverError):
        if name + MANIFEST_SUFFIX in names:
            return replace(one, manifest=read_manifest(one.path + MANIFEST_SUFFIX))
        if name + STATE_SUFFIX in names:
            return replace(one, claim=read_claim(one.path))
    return one


def read_again(one: HeldSlice) -> HeldSlice:
    """Return a slice with its manifest or claim as they are now."""
    bare = replace(one, manifest=None, claim=None)
    ends = ("", *BESIDE_SLICE)
    names = {os.path.basename(one.path) + end for end in ends if os.path.lexists(one.path + end)}
    return _described(bare, names)


def claim_beside(path: str) -> SliceClaim | None:
    """Return what the state file beside a slice without a manifest claims, None where there is none to read."""
    if os.path.lexists(path + STATE_SUFFIX):
        with suppress(MsRecoverError):
            return read_claim(path)
    return None


def find_held_experiments(held: Iterable[HeldSlice]) -> Mapping[str, str]:
    """Return the experiment of each slice, by its path."""
    listed = tuple(held)
    names = find_experiments(listed)
    return {one.path: one.claim.base_prefix if one.claim is not None else names.of(one) for one in listed}


@dataclass(frozen=True, slots=True)
class Held:
    """The slices in a directory, and what is one program's.

    `base` is the prefix that the program gave.
    """

    slices: tuple[HeldSlice, ...]
    base: str

    @property
    def own(self) -> tuple[HeldSlice, ...]:
        """The slices of the experiment, as manifests, claims or names have it."""
        experiments, own = find_held_experiments(self.slices), {self.base, experiment_of(self.base)}
        return tuple(one for one in self.slices if experiments[one.path] in own)

    def next_start(self, names: Iterable[str]) -> int:
        """Return the number of the next start: behind those of all starts before, and with a prefix that is free.

        `names` are those of all files in the directory. Slices that were set aside count, so that they can be brought
        back.
        """
        numbers = [number for one in self.own if (number := _number(one, self.base)) is not None]
        used = {named.prefix for name in names if (named := read_file_name(name)) is not None}
        number = max(numbers, default=-1) + 1
        while prefix_of(self.base, number) in used:
            number += 1
        return number


def _number(one: HeldSlice, base: str) -> int | None:
    training = one.manifest.training if one.manifest is not None else None
    stated = training.start_number if training is not None else None
    return start_of(one.prefix, base) if stated is None else stated


def prefix_of(base: str, number: int) -> str:
    """Return the prefix of a start, as ``ModelCheckpoint`` names it: with ``_N`` behind it from the second one."""
    return f"{base}_{number}" if number else base
