"""The slices in the directory of a rank, as nouns: whose they are, and how the next start names its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

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
        return name_before(self.path.rpartition("/")[2])


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
