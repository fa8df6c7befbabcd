"""Trees of `tests.support.law_scenes` on the disk: slices, what lies beside them, and what struck them."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from random import Random

from ms_recover import api
from ms_recover.errors import MsRecoverError
from ms_recover.execution.manifests import make_manifest, write_manifest
from ms_recover.execution.rank_lists import write_group_info
from ms_recover.file_names import MANIFEST_SUFFIX
from ms_recover.formats.ckpt import parse_header
from ms_recover.formats.strategy import encode_strategy
from ms_recover.model.manifest import TrainingRecord
from ms_recover.model.options import PlanOptions
from ms_recover.model.provenance import SAVED
from ms_recover.model.steps import Step
from tests.support.law_scenes import MISSING, RIGHT, Fault, Scene

RUN, OTHER_RUN = "run-1", "run-2"


def path_of(rank: int, step: Step) -> str:
    """Return the path of a rank's slice below the root."""
    return f"ckpt_dir{rank}/test-{step}.ckpt"


@dataclass
class Tree:
    """A scene on the disk, with what was put where.

    Parameters
    ----------
    data : dict of (int, Step) to bytes
        What lies under the name of each slice.
    manifest : dict of (int, Step) to str
        Where a manifest lies beside it: "saved" or "sealed" where it names this rank, step and run and proves these
        bytes; "against" where it does not.
    proved : dict of (int, Step) to bytes
        The bytes that each of these manifests was written for.
    orphaned : set of (int, Step)
        Where a manifest lies and its slice is gone.
    folders : set of int
        Ranks whose directories hold strategy files and rank lists still, if they ever did.
    """

    root: Path
    scene: Scene
    data: dict[tuple[int, Step], bytes] = field(default_factory=dict)
    manifest: dict[tuple[int, Step], str] = field(default_factory=dict)
    proved: dict[tuple[int, Step], bytes] = field(default_factory=dict)
    orphaned: set[tuple[int, Step]] = field(default_factory=set)
    folders: set[int] = field(default_factory=set)

    def is_intact(self, rank: int, step: Step) -> bool:
        """Whether the slice holds the truth."""
        return self.data.get((rank, step)) == self.scene.job.slice(rank, step)

    @cached_property
    def contents(self) -> dict[tuple[int, Step], dict[str, bytes]]:
        """The parameters of each slice; none of one that cannot be read."""
        return {key: contents_of(data) for key, data in self.data.items()}


def contents_of(data: bytes) -> dict[str, bytes]:
    """Return the contents of a slice by parameter; empty where it cannot be read."""
    try:
        header = parse_header(lambda offset, length: data[offset : offset + length], len(data))
    except MsRecoverError:
        return {}
    if header.problems:
        return {}
    return {
        one.name: b"".join(data[part.start : part.end] for part in parts)
        for one, parts in zip(header.parameters, header.contents, strict=True)
    }


def make(scene: Scene, root: Path) -> Tree:
    """Write the tree of a scene."""
    tree = Tree(root=root, scene=scene)
    job = scene.job
    for rank in range(job.size):
        (root / f"ckpt_dir{rank}").mkdir(parents=True)
        tree.folders.add(rank)
        for step in job.steps:
            tree.data[rank, step] = job.slice(rank, step)
            (root / path_of(rank, step)).write_bytes(tree.data[rank, step])
    for fault in scene.faults:
        if fault.kind == "flipped before saving":
            _put(tree, fault.rank, fault.step, _flipped(tree.data[fault.rank, fault.step], fault.seed))
    if scene.known_when_saved:
        _write_evidence(tree, right=True)
    if scene.manifests.startswith("saved"):
        for rank, step in tree.data:
            _save_manifest(tree, rank, step)
    if scene.manifests.startswith("sealed") and scene.sealed_first:
        _seal(tree)
    _write_evidence(tree, right=False)
    if scene.manifests.startswith("sealed") and not scene.sealed_first:
        _seal(tree)
    if scene.manifests.endswith("on some"):
        for rank, step in list(tree.manifest):
            if rank in scene.without:
                del tree.manifest[rank, step]
                (root / (path_of(rank, step) + MANIFEST_SUFFIX)).unlink()
    for fault in scene.faults:
        if fault.rank in tree.folders:
            FAULT_KINDS[fault.kind](tree, fault)
    return tree


def _write_evidence(tree: Tree, *, right: bool) -> None:
    scene, job = tree.scene, tree.scene.job
    for rank in range(job.size):
        folder = tree.root / f"ckpt_dir{rank}"
        has = RIGHT if right else scene.has("strategies", rank)
        (folder / "strategy.ckpt").unlink(missing_ok=True)
        if has is not None:
            stage = job.stage(rank)
            strategy = job.strategy(stage) if has == RIGHT else scene.foreign[stage]
            (folder / "strategy.ckpt").write_bytes(encode_strategy(strategy))
        has = RIGHT if right else scene.has("lists", rank)
        (folder / "group_info.pb").unlink(missing_ok=True)
        if has is not None:
            groups = job.groups if has == RIGHT else scene.foreign_groups
            write_group_info(folder / "group_info.pb", list(groups[rank]))


