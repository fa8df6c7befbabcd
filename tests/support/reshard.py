"""Random jobs: parameters that are cut over stages and ranks, their trees, and what each rank must hold."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from ms_recover.execution.manifests import make_manifest, write_manifest
from ms_recover.execution.rank_lists import write_group_info
from ms_recover.formats.header import read_header
from ms_recover.formats.strategy import encode_strategy
from ms_recover.model.provenance import SAVED
from ms_recover.model.steps import Step
from ms_recover.model.strategy import Layout, Strategy
from ms_recover.planning.claims.layouts import cells_of
from tests.support.cuts import CutTensor, slice_of

TYPES = (("Float32", np.float32), ("Float16", np.float16), ("Int8", np.int8), ("Int64", np.int64))
COUNTER = "global_step"
STEP = Step(1, 8)


@dataclass
class Job:
    """How a job cuts parameters: by stage, the layout of each parameter that it has."""

    devices: int
    stages: list[dict[str, Layout]] = field(default_factory=list)

    @property
    def ranks(self) -> int:
        return self.devices * len(self.stages)

    def held(self, arrays: Mapping[str, Any], rank: int, name: str) -> Any:
        """Return the part of an array that a rank holds, None where its stage has not got the parameter."""
        layouts = self.stages[rank // self.devices]
        if name == COUNTER:
            return arrays[name]
        return CutTensor("", arrays[name], layouts[name]).of(rank) if name in layouts else None

    def dealt(self, rank: int) -> list[str]:
        """Return the parameters that a rank saves where each part is saved by one of the ranks that hold it."""
        first = rank // self.devices * self.devices
        found = []
        for number, (name, layout) in enumerate(self.stages[rank // self.devices].items()):
            cells = cells_of(layout, range(first, first + self.devices))
            holders = [first + place for place, cell in enumerate(cells) if cell == cells[rank - first]]
            found += [name] if holders[number % len(holders)] == rank else []
        return found

    def strategy(self, stage: int) -> bytes:
        layouts = tuple(sorted(self.stages[stage].values(), key=lambda one: one.parameter))
        return encode_strategy(Strategy((stage,), 1, layouts))

    def group(self, rank: int) -> list[int]:
        """Return the ranks that hold the same slice."""
        first = rank // self.devices * self.devices
        ranks = range(first, first + self.devices)
        ways = [cells_of(layout, ranks) for layout in self.stages[rank // self.devices].values()]
        return [one for one in ranks if all(cells[one - first] == cells[rank - first] for cells in ways)]


def random_layout(source: Random, name: str, shape: Sequence[int], matrix: Sequence[int]) -> Layout:
    """Return a layout that divides a shape, sometimes nested, sometimes with optimizer shards."""
    sizes, axes = list(matrix)[::-1], list(range(len(matrix)))
    source.shuffle(axes)
    tensor_map = []
    for size in shape:
        taken: list[int] = []
        for _ in range(source.choice([0, 0, 1, 1, 2])):
            if axes and size % (prod(sizes[one] for one in taken) * sizes[axes[0]]) == 0:
                taken.append(axes.pop(0))
        tensor_map.append(tuple(taken))
    free = prod(sizes[axis] for axis in axes)
    rows = prod(sizes[axis] for axis in tensor_map[0])
    able = [count for count in {2, 4, free} if count > 1 and free % count == 0 and shape[0] % (rows * count) == 0]
    shards = source.choice(sorted(able)) if able and source.random() < 0.4 else 0
    if shards == free and source.random() < 0.5:
        shards = -1
    unused = (axis for axis, size in enumerate(sizes) if size > 1 and not any(axis in one for one in tensor_map))
    step = prod(sizes[: next(unused)]) if shards else 0
    return Layout(name, tuple(matrix), tuple(tensor_map), step, shards)


def random_job(source: Random, shapes: Mapping[str, Sequence[int]], *, most: int = 8, shared: bool = True) -> Job:
    """Return a job with one or two stages, each with some of the parameters and now and then one of the other's."""
    devices = source.choice([count for count in (1, 2, 4, 8) if count <= most])
    job = Job(devices)
    names = list(shapes)
    cut = source.choice([len(names), len(names), source.randint(1, len(names))])
    again = [names[0]] if shared and source.random() < 0.3 else []
    for held in (names[:cut], [*again, *names[cut:]] if names[cut:] else []):
        if held:
            job.stages.append(
                {name: random_layout(source, name, shapes[name], random_matrix(source, devices)) for name in held}
            )
    return job


def random_matrix(source: Random, devices: int) -> tuple[int, ...]:
    """Return a device matrix of so many devices."""
    sizes = []
    while devices > 1:
        sizes.append(source.choice([size for size in (2, 4, 8) if devices % size == 0]))
        devices //= sizes[-1]
    return tuple(sizes) or (1,)


