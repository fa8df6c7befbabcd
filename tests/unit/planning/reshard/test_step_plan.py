"""The plan of one step: the target, the format, the casts, and what the step lacks."""

from dataclasses import replace

import pytest

from ms_recover.errors import MissingInputError, UsageError
from ms_recover.model.axes import Axes
from ms_recover.model.compose import MissingRegion
from ms_recover.model.inventory import Inventory, Note, StrategyFile
from ms_recover.model.reshard import ReshardOptions, ReshardPlan
from ms_recover.model.steps import Step
from ms_recover.model.strategy import Layout, Strategy
from ms_recover.planning.judging.judge import compare_slices
from ms_recover.planning.reshard.step_plan import ReshardTask, casts_of, plan_step, why_incomplete
from ms_recover.planning.tree.candidates import runs_of
from ms_recover.planning.tree.facts import gather_facts
from tests.support.inventories import NAMES, OLDER, STEP, slice_file, tree
from tests.unit.planning.reshard.test_transfers import layout, source_of, target_of, whole
from tests.unit.planning.supply.test_choose import cut_by_layouts

FULL = ReshardOptions(full=True)


def planned(slices=None, wanted=FULL, *, target=None, step=STEP, change=cut_by_layouts, lists=None, **how):
    """Plan a step of four ranks of which two and two hold the same by layouts."""
    inventory = change(tree(slices or [slice_file(rank) for rank in range(4)], lists or {}))
    facts = replace(gather_facts(inventory), notes=how.pop("notes", ()))
    unequal = how.pop("unequal", ())
    task = ReshardTask(target=target, options=wanted, output="/out", **how)
    return plan_step([compare_slices(facts)], step, runs_of(facts, STEP)[0], task, unequal)


def test_a_full_checkpoint_has_every_parameter_whole():
    plan = planned()
    assert (plan.full, plan.root, plan.output, plan.step, plan.world_size, plan.ranks) == (
        True,
        "/tree",
        "/out",
        STEP,
        4,
        1,
    )
    assert [(one.name, plan.transfers[one.transfer].shape) for one in plan.parameters] == [
        (name, (8,)) for name in NAMES
    ]
    (file,) = plan.files
    assert file.target == "model.ckpt"


def test_files_of_a_full_checkpoint_alone_are_limited():
    assert len(planned(wanted=ReshardOptions(full=True, shard_size=1)).files) == 4
    target = target_of([layout(name, 0) for name in NAMES])
    plan = planned(wanted=ReshardOptions(strategy="x", shard_size=1), target=target)
    assert [file.target for file in plan.files] == [f"ckpt_dir{rank}/test-2_8.ckpt" for rank in range(4)]


def test_axes_cut_what_the_source_cuts():
    plan = planned(wanted=ReshardOptions(axes=Axes.parse("tp=4"), rename=(("b", "x"),)))
    assert (plan.ranks, plan.devices, plan.full) == (4, 4, False)
    (strategy,) = plan.strategies
    assert {one.parameter: one.tensor_map for one in strategy.layouts} == dict.fromkeys(
        ["a", "global_step", "moment1.a", "x"], ((0,),)
    )


def test_the_format_is_that_of_most_files_unless_another_is_asked_for():
    files = [slice_file(rank) for rank in range(4)]
    loose = [replace(one, place=replace(one.place, parts=("ckpt_dir", "/test-2_8.safetensors"))) for one in files]
    assert planned([files[0], *loose[1:]]).form == "safetensors"
    assert planned([*files[:3], loose[3]]).form == "ckpt"
    assert planned(wanted=ReshardOptions(full=True, form="safetensors")).form == "safetensors"


def test_the_pattern_is_that_of_the_source_unless_another_is_asked_for():
    target = target_of([layout(name, 0) for name in NAMES])
    plan = planned(wanted=ReshardOptions(strategy="x", pattern="r{rank}/{prefix}_{step}"), target=target)
    assert plan.files[2].target == "r2/test_8.ckpt"


COMMON = (("epoch_num", 1.0), ("step_num", 8.0), ("global_batch_size", 4.0))


def test_an_iteration_states_the_progress_and_leaves_gradients_out():
    names = ("a", "b", "accu_grads.a", "global_step")
    wanted = ReshardOptions(full=True, form="mindformers", common=COMMON)
    plan = planned(
        [slice_file(rank, names=names, prefix=f"CKP_rank_{rank}") for rank in range(4)],
        wanted,
        inventory=Inventory(root="/whole"),
        values={"loss_scale": 2.0},
    )
    assert (plan.common.step_num, plan.common.loss_scale, plan.full) == (8, 2.0, False)
    assert [file.target.partition("/")[2] for file in plan.files] == ["CKP-model-0000000-0000001.safetensors"]
    assert plan.warnings == ("MindFormers' format has no place for 'accu_grads.a': left out",)
    assert planned(wanted=replace(wanted, form=None, common=())).warnings == ()
    with pytest.raises(UsageError, match=r"^/whole: nothing in step"):
        planned(wanted=replace(wanted, common=()), inventory=Inventory(root="/whole"))
    with pytest.raises(UsageError, match=r"^/tree: nothing in step"):
        planned(wanted=replace(wanted, common=()))
    with pytest.raises(
        UsageError, match=r"common\.json is of MindFormers' format alone, and slices are written as ckpt"
    ):
        planned(wanted=ReshardOptions(full=True, common=COMMON))


