"""The slices in a rank's directory, of whatever program: each with its manifest, and with the experiment it is of.

The manifest states the experiment and the number of the start; where a kill left none, the state file that a saver
wrote before does. Names are asked only where there is neither, see `ms_recover.planning.tree.prefixes`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace

from ms_recover.errors import MsRecoverError
from ms_recover.execution.save_slice import withdraw
from ms_recover.execution.state_files import read_claim
from ms_recover.file_names import BESIDE_SLICE, MANIFEST_SUFFIX, STATE_SUFFIX, SUPERSEDED_SUFFIX
from ms_recover.formats.manifest import read_manifest
from ms_recover.model.state import SliceClaim
from ms_recover.model.steps import Step
from ms_recover.planning.tree.lineage import RunRecord
from ms_recover.scanning.naming import name_before, read_file_name
from ms_recover.training.deciding.held_slice import HeldSlice
from ms_recover.training.deciding.rotation import NOTHING_EARLIER, Earlier, Keeping, choose_gone, earlier_of, newer_of


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


def find_earlier(folder: str, base: str, prefix: str, run: RunRecord, rank: int = 0) -> Earlier:
    """Return the slices that the runs which the present one goes on from left in a directory, as far as claimed.

    `base` is the prefix that the program gave, `prefix` that of the present start. None count where the present run
    has no start: nothing orders them.
    """
    return earlier_of(read_folder(folder, but_not=prefix), base, run, rank)


def find_newer(folder: str, base: str, prefix: str, run: RunRecord, begun: Step) -> list[HeldSlice]:
    """Return the experiment's slices in place that are newer than the beginning of a run, and of none it goes on from.

    Those of other experiments are none of them, whatever their names.
    """
    return newer_of(read_folder(folder, but_not=prefix), base, run, begun)


def rotate(
    mine: Iterable[HeldSlice], savers: Sequence[Keeping], floor: Step, earlier: Earlier = NOTHING_EARLIER, runs: int = 1
) -> list[HeldSlice]:
    """Remove the slices that no saver keeps, each together with its manifest; return them, newest first.

    The slice of `floor`, the newest step that every rank has committed, and newer ones stay, because a recovery goes
    back to it. See `choose_gone`. What changed since it was read stays.
    """
    there = {one.path for one in earlier.all}
    gone = choose_gone(mine, savers, floor, earlier, runs)
    gone = [one for one in gone if one.path not in there or read_again(one) == one]
    if gone:
        withdraw([one.path for one in gone])
    return gone
