"""What happens to slices in a tree: lost, mistaken for others, half saved, in the way, with manifests that are wrong.

Every kind is a function that strikes one slice of a tree of `ms_recover.testing.trees`. Contents are those of
`ms_recover.testing.damage`.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from ms_recover.execution.manifests import make_manifest
from ms_recover.formats.group_info import read_group_info, write_group_info
from ms_recover.formats.manifest import encode_manifest, read_manifest
from ms_recover.inventory.naming import TEMPORARY_SUFFIX
from ms_recover.model.manifest import DIGEST, MANIFEST_SUFFIX, Manifest
from ms_recover.model.steps import Step
from ms_recover.testing.damage import STRUCK, flip, noise
from ms_recover.testing.trees import record, slice_bytes, strategy_bytes

FOREIGN_SEED = 4711


class NotHereError(Exception):
    """A kind that cannot happen in this tree."""


@dataclass(frozen=True, slots=True)
class Victim:
    """The slice to strike, and its neighbours.

    Parameters
    ----------
    root : Path
        The tree.
    rank : int
        Whose slice.
    step : Step
        Of which step.
    older : Step
        A step before it, of which the tree has slices too.
    stranger : int
        A rank of another group; its slices are whole.
    peers : tuple of int
        The other ranks of the victim's group that have slices.
    """

    root: Path
    rank: int
    step: Step
    older: Step
    stranger: int
    peers: tuple[int, ...]

    def slice_of(self, rank: int, step: Step) -> Path:
        """Return the path of a slice."""
        return self.root / f"ckpt_dir{rank}" / f"test-{step}.ckpt"

    @property
    def path(self) -> Path:
        """Path of the slice to strike."""
        return self.slice_of(self.rank, self.step)

    @property
    def manifest(self) -> Path:
        """Path of its manifest.

        Raises
        ------
        NotHereError
            When the tree has no manifests.
        """
        path = manifest_of(self.path)
        if not path.exists():
            raise NotHereError
        return path

    @property
    def rank_list(self) -> Path:
        """Path of the rank list beside it."""
        return self.path.with_name("group_info.pb")

    @property
    def peer(self) -> int:
        """A rank of the same group that has its slice.

        Raises
        ------
        NotHereError
            When there is none.
        """
        if not self.peers:
            raise NotHereError
        return self.peers[0]


Mishap = Callable[[Victim], None]
"""Strikes a victim; raises `NotHereError` where it cannot happen."""

_NO_DIGEST = f"{DIGEST}:{'0' * 32}"


def manifest_of(path: Path) -> Path:
    """Return the path of a slice's manifest."""
    return path.with_name(path.name + MANIFEST_SUFFIX)


def overwrite(path: Path, data: bytes) -> None:
    """Change a file's bytes behind its back: inode, mode and times stay."""
    status = path.stat()
    path.chmod(0o600)
    path.write_bytes(data)
    path.chmod(status.st_mode & 0o7777)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def remake_manifest(path: Path, **changes: object) -> None:
    """Give a slice the manifest that saving it as it is now would have given it, but for `changes`.

    Does nothing where it has none.
    """
    sidecar = manifest_of(path)
    if not sidecar.exists():
        return
    old = read_manifest(sidecar)
    made = make_manifest(str(path), old.rank, old.step, old.world_size, old.group, old.run_id, origin=old.origin)
    sidecar.write_bytes(encode_manifest(replace(made, **changes)))  # type: ignore[arg-type]


def _edit_manifest(victim: Victim, change: Callable[[Manifest], Manifest]) -> None:
    victim.manifest.write_bytes(encode_manifest(change(read_manifest(victim.manifest))))


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


def _in_its_place(put: Mishap) -> Mishap:
    def strike(victim: Victim) -> None:
        victim.path.unlink()
        put(victim)

    return strike


def _instead(data: Callable[[], bytes]) -> Mishap:
    return lambda victim: overwrite(victim.path, data())


def _write(path: Path, data: bytes) -> None:
    path.write_bytes(data)


def _without_manifest(then: Mishap) -> Mishap:
    def strike(victim: Victim) -> None:
        victim.manifest.unlink()
        then(victim)

    return strike


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


def _half_saved(victim: Victim, length: int | None) -> None:
    """Leave what MindSpore leaves when it is killed while it saves again: it removes the old file first."""
    data = victim.path.read_bytes()
    victim.path.unlink()
    victim.path.with_suffix(".tmp").write_bytes(data[:length])


def _half_recovered(victim: Victim) -> None:
    data = victim.path.read_bytes()
    victim.path.unlink()
    victim.path.with_name(f".{victim.path.name}{TEMPORARY_SUFFIX}").write_bytes(data[:100])


def _renamed_newer(victim: Victim) -> None:
    newer = victim.slice_of(victim.rank, Step(victim.step.epoch + 1, victim.step.step))
    shutil.copy2(victim.slice_of(victim.rank, victim.older), newer)