def test_a_step_that_is_not_there_has_no_plan():
    with pytest.raises(MissingInputError, match="there is no slice of step 3_8"):
        planned(step=Step(3, 8))


def test_parts_of_a_tree_without_the_step_do_not_count():
    whole_tree = gather_facts(cut_by_layouts(tree([slice_file(rank) for rank in range(4)], {})))
    older = gather_facts(tree([slice_file(rank, OLDER) for rank in range(4)], {}))
    parts = [compare_slices(older), compare_slices(whole_tree)]
    plan = plan_step(parts, STEP, runs_of(whole_tree, STEP)[0], ReshardTask(target=None, options=FULL))
    assert plan.complete


def test_map_parameters_are_not_cut_anew():
    first, *others = slice_file(0).parameters
    files = [slice_file(rank) for rank in range(4)]
    files = [replace(one, parameters=(replace(first, dtype="MapTensor[Int32]"), *others)) for one in files]
    with pytest.raises(UsageError, match="'a' are map parameters"):
        planned(files)


def test_parameters_of_which_stages_hold_different_contents_are_not_written():
    plan = planned(unequal=("b",))
    assert [one.parameter for one in plan.missing] == ["b"]
    assert planned().disagreements == ()
    assert len(plan.disagreements) == 1


def test_notes_of_the_tree_are_those_of_the_plan():
    note = Note("ckpt_dir0/x", "is not used")
    assert planned(notes=(note,)).notes == (note,)


@pytest.mark.parametrize(
    ("ranks", "lists", "known"),
    [(4, {}, False), (1, {}, True), (4, {rank: range(4) for rank in range(4)}, True), (2, {0: [0], 1: [1]}, False)],
    ids=["several ranks", "one rank", "all hold the same", "each its own"],
)
def test_something_states_how_parameters_are_cut_over_several_ranks(ranks, lists, known):
    def plan():
        return planned([slice_file(rank) for rank in range(ranks)], change=lambda found: found, lists=lists)

    if known:
        assert plan().complete
    else:
        with pytest.raises(MissingInputError, match=rf"no parameter can be put together from {ranks} ranks: name the"):
            plan()


def test_parts_with_stages_of_different_sizes_have_no_axes():
    def of(devices):
        layouts = tuple(Layout(name, (devices,), ((0,),)) for name in NAMES)
        file = StrategyFile(0, "ckpt_dir0/strategy.ckpt", Strategy((0,), 1, layouts))
        return gather_facts(replace(tree([slice_file(rank) for rank in range(devices)], {}), strategy_files=(file,)))

    parts = [of(2), of(4)]
    task = ReshardTask(target=None, options=ReshardOptions(axes=Axes.parse("tp=2")))
    with pytest.raises(UsageError, match="parts of the source state 2, 4 ranks in a stage"):
        plan_step(list(map(compare_slices, parts)), STEP, runs_of(parts[0], STEP)[0], task)


def test_a_stage_without_strategy_file_has_no_axes():
    layouts = tuple(Layout(name, (2,), ((0,),)) for name in NAMES)
    file = StrategyFile(0, "ckpt_dir0/strategy.ckpt", Strategy((0,), 1, layouts))
    with pytest.raises(UsageError, match="--axes: no strategy file of stage 1 of the source is left"):
        planned(
            wanted=ReshardOptions(axes=Axes.parse("tp=2")),
            change=lambda found: replace(found, strategy_files=(file,)),
        )


@pytest.mark.parametrize(
    ("changes", "cast"),
    [
        ({}, True),
        ({"dtype": "Float64"}, True),
        ({"dtype": "Float16"}, False),
        ({"dtype": "Int32"}, False),
        ({"cut": False}, True),
        ({"cut": False, "shape": (1,)}, False),
        ({"shape": (1,)}, True),
    ],
)
def test_floating_point_parameters_of_the_network_are_cast(changes, cast):
    source = source_of(whole("a", **changes), whole("moment1.a"), slices=[object()])
    assert casts_of(source, "float16") == ({"a": "Float16"} if cast else {})


def test_a_type_is_cast_to_where_it_is_asked_for():
    assert planned().casts == {}
    plan = planned(wanted=ReshardOptions(full=True, dtype="bfloat16"))
    assert plan.casts == {"a": "BFloat16", "b": "BFloat16"}


def test_what_a_plan_lacks_is_one_clause():
    gone = [MissingRegion(name, (), 0, f"why {name}") for name in "aba"]
    plan = ReshardPlan(root="", output="", form="ckpt", step=STEP, run_id=None, world_size=1, ranks=1)
    assert why_incomplete(plan) is None
    assert why_incomplete(replace(plan, missing=tuple(gone))) == "nobody holds all of 'a', 'b' (why a)"
    assert why_incomplete(replace(plan, missing=tuple(gone), disagreements=("they differ", "more"))) == "they differ"
