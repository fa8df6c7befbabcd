"""Random jobs, losses and targets against an oracle over the elements of whole tensors."""

from __future__ import annotations

import tempfile
from math import prod
from pathlib import Path
from random import Random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ms_recover import api
from ms_recover.formats.header import read_header
from ms_recover.model.options import PlanOptions
from ms_recover.model.reshard import ReshardOptions
from tests.property.test_recovery import MEMORY
from tests.support.examples import examples
from tests.support.reshard import (
    COUNTER,
    Job,
    check_tree,
    contents_of,
    held_elements,
    make_job_tree,
    missing_elements,
    random_arrays,
    random_job,
    write_strategies,
)

EXAMPLES = examples(40)
search = settings(max_examples=EXAMPLES)
seeds = st.integers(0, (1 << 32) - 1)


def drawn(source: Random) -> tuple[dict[str, np.ndarray], Job, Job]:
    """Return parameters, and two jobs that cut them."""
    arrays = random_arrays(source)
    if source.random() < 0.3:  # a parameter without elements is one all the same
        empty = np.zeros(source.choice([(0,), (0, 4), (4, 0)]), np.float32)
        arrays = {**arrays, "empty": empty, COUNTER: arrays[COUNTER]}
    shapes = {name: array.shape for name, array in arrays.items() if name != COUNTER}
    job, target = random_job(source, shapes), random_job(source, shapes)
    return arrays, job, target


