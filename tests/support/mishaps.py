"""What happens to slices in a tree: lost, half saved, in the way, with manifests or rank lists that are wrong.

Every kind is a function that strikes one slice of a tree of `ms_recover.testing.trees`. Contents are those of
`tests.support.damage`; files that are whole but not this slice are in `tests.support.mistakes`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from ms_recover.execution.manifests import make_manifest
from ms_recover.execution.rank_lists import write_group_info
from ms_recover.file_names import MANIFEST_SUFFIX, TEMPORARY_SUFFIX
from ms_recover.formats.manifest import encode_manifest, read_manifest
from ms_recover.model.manifest import DIGEST, Manifest
from ms_recover.model.steps import Step
from ms_recover.testing.trees import slice_bytes
from tests.support.damage import STRUCK, flip, noise

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
    made = replace(
        make_manifest(str(path), old.rank, old.step, old.world_size, old.group, old.run_id), provenance=old.provenance
    )
    sidecar.write_bytes(encode_manifest(replace(made, **changes)))  # type: ignore[arg-type]


def _edit_manifest(victim: Victim, change: Callable[[Manifest], Manifest]) -> None:
    victim.manifest.write_bytes(encode_manifest(change(read_manifest(victim.manifest))))


def in_its_place(put: Mishap) -> Mishap:
    """Remove the slice and put something else under its name."""

    def strike(victim: Victim) -> None:
        victim.path.unlink()
        put(victim)

    return strike


def _write(path: Path, data: bytes) -> None:
    path.write_bytes(data)


def _without_manifest(then: Mishap) -> Mishap:
    def strike(victim: Victim) -> None:
        victim.manifest.unlink()
        then(victim)

    return strike


def _half_saved(victim: Victim, length: int | None) -> None:
    """Leave what MindSpore leaves when it is killed while it saves again: it removes the old file first."""
    data = victim.path.read_bytes()
    victim.path.unlink()
    victim.path.with_suffix(".tmp").write_bytes(data[:length])


def _half_recovered(victim: Victim) -> None:
    data = victim.path.read_bytes()
    victim.path.unlink()
    victim.path.with_name(f".{victim.path.name}{TEMPORARY_SUFFIX}").write_bytes(data[:100])


LOSSES: Mapping[str, Mishap] = {
    "removed": lambda victim: victim.path.unlink(),
    "killed while saving again, .tmp begun": lambda victim: _half_saved(victim, 300),
    "killed while saving again, .tmp complete": lambda victim: _half_saved(victim, None),
    "killed while being recovered": _half_recovered,
    "a directory in its place": in_its_place(lambda victim: victim.path.mkdir()),
    "a full directory in its place": in_its_place(lambda victim: (victim.path / "inside").mkdir(parents=True)),
    "a link to nothing in its place": in_its_place(lambda victim: victim.path.symlink_to("nowhere")),
    "a link to itself in its place": in_its_place(lambda victim: victim.path.symlink_to(victim.path.name)),
    "a link to a device in its place": in_its_place(lambda victim: victim.path.symlink_to("/dev/zero")),
    "a pipe in its place": in_its_place(lambda victim: os.mkfifo(victim.path)),
}
"""Nothing that could be read is left under the slice's name."""

MANIFEST_DAMAGE: Mapping[str, Mishap] = {
    "manifest removed": lambda victim: victim.manifest.unlink(),
    "manifest empty": lambda victim: _write(victim.manifest, b""),
    "manifest cut": lambda victim: _write(victim.manifest, victim.manifest.read_bytes()[:200]),
    "manifest garbage": lambda victim: _write(victim.manifest, noise(500)),
    "manifest of zeros": lambda victim: _write(victim.manifest, bytes(500)),
    "manifest of another version": lambda victim: _write(
        victim.manifest, json.dumps({**json.loads(victim.manifest.read_text()), "version": 3}).encode()
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
