"""Files that are whole, but not the slice whose name they bear: of another step, group, run, layout or network.

Every kind is a function that strikes one slice of a tree of `ms_recover.testing.trees`, as in
`tests.support.mishaps`.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from ms_recover.formats.group_info import read_group_info
from ms_recover.formats.manifest import read_manifest
from ms_recover.model.steps import Step
from ms_recover.testing.trees import record, slice_bytes
from tests.support.damage import STRUCK, noise, strategy_bytes
from tests.support.mishaps import (
    FOREIGN_SEED,
    Mishap,
    NotHereError,
    Victim,
    in_its_place,
    manifest_of,
    overwrite,
    remake_manifest,
)


def _copy(source: Path, target: Path, *, with_manifest: bool = False, move: bool = False) -> None:
    names = [(source, target)]
    if with_manifest:
        if not manifest_of(source).exists():
            raise NotHereError
        names.append((manifest_of(source), manifest_of(target)))
    for one, other in names:
        if move:
            one.replace(other)
        else:
            other.unlink()
            shutil.copy2(one, other)


def _swap(one: Path, other: Path, *, with_manifest: bool = False) -> None:
    if with_manifest:
        if not manifest_of(one).exists():
            raise NotHereError
        _swap(manifest_of(one), manifest_of(other))
    aside = one.with_name("aside")
    one.rename(aside)
    other.rename(one)
    aside.rename(other)


def _instead(data: Callable[[], bytes]) -> Mishap:
    return lambda victim: overwrite(victim.path, data())


def _torn(victim: Victim) -> None:
    new, old = victim.path.read_bytes(), victim.slice_of(victim.rank, victim.older).read_bytes()
    overwrite(victim.path, new[: len(new) // 2] + old[len(new) // 2 :])


def _foreign(victim: Victim, *, parameters: Mapping[str, int] = STRUCK, **changes: object) -> None:
    overwrite(victim.path, slice_bytes(parameters, FOREIGN_SEED))
    remake_manifest(victim.path, **changes)


def _foreign_beside(victim: Victim, name: bytes, *, run_id: str = "") -> None:
    other = victim.path.with_name(os.fsdecode(name))
    other.write_bytes(slice_bytes(STRUCK, FOREIGN_SEED))
    if run_id:
        shutil.copy(victim.manifest, manifest_of(other))
        remake_manifest(other, run_id=run_id)


def _another_layout(victim: Victim) -> None:
    sidecar = manifest_of(victim.path)
    run_id = "another-run" if sidecar.exists() and read_manifest(sidecar).run_id else ""
    strategy = victim.path.with_name("strategy.ckpt")
    theirs = strategy.read_bytes()
    strategy.write_bytes(strategy_bytes([1, 4], STRUCK))
    try:
        _foreign(victim, run_id=run_id)
    finally:
        strategy.write_bytes(theirs)


def _deduplicated(victim: Victim) -> None:
    """Save the parameters of a group in turn, as ``remove_redundancy=True`` does, in all groups."""
    for folder in sorted(path.parent for path in victim.root.glob(f"*/{victim.path.name}")):
        group = sorted(read_group_info(folder / victim.rank_list.name).restore_ranks)
        place = group.index(int(folder.name.removeprefix("ckpt_dir")))
        kept = {name: STRUCK[name] for i, name in enumerate(sorted(STRUCK)) if i % len(group) == place}
        overwrite(folder / victim.path.name, slice_bytes(kept, FOREIGN_SEED + min(group)))
        remake_manifest(folder / victim.path.name)


def _deduplicated_alone(victim: Victim) -> None:
    kept = {name: count for i, (name, count) in enumerate(sorted(STRUCK.items())) if i % 2}
    overwrite(victim.path, slice_bytes(kept, FOREIGN_SEED))


def _renamed_newer(victim: Victim) -> None:
    newer = victim.slice_of(victim.rank, Step(victim.step.epoch + 1, victim.step.step))
    shutil.copy2(victim.slice_of(victim.rank, victim.older), newer)


MISTAKES: Mapping[str, Mishap] = {
    "torn between two steps": _torn,
    "an older step's slice": lambda victim: _copy(victim.slice_of(victim.rank, victim.older), victim.path),
    "an older step's slice, renamed": lambda victim: _copy(
        victim.slice_of(victim.rank, victim.older), victim.path, move=True
    ),
    "an older step's slice, renamed with its manifest": lambda victim: _copy(
        victim.slice_of(victim.rank, victim.older), victim.path, with_manifest=True, move=True
    ),
    "an older step's slice under a newer step's name": _renamed_newer,
    "exchanged with its own older step's": lambda victim: _swap(
        victim.path, victim.slice_of(victim.rank, victim.older)
    ),
    "another group's slice": lambda victim: _copy(victim.slice_of(victim.stranger, victim.step), victim.path),
    "another group's slice with its manifest": lambda victim: _copy(
        victim.slice_of(victim.stranger, victim.step), victim.path, with_manifest=True
    ),
    "another group's older slice": lambda victim: _copy(victim.slice_of(victim.stranger, victim.older), victim.path),
    "a link to another group's slice": in_its_place(
        lambda victim: victim.path.symlink_to(victim.slice_of(victim.stranger, victim.step))
    ),
    "exchanged with another group's": lambda victim: _swap(victim.path, victim.slice_of(victim.stranger, victim.step)),
    "exchanged with another group's, manifests too": lambda victim: _swap(
        victim.path, victim.slice_of(victim.stranger, victim.step), with_manifest=True
    ),
    "exchanged with a peer's": lambda victim: _swap(victim.path, victim.slice_of(victim.peer, victim.step)),
    "exchanged with a peer's, manifests too": lambda victim: _swap(
        victim.path, victim.slice_of(victim.peer, victim.step), with_manifest=True
    ),
    "a foreign run's contents": _instead(lambda: slice_bytes(STRUCK, FOREIGN_SEED)),
    "a foreign run's slice": lambda victim: _foreign(victim, run_id="another-run"),
    "a foreign run's slice of a larger world": lambda victim: _foreign(
        victim,
        parameters={name: max(1, count // 2) for name, count in STRUCK.items()},
        run_id="another-run",
        world_size=8,
        group=tuple(range(victim.rank % 2, 8, 2)),
    ),
    "a slice of another layout": _another_layout,
    "a foreign run's slice beside it": lambda victim: _foreign_beside(
        victim, b"test_1-%d_%d.ckpt" % (victim.step.epoch, victim.step.step)
    ),
    "a foreign slice beside it, its name not UTF-8": lambda victim: _foreign_beside(
        victim, b"t\xff\xfe-%d_%d.ckpt" % (victim.step.epoch, victim.step.step)
    ),
    "a foreign run's slice with its manifest beside it": lambda victim: _foreign_beside(
        victim, b"test_1-%d_%d.ckpt" % (victim.step.epoch, victim.step.step), run_id="another-run"
    ),
    "deduplicated alone": _deduplicated_alone,
    "deduplicated with everybody": _deduplicated,
    "another network's slice": _instead(lambda: record("fc.weight", noise(256), (8, 8))),
    "a rank list": lambda victim: overwrite(victim.path, victim.rank_list.read_bytes()),
    "a strategy file": _instead(lambda: strategy_bytes([2, 2], STRUCK)),
    "a foreign run's slice of another network": lambda victim: _foreign(
        victim, parameters={"fc.weight": 64, "fc.bias": 8, "global_step": 1}, run_id="another-run"
    ),
    "an encrypted slice cut short": _instead(lambda: b"\xd8\x5e\x3a\x7f" + noise(600)),
}
"""A file that is whole, but not this slice."""
