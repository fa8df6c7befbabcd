"""Complete trees cut anew, against what MindSpore's own transform_checkpoints makes of them."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from ms_recover import api
from ms_recover.model.reshard import ReshardOptions
from tests.support.examples import examples
from tests.support.reshard import (
    COUNTER,
    Job,
    contents_of,
    make_job_tree,
    random_arrays,
    random_job,
    write_strategies,
)

pytestmark = pytest.mark.mindspore
ms = pytest.importorskip("mindspore")


def strategy_of(folder: Path, job: Job) -> str:
    """Return the strategy file of a job as MindSpore takes it: of several stages the merged one."""
    write_strategies(folder, job)
    if len(job.stages) == 1:
        return str(folder / "strategy_rank_0.ckpt")
    ms.merge_pipeline_strategys(str(folder), str(folder.with_suffix(".ckpt")))
    return str(folder.with_suffix(".ckpt"))


def is_known(job: Job) -> bool:
    """Whether transform_checkpoints gets the layouts right.

    With optimizer shards it takes the axes of the dimensions to be in their order (the last lines of
    ``_construct_tensor_layout_for_opt_shard``), which a layout need not be.
    """
    layouts = [layout for stage in job.stages for layout in stage.values()]
    maps = [[axis for axes in one.tensor_map for axis in axes] for one in layouts if one.opt_shard_size]
    return all(axes == sorted(axes, reverse=True) for axes in maps)


@pytest.mark.parametrize("seed", range(examples(10)))
def test_contents_are_those_of_transform_checkpoints(seed: int, tmp_path: Path) -> None:
    source = Random(seed)
    for attempt in range(20):
        arrays = random_arrays(source)
        shapes = {name: array.shape for name, array in arrays.items() if name != COUNTER}
        job, target = random_job(source, shapes, shared=False), random_job(source, shapes, shared=False)
        if not (is_known(job) and is_known(target)):
            continue
        folder = tmp_path / str(attempt)
        root = make_job_tree(folder / "source", job, arrays, directory="rank_")
        before, after = strategy_of(folder / "before", job), strategy_of(folder / "target", target)
        plan = api.plan_reshard(api.scan(root), folder / "ours", ReshardOptions(strategy=after))
        assert api.reshard(plan, verify=False).exit_code == 0
        for path in root.rglob("strategy.ckpt"):
            path.unlink()  # transform_checkpoints takes every .ckpt for a slice
        try:
            ms.transform_checkpoints(str(root), str(folder / "theirs"), "t", before, after)
        except ValueError as error:
            assert "is missing" in str(error)  # noqa: PT017 (what moves to another stage is looked for on its new rank)
            continue
        for rank in range(target.ranks):
            expected = contents_of(folder / "theirs" / f"rank_{rank}" / f"t{rank}.ckpt")
            assert contents_of(folder / "ours" / f"rank_{rank}" / "test-1_8.ckpt") == expected, rank
        return
    pytest.fail("transform_checkpoints took none of these")


@pytest.mark.parametrize(
    ("name", "axes"),
    [("dp2_mp4", (2, 2)), ("dp4_mp2_opt2", (4, 1)), ("dp4_mp2_optfull", (1, 4)), ("dp2_mp2_pp2", (2, 1))],
)
def test_fixtures_are_cut_as_transform_checkpoints_cuts_them(name: str, axes, fixtures: Path, tmp_path: Path) -> None:
    """By the strategy files that are written beside our slices."""
    from ms_recover.model.axes import Axes

    stages = 2 if name.endswith("pp2") else 1
    text = f"dp={axes[0]},tp={axes[1]},pp={stages}"
    ours = tmp_path / "ours"
    wanted = ReshardOptions(axes=Axes.parse(text), optimizer_shards=-1 if "opt2" in name else 0)
    plan = api.plan_reshard(api.scan(fixtures / name), ours, wanted)
    assert api.reshard(plan, verify=False).exit_code == 0
    each = plan.devices
    merged = []
    for place, tree, size in (("before", fixtures / name, 8 // stages), ("after", ours, each)):
        folder = tmp_path / place
        folder.mkdir()
        for stage in range(stages):
            data = (tree / f"ckpt_dir{stage * size}" / "strategy.ckpt").read_bytes()
            (folder / f"strategy_rank_{stage * size}.ckpt").write_bytes(data)
        merged.append(str(folder / "strategy_rank_0.ckpt"))
        if stages > 1:
            ms.merge_pipeline_strategys(str(folder), str(folder.with_suffix(".ckpt")))
            merged[-1] = str(folder.with_suffix(".ckpt"))
    source = tmp_path / "source"
    for rank in range(8):
        (source / f"rank_{rank}").mkdir(parents=True)
        path = fixtures / name / f"ckpt_dir{rank}" / f"test-{plan.step}.ckpt"
        (source / f"rank_{rank}" / "slice.ckpt").write_bytes(path.read_bytes())
    ms.transform_checkpoints(str(source), str(tmp_path / "theirs"), "t", *merged)
    for rank in range(plan.ranks):
        expected = contents_of(tmp_path / "theirs" / f"rank_{rank}" / f"t{rank}.ckpt")
        found = contents_of(ours / f"ckpt_dir{rank}" / f"test-{plan.step}.ckpt")
        assert found.keys() == expected.keys()
        assert found == expected, rank


@pytest.mark.parametrize("form", ["ckpt", "safetensors"])
@pytest.mark.parametrize(("name", "axes"), [("dp2_mp4", "dp=1,tp=4"), ("dp4_mp2_opt2", "dp=2,tp=2")])
def test_a_tree_without_redundancy_is_cut_as_the_whole_one(name: str, axes: str, form: str, fixtures, tmp_path) -> None:
    """Dealt out by MindSpore's own code for ``remove_redundancy=True``, and saved by it."""
    from mindspore.train._utils import get_parameter_redundancy, remove_param_redundancy

    from ms_recover.model.axes import Axes

    wanted = ReshardOptions(axes=Axes.parse(axes), optimizer_shards=-1 if "opt" in name else 0, form="ckpt")
    plan = api.plan_reshard(api.scan(fixtures / name), tmp_path / "whole", wanted)
    assert api.reshard(plan, verify=False).exit_code == 0
    root = tmp_path / "dealt"
    layouts = fixtures / name / "ckpt_dir0" / "strategy.ckpt"
    redundancy = get_parameter_redundancy(str(layouts), initial_rank=0)
    kept = remove_param_redundancy(redundancy)
    listed = 0
    for rank in range(8):
        folder = root / f"ckpt_dir{rank}"
        folder.mkdir(parents=True)
        for document in ("strategy.ckpt", "group_info.pb"):
            (folder / document).write_bytes((fixtures / name / folder.name / document).read_bytes())
        values = ms.load_checkpoint(str(fixtures / name / folder.name / f"test-{plan.step}.ckpt"))
        mine = [
            {"name": one, "data": value} for one, value in values.items() if one in kept[rank] or one not in redundancy
        ]
        listed += len(mine) < len(values)
        ms.save_checkpoint(mine, str(folder / f"test-{plan.step}"), format=form)
    assert listed == 8
    dealt = api.plan_reshard(api.scan(root), tmp_path / "ours", wanted)
    assert dealt.complete
    assert api.reshard(dealt, verify=False, compare=True).exit_code == 0
    for rank in range(plan.ranks):
        path = Path(f"ckpt_dir{rank}", f"test-{plan.step}.ckpt")
        assert contents_of(tmp_path / "ours" / path) == contents_of(tmp_path / "whole" / path), rank
    next((root / "ckpt_dir3").glob("test-*")).unlink()
    gone = api.plan_reshard(api.scan(root), tmp_path / "gone", wanted)
    assert {one.parameter for one in gone.missing} == kept[3]