@search
@given(seeds)
def test_whatever_is_lost_every_part_is_right_or_named(seed: int) -> None:
    source = Random(seed)
    arrays, job, target = drawn(source)
    full = source.random() < 0.2
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        root = make_job_tree(
            Path(folder) / "source",
            job,
            arrays,
            manifests=source.random() < 0.5,
            form=source.choice(["ckpt", "safetensors"]),
        )
        lost = {rank for rank in range(job.ranks) if source.random() < source.choice([0, 0, 0.3])} - {0}
        for rank in lost:
            for path in (root / f"ckpt_dir{rank}").glob("test-*"):
                path.unlink()
        sound = [rank for rank in range(job.ranks) if rank not in lost]
        wanted = ReshardOptions(
            strategy=None if full else str(write_strategies(Path(folder) / "target", target)),
            full=full,
            shard_size=source.choice([0, 500, 1 << 32]),
            form=source.choice([None, "ckpt", "safetensors"]),
        )
        output = Path(folder) / "output"
        plan = api.plan_reshard(api.scan(root), output, wanted, PlanOptions(world_size=job.ranks))
        gone = missing_elements(job, arrays, sound)
        named = _named(plan)
        if all(any(rank // job.devices == stage for rank in sound) for stage in range(len(job.stages))):
            assert named == gone
        else:  # of a stage of which no manifest is left, even the strategy file may not be known to be its own
            assert {name for name in named if not name.startswith("every parameter of")} <= gone.keys()
            assert bool(named) == bool(gone)
        outcome = api.reshard(plan, jobs=2, partial=True, compare=True)
        assert outcome.errors == ()
        assert outcome.exit_code == (4 if plan.missing else 0)
        if full:
            target = Job(1, [{}])
        _check(output, target, job, arrays, sound, full=full)
        if not plan.missing and not full:
            check_tree(output, target, arrays, plan.form)


def _check(output, target, job, arrays, sound, *, full):
    """Each parameter of each file is right; a parameter is there wherever all its elements are held."""
    found = _found(output, full=full)
    for rank in range(target.ranks):
        for name, array in arrays.items():
            part = array if full else target.held(arrays, rank, name)
            if part is None:
                assert name not in found.get(rank, {})
                continue
            there = held_elements(job, arrays, sound, name).reshape(array.shape)
            whole = (there if full else target.held({name: there}, rank, name)).all()
            known = any(name in job.stages[one // job.devices] or name == COUNTER for one in sound)
            if name in found.get(rank, {}):
                assert found[rank][name] == (part.shape, part.tobytes()), (rank, name)
                assert whole
            else:
                assert not whole or not known, (rank, name)


def _found(output, *, full):
    """Return shape and contents of each parameter by rank and name."""
    found: dict[int, dict[str, tuple[tuple[int, ...], bytes]]] = {}
    for path in [*output.rglob("test-*"), *output.glob("model*")]:
        if path.suffix in (".ckpt", ".safetensors"):
            rank = 0 if full else int(path.parent.name.removeprefix("ckpt_dir"))
            found.setdefault(rank, {}).update(contents_of(path))
    return found


@search
@given(seeds)
def test_whatever_is_damaged_nothing_wrong_is_written_and_what_is_gone_is_named(seed: int) -> None:
    """A bit of some parameters is flipped in some slices, others are cut short; manifests say what they held."""
    source = Random(seed)
    arrays, job, target = drawn(source)
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        root = make_job_tree(Path(folder) / "source", job, arrays, manifests=True)
        damaged: dict[int, set[str]] = {}
        for rank in range(job.ranks):
            path = root / f"ckpt_dir{rank}" / "test-1_8.ckpt"
            struck = source.choice(["", "", "flip", "flip", "cut" if rank else ""])
            if struck == "flip":
                damaged[rank] = {_flip(path, source)}
            elif struck:
                path.write_bytes(path.read_bytes()[:-1])
                damaged[rank] = {*arrays}
        gone = {}
        for name, array in arrays.items():
            sound = [rank for rank in range(job.ranks) if name not in damaged.get(rank, ())]
            count = int(array.size - held_elements(job, arrays, sound, name).sum())
            gone |= {name: count} if count else {}
        wanted = ReshardOptions(strategy=str(write_strategies(Path(folder) / "target", target)))
        output = Path(folder) / "output"
        plan = api.plan_reshard(api.scan(root), output, wanted, PlanOptions(world_size=job.ranks))
        named = _named(plan)
        if not any(name.startswith("every parameter of") for name in named):  # a stage without a sound slice
            assert named == gone
        outcome = api.reshard(plan, jobs=2, partial=True, compare=True)
        assert outcome.errors == ()
        assert outcome.exit_code == (4 if plan.missing else 0)
        for rank, found in _found(output, full=False).items():
            for name, held in found.items():
                part = target.held(arrays, rank, name)
                assert held == (part.shape, part.tobytes()), (rank, name)
        if not plan.missing:
            check_tree(output, target, arrays, plan.form)


def _named(plan) -> dict[str, int]:
    """Return how many elements of each parameter a plan names as missing; of none it names the parameter alone."""
    named: dict[str, int] = {}
    for gone in plan.missing:
        named[gone.parameter] = named.get(gone.parameter, 0) + prod(stop - start for start, stop in gone.region)
    return {name: count for name, count in named.items() if count}


def _flip(path: Path, source: Random) -> str:
    header, data = read_header(path), bytearray(path.read_bytes())
    number = source.choice([number for number, parameter in enumerate(header.parameters) if parameter.nbytes])
    place = source.choice(header.contents[number])
    data[source.randrange(place.start, place.end)] ^= 1 << source.randrange(8)
    path.write_bytes(data)
    return header.parameters[number].name


@search
@given(seeds)
def test_there_and_back_gives_the_same_files(seed: int) -> None:
    source = Random(seed)
    arrays, job, other = drawn(source)
    form = source.choice(["ckpt", "safetensors"])
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        root = make_job_tree(Path(folder) / "a", job, arrays, form=form, crc=form == "ckpt" and source.random() < 0.3)
        there, back = Path(folder) / "b", Path(folder) / "c"
        for start, end, target in ((root, there, other), (there, back, job)):
            strategy = write_strategies(Path(folder) / f"for_{end.name}", target)
            plan = api.plan_reshard(api.scan(start), end, ReshardOptions(strategy=str(strategy)))
            assert api.reshard(plan, verify=False).exit_code == 0
        for path in root.rglob("test-*"):
            assert (back / path.relative_to(root)).read_bytes() == path.read_bytes(), path
