"""Random trees of `tests.support.law_network`: their evidence, right or not, and the faults that struck them."""

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
from ms_recover.model.options import DEFAULT_PLAN, PlanOptions
from ms_recover.model.provenance import SAVED
from ms_recover.model.steps import Step
from ms_recover.model.strategy import Layout, Strategy
from tests.support.law_network import Job, random_job

RIGHT, MISSING, SOME, OTHER_JOB, OTHER_SIZE, MIXED = "right", "missing", "some", "other job", "other size", "mixed"
STRATEGIES = (RIGHT,) * 5 + (MISSING,) * 2 + (SOME,) * 2 + (OTHER_JOB,) * 3 + (OTHER_SIZE, MIXED)
LISTS = (RIGHT,) * 6 + (MISSING,) * 3 + (SOME,) * 2 + (OTHER_JOB, OTHER_SIZE, MIXED)
MANIFESTS = ("saved",) * 4 + ("none",) * 4 + ("sealed",) * 2 + ("saved on some", "sealed on some")
FAULTS = (
    ("lost directory",) * 6
    + ("lost slice",) * 3
    + ("flip",) * 4
    + ("cut", "stale", "misplaced", "another run", "emptied", "flipped before saving", "one counter")
)
RUN, OTHER_RUN = "run-1", "run-2"


def path_of(rank: int, step: Step) -> str:
    """Return the path of a rank's slice below the root."""
    return f"ckpt_dir{rank}/test-{step}.ckpt"


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One thing that struck a slice, or a rank's directory."""

    kind: str
    rank: int
    step: Step
    other: int = 0
    seed: int = 0
    names: tuple[str, ...] = ()
    """Parameters one of which a flip strikes; empty for any."""


@dataclass(frozen=True, kw_only=True)
class Scene:
    """A tree before it is written: a job, what lies beside its slices, what struck it, and the operator's options.

    Parameters
    ----------
    job : Job
        The truth.
    strategies, lists, manifests : str
        What lies in the tree of each.
    foreign : dict of int to Strategy
        Strategy files of another job or size, by stage.
    foreign_groups : dict of int to tuple of int
        Rank lists of another job or size.
    without : frozenset of int
        Ranks that have none of what lies on some ranks only, or the wrong one where right and wrong are mixed.
    known_when_saved : bool
        Strategy files and rank lists were right when training saved.
    sealed_first : bool
        The tree was sealed before what lies there was replaced.
    faults : tuple of Fault
        In the order in which they struck.
    options : PlanOptions
        Of every verb.
    """

    job: Job
    faults: tuple[Fault, ...]
    strategies: str = RIGHT
    lists: str = RIGHT
    manifests: str = "none"
    foreign: Mapping[int, Strategy] = field(default_factory=dict)
    foreign_groups: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    without: frozenset[int] = frozenset()
    known_when_saved: bool = True
    sealed_first: bool = False
    options: PlanOptions = DEFAULT_PLAN
    seed: int = 0

    @property
    def strategies_right(self) -> bool:
        """Whether no strategy file in the tree is wrong."""
        return self.strategies in (RIGHT, MISSING, SOME)

    @property
    def lists_right(self) -> bool:
        """Whether no rank list in the tree is wrong."""
        return self.lists in (RIGHT, MISSING, SOME)

    def has(self, what: str, rank: int) -> str | None:
        """Return whether the ``strategies`` or ``lists`` beside a rank's slices are right or wrong; None without."""
        kind = self.strategies if what == "strategies" else self.lists
        if kind == MISSING or (kind == SOME and rank in self.without):
            return None
        wrong = kind in (OTHER_JOB, OTHER_SIZE) or (kind == MIXED and rank in self.without)
        return "wrong" if wrong else RIGHT