LOSSES: Mapping[str, Mishap] = {
    "removed": lambda victim: victim.path.unlink(),
    "killed while saving again, .tmp begun": lambda victim: _half_saved(victim, 300),
    "killed while saving again, .tmp complete": lambda victim: _half_saved(victim, None),
    "killed while being recovered": _half_recovered,
    "a directory in its place": _in_its_place(lambda victim: victim.path.mkdir()),
    "a full directory in its place": _in_its_place(lambda victim: (victim.path / "inside").mkdir(parents=True)),
    "a link to nothing in its place": _in_its_place(lambda victim: victim.path.symlink_to("nowhere")),
    "a link to itself in its place": _in_its_place(lambda victim: victim.path.symlink_to(victim.path.name)),
    "a link to a device in its place": _in_its_place(lambda victim: victim.path.symlink_to("/dev/zero")),
    "a pipe in its place": _in_its_place(lambda victim: os.mkfifo(victim.path)),
}
"""Nothing that could be read is left under the slice's name."""

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
    "a link to another group's slice": _in_its_place(
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

MANIFEST_DAMAGE: Mapping[str, Mishap] = {
    "manifest removed": lambda victim: victim.manifest.unlink(),
    "manifest empty": lambda victim: _write(victim.manifest, b""),
    "manifest cut": lambda victim: _write(victim.manifest, victim.manifest.read_bytes()[:200]),
    "manifest garbage": lambda victim: _write(victim.manifest, noise(500)),
    "manifest of zeros": lambda victim: _write(victim.manifest, bytes(500)),
    "manifest of another version": lambda victim: _write(
        victim.manifest, json.dumps({**json.loads(victim.manifest.read_text()), "version": 2}).encode()
    ),
    "manifest of another group's rank": lambda victim: _edit_manifest(
        victim, lambda old: read_manifest(manifest_of(victim.slice_of(victim.stranger, victim.step)))
    ),
    "manifest of a peer": lambda victim: _edit_manifest(
        victim, lambda old: read_manifest(manifest_of(victim.slice_of(victim.peer, victim.step)))
    ),
    "manifest of another step": lambda victim: _edit_manifest(
        victim, lambda old: read_manifest(manifest_of(victim.slice_of(victim.rank, victim.older)))
    ),
    "manifest of another file": lambda victim: _edit_manifest(victim, lambda old: replace(old, file="other-2_8.ckpt")),
    "manifest of another run": lambda victim: _edit_manifest(victim, lambda old: replace(old, run_id="another-run")),
    "manifest of a larger world": lambda victim: _edit_manifest(victim, lambda old: replace(old, world_size=16)),
    "manifest with another group": lambda victim: _edit_manifest(
        victim, lambda old: replace(old, group=tuple(sorted((victim.rank, victim.stranger))))
    ),
    "manifest with another digest": lambda victim: _edit_manifest(
        victim, lambda old: replace(old, digests=replace(old.digests, file=_NO_DIGEST))
    ),
    "manifest with another size": lambda victim: _edit_manifest(victim, lambda old: replace(old, size=old.size + 1)),
    "manifest with another parameter": lambda victim: _edit_manifest(
        victim, lambda old: replace(old, parameters=(replace(old.parameters[0], name="x"), *old.parameters[1:]))
    ),
    "manifest of another layout": lambda victim: _edit_manifest(
        victim, lambda old: replace(old, strategy_digest=_NO_DIGEST)
    ),
    "manifest a directory": _without_manifest(lambda victim: manifest_of(victim.path).mkdir()),
    "manifest a link to nothing": _without_manifest(lambda victim: manifest_of(victim.path).symlink_to("nowhere")),
    "manifest a pipe": _without_manifest(lambda victim: os.mkfifo(manifest_of(victim.path))),
    "slice and manifest removed": _without_manifest(lambda victim: victim.path.unlink()),
    "a foreign run's contents, manifest removed": _without_manifest(
        lambda victim: overwrite(victim.path, slice_bytes(STRUCK, FOREIGN_SEED))
    ),
}
"""Wrong sidecars; only in trees that have manifests."""

RANK_LIST_DAMAGE: Mapping[str, Mishap] = {
    "rank list removed": lambda victim: victim.rank_list.unlink(),
    "rank list empty": lambda victim: _write(victim.rank_list, b""),
    "bit flip in the rank list": lambda victim: _write(
        victim.rank_list, flip(victim.rank_list.read_bytes(), victim.rank_list.stat().st_size - 1, 1)
    ),
    "rank list of another group": lambda victim: write_group_info(
        victim.rank_list, [victim.stranger, victim.stranger + 2]
    ),
    "rank list of one that is alone": lambda victim: write_group_info(victim.rank_list, [victim.rank]),
    "rank list with another group's rank": lambda victim: write_group_info(
        victim.rank_list, [victim.rank, victim.stranger]
    ),
}
"""What is wrong beside the slice."""
