"""Random steps that were dealt out: what no slice lists any more is named, by reshard as by plan, and nothing else is.

`remove_redundancy=True` saves each part of a parameter in one slice, so that a lost slice takes names with it.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

from hypothesis import event, example, given, settings
from hypothesis import strategies as st

from ms_recover import api, load_full
from ms_recover.file_names import MANIFEST_SUFFIX
from ms_recover.model.options import PlanOptions
from ms_recover.model.reshard import ReshardOptions, ReshardPlan
from ms_recover.model.steps import Step
from tests.property.test_recovery import MEMORY
from tests.support.damage import pieces_of
from tests.support.examples import examples
from tests.support.reshard import COUNTER, Job, contents_of, make_job_tree, random_arrays, random_job

FIRST, NEWEST = Step(1, 4), Step(1, 8)
WHOLE = ReshardOptions(full=True)
DAMAGE = ("slice lost", "slice and manifest lost", "cut short", "cut short, manifest lost", "emptied")
CUT_BETWEEN = "cut between parameters, manifest lost"
"""Such a slice is well formed; no manifest of another step contradicts it if that one's slice is cut as well."""

search = settings(max_examples=examples(120))
seeds = st.integers(0, (1 << 32) - 1)


@dataclass(frozen=True, kw_only=True)
class Dealt:
    """A tree whose newest step was dealt out and then struck, and the tensors that its slices held together."""

    root: Path
    job: Job
    arrays: Mapping[str, Any]

    @property
    def names(self) -> set[str]:
        return {COUNTER}.union(*self.job.stages) & self.arrays.keys()

    def planned(self, output: Path) -> ReshardPlan:
        options = PlanOptions(step=NEWEST, world_size=self.job.ranks)
        return api.plan_reshard(api.scan(self.root), output, WHOLE, options)


def dealt_tree(source: Random, root: Path) -> Dealt:
    """Write a tree of one or two steps, with states of the optimizer, and strike slices so that it can be seen."""
    arrays = random_arrays(source)
    weights = {name: array for name, array in arrays.items() if name != COUNTER}
    job = random_job(source, {name: array.shape for name, array in weights.items()})
    arrays |= {f"adam_m.{name}": array + array.dtype.type(1) for name, array in weights.items()}
    unsaved = source.choice([(), ("accu_grads",)])
    for layouts in job.stages:  # a state is cut as its weight is
        kinds = ("adam_m", *unsaved)
        layouts |= {
            f"{kind}.{name}": replace(layout, parameter=f"{kind}.{name}")
            for name, layout in layouts.items()
            for kind in kinds
        }
    manifests, form = source.random() < 0.5, source.choice(["ckpt", "safetensors"])
    for step in source.choice([(NEWEST,), (FIRST, NEWEST)]):
        held = arrays if step == NEWEST else {name: array + array.dtype.type(1) for name, array in arrays.items()}
        make_job_tree(root, job, held, manifests=manifests, form=form, step=step, dealt=True)
    for path in sorted(root.glob(f"ckpt_dir*/test-*.{form}")):
        newest_of_all = path.parent.name == "ckpt_dir0" and path.stem == f"test-{NEWEST}"
        if source.random() < 0.3 and not newest_of_all:
            between = (CUT_BETWEEN,) if path.name == f"test-{NEWEST}.ckpt" else ()
            strike(source, path, source.choice((*DAMAGE, *between)))
    return Dealt(root=root, job=job, arrays=arrays)


def strike(source: Random, path: Path, damage: str) -> None:
    if "manifest" in damage:
        Path(f"{path}{MANIFEST_SUFFIX}").unlink(missing_ok=True)
    if damage == "emptied":
        path.write_bytes(b"")
    elif damage == CUT_BETWEEN:
        data = path.read_bytes()
        ends = [piece.end for piece in pieces_of(data)]
        path.write_bytes(data[: source.choice(ends[:-1] or ends)])
    elif damage.startswith("cut short"):
        data = path.read_bytes()
        path.write_bytes(data[: source.randrange(len(data))])
    else:
        path.unlink()


@search
@given(seeds)
@example(78)  # the one slice that is left of a stage lacks states that the other stage has
@example(651)  # so it does, cut off between two parameters
@example(558)  # a cut slice made what it lacks look as if no checkpoint had it
def test_each_parameter_of_a_dealt_step_is_right_or_named(seed: int) -> None:
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        tree = dealt_tree(Random(seed), Path(folder) / "source")
        plan = tree.planned(Path(folder) / "output")
        named = {one.parameter for one in plan.missing}
        everything = any(name.startswith("every parameter of stage") for name in named)
        event(f"complete {plan.complete}, everything {everything}")
        recovery = api.plan(api.scan(tree.root), PlanOptions(step=NEWEST, world_size=tree.job.ranks))
        assert plan.complete or recovery.step is None
        outcome = api.reshard(plan, partial=True, compare=True)
        assert outcome.errors == ()
        found: dict[str, tuple[tuple[int, ...], bytes]] = {}
        for path in (Path(folder) / "output").glob("model*"):
            if path.suffix in (".ckpt", ".safetensors"):
                found |= contents_of(path)
        assert everything or tree.names - found.keys() <= named
        for name, held in found.items():
            assert held == (tree.arrays[name].shape, tree.arrays[name].tobytes()), name
        with load_full(tree.root, step=NEWEST, options=PlanOptions(world_size=tree.job.ranks)) as full:
            assert full.keys() - full.missing.keys() == found.keys()


@search
@given(seeds)
def test_no_parameter_is_named_that_the_run_never_had(seed: int) -> None:
    """Slices of an older run, which listed others, lie beside those of the present one."""
    source = Random(seed)
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        root = Path(folder) / "source"
        tree = dealt_tree(source, root)
        first, *others = tree.job.stages
        stages = [{**first, "older.weight": first["layer0.weight"]}, *others]
        other = {**tree.arrays, "older.weight": tree.arrays["layer0.weight"]}
        make_job_tree(root, Job(tree.job.devices, stages), other, prefix="older", step=FIRST, strategies=False)
        for path in root.glob("ckpt_dir*/older-*"):
            os.utime(path, (1, 1))
        named = {one.parameter for one in tree.planned(Path(folder) / "output").missing}
        assert "older.weight" not in named


def test_what_encrypted_slices_hold_is_named(tmp_path: Path) -> None:
    """Nobody can list it, and strategy files name it."""
    source = Random(5)
    arrays = random_arrays(source)
    shapes = {name: array.shape for name, array in arrays.items() if name != COUNTER}
    jobs = (random_job(source, shapes, shared=False) for _ in range(1000))
    job = next(one for one in jobs if len(one.stages) == 2)
    root = make_job_tree(tmp_path / "source", job, arrays)
    encrypted = Path(__file__).parents[1] / "data" / "formats" / "encrypted_AES-GCM.ckpt"
    for rank in range(job.devices, job.ranks):
        (root / f"ckpt_dir{rank}" / f"test-{NEWEST}.ckpt").write_bytes(encrypted.read_bytes())
    plan = api.plan_reshard(api.scan(root), tmp_path / "output", WHOLE)
    assert {one.parameter for one in plan.missing} == job.stages[1].keys()
    assert all("encrypted" in one.reason for one in plan.missing)
