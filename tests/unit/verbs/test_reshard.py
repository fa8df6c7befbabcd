"""The verb reshard where it refuses what cannot be written or found again."""

from dataclasses import replace

import numpy as np
import pytest

from ms_recover import api
from ms_recover.errors import UnrecoverableError, UsageError
from ms_recover.model.axes import Axes
from ms_recover.model.inventory import Inventory, StrategyFile
from ms_recover.model.options import PlanOptions
from ms_recover.model.reshard import ReshardOptions, ReshardPlan
from ms_recover.model.slices import Parameter
from ms_recover.model.strategy import Layout, Strategy
from ms_recover.planning.reshard.actions import paths_taken
from ms_recover.verbs.reshard import plan_reshard
from tests.support.cuts import CutTensor, cut_layout, make_cut_tree
from tests.support.inventories import NAMES, OLDER, STEP, pairs, slice_file, tree
from tests.support.iterations import Job, write_job

LAYOUTS = tuple(Layout(name, (2, 2), ((0,),)) for name in NAMES)


def inventory_of(*slices: object) -> Inventory:
    files = (StrategyFile(0, "ckpt_dir0/strategy.ckpt", Strategy((0,), 1, LAYOUTS), "digest"),)
    return replace(tree(slices, {}), strategy_files=files)


def planned(*slices: object, lost: frozenset[int] = frozenset(), **wanted: object) -> ReshardPlan:
    options = PlanOptions(quick=True, world_size=4, lost=lost)
    made = ReshardOptions(axes=Axes.parse("dp=2,tp=1"), **wanted)  # type: ignore[arg-type]
    return plan_reshard(inventory_of(*slices), "/nowhere", made, options)


EVERY = [slice_file(rank) for rank in range(4)]


def test_slices_lie_where_the_pattern_says() -> None:
    plan = planned(*EVERY, pattern="out/rank_{rank}/{prefix}-{epoch}_{step}.ckpt")
    assert [file.target for file in plan.files] == ["out/rank_0/test-2_8.ckpt", "out/rank_1/test-2_8.ckpt"]
    assert [file.target for file in planned(*EVERY).files] == ["ckpt_dir0/test-2_8.ckpt", "ckpt_dir1/test-2_8.ckpt"]


