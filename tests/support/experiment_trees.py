"""Folders that the trainings of several experiments saved into, each with its prefix, all from one number."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Literal

from ms_recover.execution.manifests import make_manifest, write_manifest
from ms_recover.execution.rank_lists import write_group_info
from ms_recover.file_names import MANIFEST_SUFFIX
from ms_recover.formats.strategy import encode_strategy
from ms_recover.model.manifest import RunStep, TrainingRecord
from ms_recover.model.provenance import SAVED
from ms_recover.model.steps import Step
from ms_recover.model.strategy import Layout, Strategy
from ms_recover.testing.trees import PARAMETERS, slice_bytes

PREFIXES = ("resnet", "resnet_50", "resnet_50_1", "lr_0.01", "lr_0.5", "head")
HOUR = 3_600_000
NAMES = [name for name in PARAMETERS if name != "global_step"]

Manifests = Literal["new", "old", "none"]
"""Those that state the experiment, those of before, and no manifests at all."""
KINDS: tuple[Manifests, ...] = ("none", "old", "new")


@dataclass(frozen=True, kw_only=True)
class Start:
    """One start of the training of an experiment."""

    experiment: str
    number: int
    place: int
    """Among all starts, by time."""
    prefix: str
    steps: tuple[int, ...]
    manifests: Manifests
    resumed_from: tuple[Start, int] | None = None

    @property
    def run_id(self) -> str:
        """The id of the run."""
        return f"run-{self.place}"

    @property
    def started(self) -> int:
        """When it was started."""
        return (self.place + 1) * HOUR

    @property
    def newest(self) -> Step:
        """The newest step that it saved."""
        return Step(1, max(self.steps))

    @property
    def line(self) -> list[tuple[Start, int]]:
        """The start, and those that it goes on from, each up to the last step that counts."""
        found: list[tuple[Start, int]] = [(self, max(self.steps))]
        while (before := found[-1][0].resumed_from) is not None:
            found.append(before)
        return found

    def seed(self, number: int, part: int) -> int:
        """Return what the contents of a slice are made of."""
        return (self.place * 1000 + number) * 10 + part

    def training(self) -> TrainingRecord:
        """Return the facts in its manifests."""
        before = None
        if self.resumed_from is not None:
            run, number = self.resumed_from
            before = RunStep(run.run_id, Step(1, number), run.started) if run.manifests != "none" else None
        stated = (self.experiment, self.number) if self.manifests == "new" else (None, None)
        return TrainingRecord(self.started, before, base_prefix=stated[0], start_number=stated[1])


@dataclass(frozen=True, kw_only=True)
class ExperimentTree:
    """Starts in one folder, by time."""

    model_parallel: int
    starts: tuple[Start, ...]
    lost: frozenset[tuple[int, int, int]] = field(default_factory=frozenset)
    """Start, step and rank of the slices that are gone, with their manifests; a replica is left of each."""
    bare: frozenset[tuple[int, int, int]] = field(default_factory=frozenset)
    """Those that a kill left without a manifest."""

    @property
    def ranks(self) -> int:
        """The number of ranks."""
        return 2 * self.model_parallel

    @property
    def experiments(self) -> list[str]:
        """The experiments."""
        return sorted({one.experiment for one in self.starts})

    def last(self, experiment: str | None = None) -> Start:
        """Return the last start, or that of one experiment."""
        return [one for one in self.starts if experiment in (None, one.experiment)][-1]

    def write(self, root: Path) -> Path:
        """Write the slices, the oldest first."""
        mp = self.model_parallel
        layouts = tuple(Layout(name, (2, mp), ((0,) if mp > 1 else (),)) for name in NAMES)
        for rank in range(self.ranks):
            folder = root / f"ckpt_dir{rank}"
            folder.mkdir(parents=True)
            (folder / "strategy.ckpt").write_bytes(encode_strategy(Strategy((0,), 1, layouts)))
            write_group_info(folder / "group_info.pb", [rank % mp, rank % mp + mp])
            for start in self.starts:
                for number in start.steps:
                    if (start.place, number, rank) not in self.lost:
                        self._write(folder / f"{start.prefix}-1_{number}.ckpt", start, number, rank)
        return root

    def _write(self, path: Path, start: Start, number: int, rank: int) -> None:
        mp = self.model_parallel
        path.write_bytes(slice_bytes({name: PARAMETERS[name] for name in NAMES}, start.seed(number, rank % mp)))
        os.utime(path, ns=(0, start.started * 1_000_000 + number))
        if start.manifests == "none" or (start.place, number, rank) in self.bare:
            return
        group = (rank % mp, rank % mp + mp)
        made = make_manifest(str(path), rank, Step(1, number), self.ranks, group, start.run_id)
        write_manifest(str(path), replace(made, provenance=SAVED, training=start.training()))
        assert path.with_name(path.name + MANIFEST_SUFFIX).exists()


def random_experiments(source: Random, *, stated: bool) -> ExperimentTree:
    """Return a folder; where all manifests state the experiment if `stated`."""
    experiments = source.sample(PREFIXES, source.choice((1, 2, 2, 3)))
    kinds: dict[str, Manifests] = {}
    starts: list[Start] = []
    for place in range(source.choice((1, 2, 3, 4, 5))):
        experiment = source.choice(experiments)
        kind: Manifests = "new"
        if not stated:  # programs are updated, and seldom the other way round
            kind = source.choice(KINDS[KINDS.index(kinds.get(experiment, "none")) :])
            kinds[experiment] = kind if source.random() < 0.8 else "none"
        starts.append(_start(starts, experiment, place, kind, source))
    tree = ExperimentTree(model_parallel=source.choice((1, 2)), starts=tuple(starts))
    every = [(start.place, number) for start in starts for number in start.steps]
    lost = {(*one, source.randrange(tree.ranks)) for one in every if source.random() < 0.2}
    bare = {(*one, source.randrange(tree.ranks)) for one in every if source.random() < 0.1} - lost
    bare = {one for one in bare if not any(one[:2] == other[:2] for other in lost)}
    return replace(tree, lost=frozenset(lost), bare=frozenset(bare))


def _start(earlier: list[Start], experiment: str, place: int, manifests: Manifests, source: Random) -> Start:
    own = [one for one in earlier if one.experiment == experiment]
    resumed = None
    if earlier and source.random() < 0.8:
        run = source.choice(own or earlier) if source.random() < 0.3 or not own else own[-1]
        resumed = run, source.choice(run.steps)
    if not own and source.random() < 0.8:
        resumed = None  # begun from another experiment only where somebody chose it
    number = 0 if not own else max(one.number for one in own) + 1
    taken = {one.prefix for one in earlier}
    while (prefix := f"{experiment}_{number}" if number else experiment) in taken:
        number += 1
    first = resumed[1] if resumed is not None else 0
    steps = [one for one in range(first + 1, first + 4) if source.random() < 0.6] or [first + 1]
    return Start(
        experiment=experiment,
        number=number,
        place=place,
        prefix=prefix,
        steps=tuple(steps),
        manifests=manifests,
        resumed_from=resumed,
    )
