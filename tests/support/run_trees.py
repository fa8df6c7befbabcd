"""Small trees that several runs saved into, and options for them, all from one number."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any, Literal

from ms_recover.execution.manifests import make_manifest, write_manifest
from ms_recover.execution.rank_lists import write_group_info
from ms_recover.file_names import MANIFEST_SUFFIX
from ms_recover.formats.strategy import encode_strategy
from ms_recover.model.inventory import SliceFile
from ms_recover.model.manifest import RunStep, TrainingRecord
from ms_recover.model.options import PlanOptions
from ms_recover.model.provenance import SAVED
from ms_recover.model.steps import Step
from ms_recover.model.strategy import Layout, Strategy
from ms_recover.scanning.scan import scan
from ms_recover.testing.trees import PARAMETERS, slice_bytes
from tests.support.iterations import Job, write_job
from tests.support.mindformers_tree import write_health

COUNTER = "global_step"
HOUR = 3_600_000


@dataclass(frozen=True, kw_only=True)
class SavedRun:
    """A run, the step of another one that it was resumed from, and the numbers of the steps that it saved."""

    name: str
    started: int
    steps: tuple[int, ...]
    resumed_from: tuple[SavedRun, int] | None = None

    def training(self, *, iterations: bool) -> TrainingRecord:
        """The facts in its manifests."""
        before = None
        if self.resumed_from is not None:
            run, number = self.resumed_from
            before = RunStep(run.name, step_of(number, iterations=iterations), run.started)
        return TrainingRecord(self.started, before)


def step_of(number: int, *, iterations: bool) -> Step:
    """Return the step with a number since the beginning."""
    return Step.iteration(number) if iterations else Step(1, number)


@dataclass(frozen=True, kw_only=True)
class RunTree:
    """A tree of slices, or of iterations, that some runs saved, one after the other."""

    iterations: bool
    model_parallel: int
    adapter: bool
    runs: tuple[SavedRun, ...]
    prefixes: bool = False
    """Each run has a prefix of its own, so that a step may lie there twice; otherwise the later one writes over it."""
    manifests: Literal["all", "some", "none"] = "all"

    @property
    def ranks(self) -> int:
        """The number of ranks."""
        return 2 * self.model_parallel

    def step(self, number: int) -> Step:
        """Return a step as the tree names it."""
        return step_of(number, iterations=self.iterations)

    @property
    def owners(self) -> dict[int, list[SavedRun]]:
        """The runs whose slices of each step lie there, by its number."""
        found: dict[int, list[SavedRun]] = {}
        for run in self.runs:
            for number in run.steps:
                found[number] = [*(found.get(number, []) if self.prefixes else []), run]
        return found

    def outside(self) -> list[Step]:
        """Return the steps of which no slice belongs to the run that was started last, or to those it goes on from."""
        members: dict[str, int] = {}
        run, until = self.runs[-1], max(self.owners)
        while True:
            members[run.name] = until
            if run.resumed_from is None:
                break
            run, until = run.resumed_from
        return [
            self.step(number)
            for number, runs in self.owners.items()
            if not any(number <= members.get(run.name, 0) for run in runs)
        ]

    def prefix(self, run: SavedRun) -> str:
        """Return the prefix of the slices of a run."""
        place = self.runs.index(run) if self.prefixes else 0
        return f"CKP_{place}" if place else "CKP"

    def write(self, top: Path, source: Random) -> Path:
        """Write the tree below a folder, and return its root."""
        root = top / "checkpoint"
        if self.iterations:
            job = Job(data_parallel=2, model_parallel=self.model_parallel, layers=1, adapter=self.adapter)
            write_job(root, job, sorted(self.owners))
        else:
            self._write_slices(root)
        own = {(self.step(number), self.prefix(run)): run for number, runs in self.owners.items() for run in runs}
        bare = {run.name for run in self.runs if source.random() < 0.4} if self.manifests == "some" else set()
        for number, file in enumerate(sorted(scan(root).slices, key=lambda one: (one.step, one.path))):
            run = own[file.step, self.prefix(self.runs[0]) if self.iterations else file.prefix]
            os.utime(root / file.path, ns=(0, run.started * 1_000_000 + number))
            if self.manifests != "none" and run.name not in bare:
                self._write_manifest(root, file, run)
        return root

    def _write_slices(self, root: Path) -> None:
        mp = self.model_parallel
        names = [name for name in PARAMETERS if name != COUNTER]
        layouts = tuple(Layout(name, (2, mp), ((0,) if mp > 1 else (),)) for name in names)
        for rank in range(self.ranks):
            folder = root / f"rank_{rank}"
            folder.mkdir(parents=True)
            (folder / "strategy.ckpt").write_bytes(encode_strategy(Strategy((0,), 1, layouts)))
            write_group_info(folder / "group_info.pb", [rank % mp, rank % mp + mp])
            for number, runs in self.owners.items():
                for run in runs:
                    seed = (self.runs.index(run) * 1000 + number) * 10
                    path = folder / f"{self._rank_prefix(run, rank)}-{self.step(number)}.ckpt"
                    contents = slice_bytes({name: PARAMETERS[name] for name in names}, seed + rank % mp)
                    path.write_bytes(contents + slice_bytes({COUNTER: 1}, seed))

    def _rank_prefix(self, run: SavedRun, rank: int) -> str:
        place = self.runs.index(run) if self.prefixes else 0
        return f"CKP_rank_{rank}_{place}" if place else f"CKP_rank_{rank}"

    def _write_manifest(self, root: Path, file: SliceFile, run: SavedRun) -> None:
        mp, path = self.model_parallel, str(root / file.path)
        group = (file.rank,) if self.iterations else (file.rank % mp, file.rank % mp + mp)
        made = replace(make_manifest(path, file.rank, file.step, self.ranks, group, run.name), provenance=SAVED)
        write_manifest(path, replace(made, training=run.training(iterations=self.iterations)))


def random_runs(source: Random) -> tuple[SavedRun, ...]:
    """Return one to three runs; each may go on from a step of an earlier one, which may not be its last."""
    runs: list[SavedRun] = []
    for place in range(source.choice((1, 2, 2, 3))):
        before = None
        if runs and source.random() < 0.75:
            run = source.choice(runs)
            before = run, source.choice(run.steps)
        first = before[1] if before is not None else 0
        every = [number for number in range(first + 1, first + 5) if source.random() < 0.6] or [first + 1]
        runs.append(
            SavedRun(
                name=f"run-{'abc'[place]}",
                started=(place + 1) * HOUR,
                steps=tuple(every),
                resumed_from=before,
            )
        )
    return tuple(runs)


def random_tree(source: Random) -> RunTree:
    """Return a tree."""
    iterations = source.random() < 0.5
    return RunTree(
        iterations=iterations,
        model_parallel=source.choice((1, 2)),
        adapter=source.random() < 0.2,
        runs=random_runs(source),
        prefixes=not iterations and source.random() < 0.6,
        manifests=source.choice(("all", "all", "some", "none", "none")),
    )


def strike(tree: RunTree, root: Path, source: Random) -> bool:
    """Damage some slices of a written tree; return whether contents of a slice were changed."""
    changed = False
    files = list(scan(root).slices)
    for _ in range(source.choice((0, 1, 1, 2, 4))):
        file = source.choice(files)
        fault = source.choice(("lose", "lose", "cut", "flip", "flip", "unsay", "half", "empty"))
        held = [file]
        if fault == "half":  # saved by some ranks only
            held = [one for one in files if one.step == file.step and source.random() < 0.6]
        elif fault == "empty":
            held = [one for one in files if one.rank == file.rank]
        for one in held:
            changed |= _strike(root / one.path, fault, source)
    if not tree.iterations and source.random() < 0.3:
        names = {f"{tree._rank_prefix(run, 0)}-{tree.step(number)}.ckpt" for run in tree.runs for number in run.steps}
        write_health(root.parent / "health_ckpts.json", {name: source.choice((0, 1)) for name in sorted(names)})
    return changed


def _strike(path: Path, fault: str, source: Random) -> bool:
    if not path.exists():
        return False
    manifest = path.with_name(path.name + MANIFEST_SUFFIX)
    if fault == "unsay":
        manifest.unlink(missing_ok=True)
    elif fault in ("cut", "flip"):
        status, data = path.stat(), bytearray(path.read_bytes())
        if fault == "flip":
            data[source.choice((-3, -source.randrange(1, len(data) // 2)))] ^= 1
        path.chmod(0o600)
        path.write_bytes(data[: len(data) - 5 * (fault == "cut")])
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
        return True
    else:
        path.unlink()
        manifest.unlink(missing_ok=True)
    return False


def random_options(tree: RunTree, source: Random) -> PlanOptions:
    """Return options of which most are as they are by default."""
    chosen: dict[str, Any] = {}

    def sometimes(share: float, **options: Any) -> None:
        if source.random() < share:
            chosen.update(options)

    sometimes(0.2, step=tree.step(source.choice(sorted(tree.owners))))
    if tree.manifests != "none":
        sometimes(0.3, run=source.choice(tree.runs).name)
    sometimes(0.25, lost=frozenset([source.randrange(tree.ranks)]))
    sometimes(0.15, ranks=frozenset([source.randrange(tree.ranks)]))
    sometimes(0.4, quick=True)
    sometimes(0.2, newest=True)
    sometimes(0.5, world_size=tree.ranks)
    if "step" not in chosen:
        sometimes(0.2, clean=True)
    return PlanOptions(**chosen)