@pytest.mark.parametrize(
    ("wanted", "why"),
    [
        ({"form": "mindformers", "pattern": "rank_{rank}/{prefix}-{epoch}_{step}.ckpt"}, "leave the pattern out"),
        ({"pattern": ".hidden/rank_{rank}/{prefix}-{epoch}_{step}.ckpt"}, "has a hidden name"),
        ({"pattern": "rank_{rank}/.{prefix}-{epoch}_{step}.ckpt"}, "has a hidden name"),
    ],
)
def test_names_that_no_command_would_find_are_refused(wanted: dict[str, str], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        planned(*EVERY, **wanted)


def test_the_output_is_a_folder_of_this_host() -> None:
    with pytest.raises(UsageError, match="a reshard writes to folders of this host alone"):
        plan_reshard(inventory_of(*EVERY), "s3://bucket/out", ReshardOptions(axes=Axes.parse("dp=2,tp=1")))


def test_the_newest_step_of_which_every_region_has_a_holder_is_cut() -> None:
    """At the newer step both holders of a part are gone."""
    plan = planned(*(slice_file(rank, OLDER) for rank in range(4)), EVERY[0], EVERY[2])
    assert (plan.step, plan.complete) == (OLDER, True)
    assert [passed.step for passed in plan.rejected_steps] == [STEP]
    assert (planned(*EVERY).step, planned(*EVERY).rejected_steps) == (STEP, ())


def test_where_no_step_has_every_region_the_newest_says_what_is_missing() -> None:
    plan = planned(slice_file(0, OLDER), EVERY[0], EVERY[2])
    assert (plan.step, plan.complete) == (STEP, False)
    assert {gone.parameter for gone in plan.missing} == set(NAMES)
    assert [passed.step for passed in plan.rejected_steps] == [OLDER]


def test_a_step_of_ranks_that_are_declared_lost_alone_is_passed_over() -> None:
    older = [slice_file(rank, OLDER) for rank in (0, 1)]
    plan = planned(*older, EVERY[2], lost=frozenset({2}))
    assert plan.step == OLDER
    (passed,) = plan.rejected_steps
    assert passed.reason == "every slice of it is of a rank that is declared lost"


def test_of_floating_point_parameters_those_of_the_network_are_cast() -> None:
    """``rate`` is a single value without a layout, ``one`` has a layout, ``count`` is an integer."""
    types = {
        "a": "Float32",
        "moment1.a": "Float32",
        "rate": "Float32",
        "one": "Float32",
        "count": "Int32",
        "b": "Float16",
    }
    shapes = {"rate": (), "one": (1,)}
    listed = tuple(
        Parameter(name, dtype, shapes.get(name, (4,)), (4 if name not in shapes else 1) * (2 if name == "b" else 4))
        for name, dtype in types.items()
    )
    layouts = (
        *(Layout(name, (2, 2), ((0,),)) for name in ("a", "moment1.a", "count", "b")),
        Layout("one", (2, 2), ((),)),
    )
    inventory = replace(
        tree([replace(one, parameters=listed) for one in EVERY], {}),
        strategy_files=(StrategyFile(0, "ckpt_dir0/strategy.ckpt", Strategy((0,), 1, layouts), "digest"),),
    )
    wanted = ReshardOptions(axes=Axes.parse("dp=2,tp=1"), dtype="float16")
    plan = plan_reshard(inventory, "/nowhere", wanted, PlanOptions(quick=True, world_size=4))
    assert {one.name: one.cast for one in plan.parameters if one.cast is not None} == {"a": "Float16", "one": "Float16"}


@pytest.mark.parametrize(
    ("shard_size", "held"),
    [(0, [4]), (4 << 30, [4]), (128, [4]), (127, [3, 1]), (64, [2, 2]), (63, [1, 1, 1, 1]), (1, [1, 1, 1, 1])],
)
def test_a_full_checkpoint_is_dealt_out_to_files_of_a_size(shard_size: int, held: list[int]) -> None:
    """There are four parameters of 32 bytes."""
    wanted = ReshardOptions(full=True, shard_size=shard_size)
    plan = plan_reshard(inventory_of(*EVERY), "/nowhere", wanted, PlanOptions(quick=True, world_size=4))
    assert [len(file.parameters) for file in plan.files] == held
    assert [number for file in plan.files for number in file.parameters] == [0, 1, 2, 3]
    ends = [f"-{number:05}-of-{len(held):05}.ckpt" if held[1:] else ".ckpt" for number in range(1, len(held) + 1)]
    assert [file.target.endswith(end) for file, end in zip(plan.files, ends, strict=True)] == [True] * len(held)
    assert all(file.group == (0,) for file in plan.files)


def test_slices_are_read_that_bytes_are_taken_from_and_no_others_where_manifests_are_verdicts(tmp_path) -> None:
    source = np.random.default_rng(1)
    tensors = {
        name: CutTensor("Float32", source.random((8, 4), np.float32), cut_layout(name, (2, 2), (0,), ()))
        for name in NAMES[:2]
    }
    root = make_cut_tree(tmp_path / "tree", tensors, 4, steps=[STEP], manifests=True, groups=pairs(4))
    inventory, read = api.scan(root), []
    wanted = ReshardOptions(axes=Axes.parse("dp=1,tp=2"))
    plan = plan_reshard(inventory, tmp_path / "out", wanted, progress=read.append)
    taken = paths_taken(plan)
    assert plan.complete
    assert len(taken) == 2
    assert sum(read) == sum(file.size for file in inventory.slices if file.path in taken)
    damaged = root / min(taken)
    damaged.chmod(0o600)
    damaged.write_bytes(damaged.read_bytes()[:-4] + b"else")
    assert min(taken) not in paths_taken(plan_reshard(api.scan(root), tmp_path / "out", wanted))
    read.clear()
    for path in root.rglob("*.manifest.json"):
        path.unlink()
    inventory = api.scan(root)
    plan_reshard(inventory, tmp_path / "out", wanted, progress=read.append)
    assert sum(read) == sum(file.size for file in inventory.slices)


def test_a_tree_of_which_every_slice_is_declared_lost_has_no_step_to_cut() -> None:
    with pytest.raises(UnrecoverableError, match="every slice of it is of a rank that is declared lost"):
        planned(EVERY[2], lost=frozenset({2}))


def test_a_folder_is_written_unless_it_is_a_dry_run(tmp_path, monkeypatch) -> None:
    layout = cut_layout(NAMES[0], (2, 2), (0,), ())
    tensors = {NAMES[0]: CutTensor("Float32", np.arange(32, dtype=np.float32).reshape(8, 4), layout)}
    root = make_cut_tree(tmp_path / "tree", tensors, 4, steps=[STEP], groups=pairs(4))
    monkeypatch.chdir(tmp_path)
    plan = plan_reshard(api.scan(root), "out", ReshardOptions(axes=Axes.parse("dp=1,tp=2")))
    assert plan.output == str(tmp_path / "out")
    foreseen = api.reshard(plan, dry_run=True)
    assert not (tmp_path / "out").exists()
    done = api.reshard(plan)
    assert (done.exit_code, foreseen.exit_code) == (0, 0)
    assert sorted(path.name for path in (tmp_path / "out").glob("ckpt_dir*")) == ["ckpt_dir0", "ckpt_dir1"]


@pytest.mark.parametrize(
    ("wanted", "form"),
    [
        ({"axes": Axes.parse("dp=1,tp=2")}, "mindformers"),
        ({"axes": Axes.parse("dp=1,tp=2"), "form": "safetensors"}, "safetensors"),
        (
            {"axes": Axes.parse("dp=1,tp=2"), "pattern": "rank_{rank}/{prefix}-{epoch}_{step}.safetensors"},
            "safetensors",
        ),
        ({"full": True}, "safetensors"),
    ],
)
def test_iterations_stay_iterations_unless_the_output_is_to_be_another(tmp_path, wanted, form) -> None:
    inventory = api.scan(write_job(tmp_path / "tree", Job(layers=1, adapter=False)))
    plan = plan_reshard(inventory, tmp_path / "out", ReshardOptions(**wanted), PlanOptions(quick=True))
    assert (plan.form, plan.complete) == (form, True)