def _save_manifest(tree: Tree, rank: int, step: Step, run: str = RUN) -> None:
    job, path = tree.scene.job, tree.root / path_of(rank, step)
    listed = tree.scene.known_when_saved or tree.scene.lists != MISSING
    group = job.groups[rank] if listed else (rank,)
    manifest = replace(make_manifest(str(path), rank, step, job.size, group, run), provenance=SAVED)
    own = tuple(one.name for one in job.of_rank(rank) if one.own)
    if own:
        manifest = replace(manifest, training=TrainingRecord(started=None, rank_local=own))
    write_manifest(str(path), manifest)
    tree.manifest[rank, step] = "saved" if run == RUN else "another run"
    tree.proved[rank, step] = tree.data[rank, step]


def _seal(tree: Tree) -> None:
    try:
        sealed, _ = api.seal(api.scan(tree.root), PlanOptions(world_size=tree.scene.job.size))
    except MsRecoverError:
        return
    for rank, step in tree.data:
        if path_of(rank, step) in sealed:
            tree.manifest[rank, step] = "sealed"
            tree.proved[rank, step] = tree.data[rank, step]


def _put(tree: Tree, rank: int, step: Step, data: bytes) -> None:
    """Replace the bytes of a slice; what its manifest says of them is against them then."""
    (tree.root / path_of(rank, step)).write_bytes(data)
    if (rank, step) in tree.manifest and data != tree.data.get((rank, step)):
        tree.manifest[rank, step] = "against"
    tree.data[rank, step] = data


def _flipped(data: bytes, seed: int, names: tuple[str, ...] = ()) -> bytes:
    """Flip a bit in the contents of a parameter."""
    source = Random(seed)
    header = parse_header(lambda offset, length: data[offset : offset + length], len(data))
    parts = [
        part
        for one, ranges in zip(header.parameters, header.contents, strict=True)
        for part in ranges
        if not names or one.name in names
    ]
    if not parts:
        return data
    part = source.choice(parts)
    changed = bytearray(data)
    changed[source.randrange(part.start, part.end)] ^= 1 << source.randrange(8)
    return bytes(changed)


def _lose(tree: Tree, rank: int, step: Step, *, manifest: bool) -> None:
    path = tree.root / path_of(rank, step)
    path.unlink(missing_ok=True)
    tree.data.pop((rank, step), None)
    if manifest:
        Path(f"{path}{MANIFEST_SUFFIX}").unlink(missing_ok=True)
        tree.orphaned.discard((rank, step))
    elif (rank, step) in tree.manifest:
        tree.orphaned.add((rank, step))
    tree.manifest.pop((rank, step), None)


def _lost_directory(tree: Tree, fault: Fault) -> None:
    shutil.rmtree(tree.root / f"ckpt_dir{fault.rank}")
    tree.folders.discard(fault.rank)
    for step in tree.scene.job.steps:
        _lose(tree, fault.rank, step, manifest=True)


def _emptied(tree: Tree, fault: Fault) -> None:
    _lost_directory(tree, fault)
    (tree.root / f"ckpt_dir{fault.rank}").mkdir()


def _strike(change: Callable[[Tree, Fault, bytes], bytes]) -> Callable[[Tree, Fault], None]:
    def strike(tree: Tree, fault: Fault) -> None:
        data = tree.data.get((fault.rank, fault.step))
        if data is not None and contents_of(data):
            _put(tree, fault.rank, fault.step, change(tree, fault, data))

    return strike


def _cut(tree: Tree, fault: Fault, data: bytes) -> bytes:
    header = parse_header(lambda offset, length: data[offset : offset + length], len(data))
    ends = [0, *(parts[-1].end for parts in header.contents)][:-1]
    source = Random(fault.seed)
    return data[: source.choice(ends) if source.random() < 0.5 else source.randrange(len(data))]


def _stale(tree: Tree, fault: Fault, data: bytes) -> bytes:
    earlier = [step for step in tree.scene.job.steps if step < fault.step]
    return tree.scene.job.slice(fault.rank, earlier[-1]) if earlier else data


def _misplaced(tree: Tree, fault: Fault, data: bytes) -> bytes:
    return tree.scene.job.slice(fault.other, fault.step)


def _another_run(tree: Tree, fault: Fault) -> None:
    job, path = tree.scene.job, tree.root / path_of(fault.rank, fault.step)
    if not path.exists():
        return
    other = replace(job, seed=f"{job.seed} another run", _bytes={})
    _put(tree, fault.rank, fault.step, other.slice(fault.rank, fault.step))
    if fault.seed % 2:
        _save_manifest(tree, fault.rank, fault.step, OTHER_RUN)


FAULT_KINDS: Mapping[str, Callable[[Tree, Fault], None]] = {
    "lost directory": _lost_directory,
    "lost slice": lambda tree, fault: _lose(tree, fault.rank, fault.step, manifest=bool(fault.seed % 2)),
    "flip": _strike(lambda tree, fault, data: _flipped(data, fault.seed, fault.names)),
    "one counter": _strike(lambda tree, fault, data: _flipped(data, fault.seed, ("global_step", "beta1_power"))),
    "cut": _strike(_cut),
    "stale": _strike(_stale),
    "misplaced": _strike(_misplaced),
    "another run": _another_run,
    "emptied": _emptied,
    "flipped before saving": lambda tree, fault: None,
}