def random_scene(seed: int) -> Scene:
    """Return the scene of a seed."""
    source = Random(f"law {seed}")
    job = random_job(source, f"law {seed}")
    ranks = range(job.size)
    strategies, lists = source.choice(STRATEGIES), source.choice(LISTS)
    if source.random() < 0.6:  # most trees have one thing wrong
        strategies, lists = (strategies, RIGHT) if source.random() < 0.5 else (RIGHT, lists)
    without = frozenset(rank for rank in ranks if source.random() < 0.4)
    faults = tuple(_fault(source, job) for _ in range(source.choice((1, 1, 1, 2, 2, 3, 4, 5))))
    lost = frozenset([source.choice([one.rank for one in faults] + list(ranks))]) if source.random() < 0.12 else ()
    options = PlanOptions(
        quick=source.random() < 0.15,
        newest=source.random() < 0.05,
        lost=frozenset(lost),
        world_size=job.size if source.random() < 0.7 else None,
    )
    return Scene(
        seed=seed,
        job=job,
        strategies=strategies,
        lists=lists,
        manifests=source.choice(MANIFESTS),
        foreign=_foreign_strategies(source, job, strategies),
        foreign_groups=_foreign_groups(source, job, lists),
        without=without,
        known_when_saved=source.random() < 0.7,
        sealed_first=source.random() < 0.5,
        faults=faults,
        options=options,
    )


def _fault(source: Random, job: Job) -> Fault:
    rank = source.randrange(job.size)
    others = [one for one in range(job.size) if one != rank]
    step = job.steps[-1] if source.random() < 0.7 else source.choice(job.steps)
    return Fault(
        kind=source.choice(FAULTS), rank=rank, step=step, other=source.choice(others), seed=source.randrange(1 << 30)
    )


def _foreign_strategies(source: Random, job: Job, kind: str) -> dict[int, Strategy]:
    """Return the strategy files of a job that has the same names and is cut otherwise."""
    if kind == OTHER_SIZE:
        matrix = source.choice(((job.data * 2, job.model), (job.data, job.model * 2), (job.data * job.model * 2,)))
        change: Callable[[Layout], Layout] = lambda one: replace(  # noqa: E731
            one, device_matrix=matrix, tensor_map=((0,), ()), opt_shard_size=0, opt_shard_step=0
        )
    else:
        change = source.choice((uncut, cut_over_data, turned))
    alone = source.random() < 0.3 and kind != OTHER_SIZE
    found = {}
    for stage in range(job.stages):
        right = job.strategy(stage)
        chosen = source.choice(right.layouts).parameter
        layouts = tuple(change(one) if not alone or one.parameter == chosen else one for one in right.layouts)
        found[stage] = replace(right, layouts=layouts)
    return found


def uncut(layout: Layout) -> Layout:
    return replace(layout, tensor_map=((), ()), opt_shard_size=0, opt_shard_step=0)


def cut_over_data(layout: Layout) -> Layout:
    return replace(layout, tensor_map=((1,), ()), opt_shard_size=0, opt_shard_step=0)


def turned(layout: Layout) -> Layout:
    return replace(layout, device_matrix=layout.device_matrix[::-1], opt_shard_size=0, opt_shard_step=0)


def _foreign_groups(source: Random, job: Job, kind: str) -> dict[int, tuple[int, ...]]:
    size = job.size * 2 if kind == OTHER_SIZE else job.size
    count = source.choice([one for one in range(1, size + 1) if size % one == 0])
    if source.random() < 0.5:
        return {rank: tuple(range(rank // count * count, rank // count * count + count)) for rank in range(job.size)}
    return {rank: tuple(range(rank % count, size, count)) for rank in range(job.size)}


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
    folders : set of int
        Ranks whose directories hold strategy files and rank lists still, if they ever did.
    """

    root: Path
    scene: Scene
    data: dict[tuple[int, Step], bytes] = field(default_factory=dict)
    manifest: dict[tuple[int, Step], str] = field(default_factory=dict)
    proved: dict[tuple[int, Step], bytes] = field(default_factory=dict)
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
    manifest = make_manifest(str(path), rank, step, job.size, group, run, provenance=SAVED)
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
    tree.manifest.pop((rank, step), None)


def _lost_directory(tree: Tree, fault: Fault) -> None:
    shutil.rmtree(tree.root / f"ckpt_dir{fault.rank}")
    tree.folders.discard(fault.rank)
    for step in tree.scene.job.steps:
        _lose(tree, fault.rank, step, manifest=False)


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