def random_arrays(source: Random) -> dict[str, Any]:
    """Return parameters; the first is large enough that a strategy file names most bytes of each slice."""
    numbers = np.random.default_rng(source.randrange(1 << 30))
    arrays = {}
    for index in range(source.randint(2, 5)):
        shape = [source.choice([1, 2, 4, 8, 16, 24]) for _ in range(source.randint(1, 3))] if index > 1 else [16, 24]
        arrays[f"layer{index}.weight"] = numbers.integers(0, 100, shape).astype(source.choice(TYPES)[1])
    return arrays | {COUNTER: np.int8(source.randrange(100))}


def type_of(array: Any) -> str:
    """Return MindSpore's name of an array's type."""
    return next(name for name, kind in TYPES if array.dtype == kind)


def flip_parameter(path: Path, name: str) -> None:
    """Change a bit of the contents of a parameter; size and time of modification stay."""
    header = read_header(path)
    (first, *_) = dict(zip((one.name for one in header.parameters), header.contents, strict=True))[name]
    status, data = path.stat(), bytearray(path.read_bytes())
    data[first.start] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def make_job_tree(
    root: Path,
    job: Job,
    arrays: Mapping[str, Any],
    *,
    manifests: bool = False,
    form: str = "ckpt",
    strategies: bool = True,
    directory: str = "ckpt_dir",
    prefix: str = "test",
    step: Step = STEP,
    dealt: bool = False,
    **options: Any,
) -> Path:
    """Write the tree that a job leaves, with strategy files and rank lists; another step of it beside what is there.

    Layouts may name more than the arrays. Where a step is `dealt`, each part of a parameter is in the slice of one of
    the ranks that hold it, and the counter comes first in all.
    """
    for rank in range(job.ranks):
        stage = rank // job.devices
        folder = root / f"{directory}{rank}"
        folder.mkdir(parents=True, exist_ok=True)
        if strategies:
            (folder / "strategy.ckpt").write_bytes(job.strategy(stage))
        group = job.group(rank)
        write_group_info(folder / "group_info.pb", group)
        layouts = {name: one for name, one in job.stages[stage].items() if name in arrays}
        tensors = {name: CutTensor(type_of(arrays[name]), arrays[name], one) for name, one in layouts.items()}
        counter = {COUNTER: CutTensor("Int8", arrays[COUNTER])}
        if dealt:
            tensors = {**counter, **{name: tensors[name] for name in job.dealt(rank) if name in tensors}}
        else:
            tensors |= counter
        path = folder / f"{prefix}-{step}.{form}"
        path.write_bytes(slice_of(tensors, rank, form=form, **options))
        path.chmod(0o600)
        if manifests:
            made = replace(make_manifest(str(path), rank, step, job.ranks, tuple(group), "run"), provenance=SAVED)
            write_manifest(str(path), made)
    return root


def write_strategies(folder: Path, job: Job) -> Path:
    """Write the strategy files of a job, one a stage."""
    folder.mkdir(parents=True, exist_ok=True)
    for stage in range(len(job.stages)):
        (folder / f"strategy_rank_{stage * job.devices}.ckpt").write_bytes(job.strategy(stage))
    return folder


def missing_elements(job: Job, arrays: Mapping[str, Any], sound: Sequence[int]) -> dict[str, int]:
    """Return how many elements of each parameter none of some ranks holds; those held whole are left out."""
    gone = {}
    for name, array in arrays.items():
        there = held_elements(job, arrays, sound, name)
        if not there.all():
            gone[name] = int(array.size - there.sum())
    return gone


def held_elements(job: Job, arrays: Mapping[str, Any], sound: Sequence[int], name: str) -> Any:
    """Return for each element of a parameter, in order, whether one of some ranks holds it."""
    numbers = {name: np.arange(arrays[name].size).reshape(arrays[name].shape)}
    there = np.zeros(arrays[name].size, bool)
    for rank in sound:
        part = job.held(numbers, rank, name)
        if part is not None:
            there[part.reshape(-1)] = True
    return there


def contents_of(path: Path) -> dict[str, tuple[tuple[int, ...], bytes]]:
    """Return shape and contents of each parameter in a slice."""
    header = read_header(path)
    assert not header.problems
    data = path.read_bytes()
    return {
        one.name: (one.shape, b"".join(data[place.start : place.end] for place in places))
        for one, places in zip(header.parameters, header.contents, strict=True)
    }


def check_tree(root: Path, job: Job, arrays: Mapping[str, Any], form: str = "ckpt") -> None:
    """Every rank of a job has its slice, and it holds what it must and nothing else."""
    for rank in range(job.ranks):
        (path,) = (root / f"ckpt_dir{rank}").glob(f"test-*.{form}")
        held = {name: job.held(arrays, rank, name) for name in arrays}
        assert contents_of(path) == {
            name: (part.shape, part.tobytes()) for name, part in held.items() if part is not None
        }, f"rank {rank}"
